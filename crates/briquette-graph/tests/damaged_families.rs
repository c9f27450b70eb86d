//! Damaged headers and `config.json` of every model in `fixtures/families`: input errors, never a panic.

#![allow(clippy::unwrap_used)]

use briquette_core::{ErrorKind, Shape};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_graph::families::{build, family_of};
use briquette_graph::{Config, Extents, Headers};
use serde_json::{Value, json};
use std::path::Path;

struct Model {
    name: String,
    tensors: Vec<TensorInfo>,
    config: Value,
}

fn models() -> Vec<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let model = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let config =
            std::fs::read(path.join("config.json")).map_or(json!({}), |text| serde_json::from_slice(&text).unwrap());
        let tensors = Checkpoint::open(&path).unwrap().tensors().to_vec();
        Model { name: path.display().to_string(), tensors, config }
    };
    std::fs::read_dir(folder).unwrap().map(model).collect()
}

/// Builds the graph, and returns whether it is sound.
fn is_sound(name: &str, tensors: &[TensorInfo], config: &Value) -> bool {
    let config = Config::parse(Some(config.to_string().as_bytes())).unwrap();
    match build(&Headers::new(tensors, None), &config, Extents { batch: 1, tokens: 4, image: [32, 32] }) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::Input, "{name}: {error}");
            assert!(!error.to_string().contains('\n'), "{name}: {error}");
            false
        }
    }
}

#[test]
fn tensors_of_other_shapes_are_input_errors() {
    for Model { name, tensors, config } in models() {
        for place in 0..tensors.len() {
            for shape in
                [vec![usize::MAX, 16], vec![1 << 40, 2], vec![0, 3], vec![], vec![3], vec![5, 7, 1], vec![1, 0, 1, 1]]
            {
                let mut damaged = tensors.clone();
                damaged[place].shape = Shape(shape).into();
                is_sound(&name, &damaged, &config);
            }
        }
    }
}

#[test]
fn a_missing_matrix_is_an_input_error() {
    for Model { name, tensors, config } in models() {
        let headers = Headers::new(&tensors, None);
        let known = Config::parse(Some(config.to_string().as_bytes())).unwrap();
        let family = family_of(&headers, &known).unwrap().name;
        let n_refused = (0..tensors.len()).filter(|&place| {
            let mut damaged = tensors.clone();
            damaged.remove(place);
            let headers = Headers::new(&damaged, None);
            // Without its first names, a model without `config.json` is of no family.
            family_of(&headers, &known).is_none_or(|found| found.name != family) || !is_sound(&name, &damaged, &config)
        });
        let n_refused = n_refused.count();
        let n_matrices = tensors.iter().filter(|info| info.shape.rank() > 1).count();
        // Heads, poolers, positions of segments and biases may be absent.
        assert!(n_refused * 3 >= n_matrices * 2, "{name}: {n_refused} of {n_matrices}");
    }
}

#[test]
fn a_config_with_other_values_is_an_input_error_or_another_graph() {
    for Model { name, tensors, config } in models() {
        let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for key in keys.iter().filter(|key| *key != "model_type") {
            for value in
                [json!(0), json!(-1), json!(7), json!(u64::MAX), json!(1e300), json!("x"), json!([1]), Value::Null]
            {
                let mut damaged = config.clone();
                damaged[key] = value;
                is_sound(&name, &tensors, &damaged);
            }
        }
    }
}
