//! Fuzzes recipes and jobs files, beside a recipe that jobs may refer to.
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
        Ok(Document::Recipe(recipe)) => drop(recipe.to_manifest().expect("a valid recipe can be serialized")),
        Ok(Document::Jobs(jobs)) => drop(plan(&jobs, "cpu").expect("size bounds can be computed")),
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    }
});
