//! Fuzzes the whole pipeline with a safetensors file. The first byte selects the recipe. Outputs must verify.
#![no_main]

use briquette::pipeline::{Recipe, RunOptions, recipe, verify};
use briquette_fuzz::{file, place};

const STAGES: [&str; 6] = [
    "kind = 'prune'\nsparsity = 0.5",
    "kind = 'prune'\nsparsity = 0.5\nscope = 'global'\n[[stage]]\nkind = 'quantize'\nscheme = 'int8'",
    "kind = 'quantize'\nscheme = 'int4-g32'",
    "kind = 'quantize'\nbits = 3\nsymmetric = false",
    "kind = 'prune'\npattern = '2:4'\n[[stage]]\nkind = 'quantize'\nscheme = 'int8-dynamic'",
    "kind = 'quantize'\nbits = 2\nrange = 'mse'",
];
const FORMATS: [&str; 4] = ["briquette", "dense", "compressed-tensors", "burnpack"];

fn recipe_of(kind: u8) -> Recipe {
    let (stage, format) = (STAGES[usize::from(kind) % STAGES.len()], FORMATS[usize::from(kind / 8) % FORMATS.len()]);
    let text = format!(
        "[model]\npath = 'model.safetensors'\nallow_nonfinite = {}\n[output]\npath = 'out'\nformat = '{format}'\nallow_untested = true\n[[stage]]\n{stage}",
        kind & 0x80 != 0
    );
    let raw = recipe::parse(&text, "recipe").expect("the recipe is valid TOML");
    Recipe::from_raw(raw, &place("")).expect("the recipe is valid")
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    file("model.safetensors", bytes);
    let options = RunOptions { force: true, threads: 1, ..RunOptions::default() };
    if briquette::run(&recipe_of(*kind), &options).is_ok() {
        verify::verify(&place("out"), None, &options).expect("the output verifies");
    }
});
