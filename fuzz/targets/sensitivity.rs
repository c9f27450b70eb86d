//! Fuzzes sensitivity files, with a size budget of a small model.
#![no_main]

use briquette::RunOptions;
use briquette::pipeline::{Recipe, recipe};
use briquette_fuzz::{file, place};

const MODEL: &[u8] = include_bytes!("../../fixtures/digits/model.safetensors");
const RECIPE: &str = "[model]\npath = 'model.safetensors'\n[output]\npath = 'out'\n[budget]\nbytes = '30kB'\nsensitivity_file = 'sensitivity.json'\n[[stage]]\nkind = 'quantize'\nscheme = 'step'";

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    file("model.safetensors", MODEL);
    file("sensitivity.json", input);
    let raw = recipe::parse(RECIPE, "recipe").expect("the recipe is valid TOML");
    let recipe = Recipe::from_raw(raw, &place("")).expect("the recipe is valid");
    let options = RunOptions { force: true, threads: 1, ..RunOptions::default() };
    if let Err(error) = briquette::run(&recipe, &options) {
        assert!(error.exit_code() != 1 && error.to_string().lines().count() == 1, "{error}");
    }
});
