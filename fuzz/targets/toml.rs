//! A recipe or a jobs file, beside a recipe that jobs may name.
#![no_main]

use briquette::pipeline::batch::{Document, plan};
use briquette_fuzz::{file, files};

const RECIPE: &[u8] = br#"
[model]
path = "m"
[output]
path = "o"
[[stage]]
kind = "prune"
sparsity = 0.4
[[stage]]
kind = "quantize"
scheme = "int8"
"#;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    file("recipe.toml", RECIPE);
    let directory = files(&["jobs.toml"], input);
    match Document::from_file(&directory.join("jobs.toml")) {
        Ok(Document::Recipe(recipe)) => drop(recipe.to_manifest().expect("a sound recipe can be written down")),
        Ok(Document::Jobs(jobs)) => drop(plan(&jobs, "cpu").expect("bounds can be computed")),
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    }
});
