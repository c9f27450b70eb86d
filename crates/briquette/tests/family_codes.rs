//! Networks of every family hold the codes of an output, which are the weights that its dense form has.

use briquette::formats::Checkpoint;
use briquette::models::GraphNet;
use briquette::nn::{NameMap, dense_tensors, held, load_compressed, load_into};
use briquette::{Recipe, RunOptions, run};
use burn::module::Module;
use burn::tensor::Device;
use std::path::{Path, PathBuf};

fn folders() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Runs a recipe on a model: the stages, and keys of the output.
fn compress(model: &Path, output: &Path, keys: &str, stages: &str) {
    let recipe = output.with_extension("toml");
    let [from, to] = [model, output].map(|path| path.to_str().unwrap());
    let text = format!("[model]\npath = {from:?}\n[output]\npath = {to:?}\n{keys}{stages}");
    std::fs::write(&recipe, text).unwrap();
    run(&Recipe::from_file(&recipe).unwrap(), &RunOptions::default()).unwrap();
}

/// Returns the unfilled network of a directory.
fn blank(path: &Path) -> (Checkpoint, GraphNet, NameMap) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let (network, names) = GraphNet::unfilled(&checkpoint, &Device::flex()).unwrap();
    (checkpoint, network, names)
}

/// Returns the names and values of all effective weights, which are f32 in memory.
fn weights(network: &GraphNet, names: &NameMap) -> Vec<(String, Vec<f32>)> {
    let tensors = dense_tensors(network, names).unwrap();
    let values = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    tensors.into_iter().map(|(name, tensor)| (name, values(&safetensors::View::data(&tensor)))).collect()
}

/// Returns whether `rounded` is a value in f16, the type of the fixtures.
fn is_rounded(value: f32, rounded: f32) -> bool {
    (value - rounded).abs() <= value.abs() / 2048.0 + f32::powi(2.0, -25)
}

#[test]
fn codes_of_every_family_are_the_weights_of_its_dense_output() {
    const INT8: &str = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8-dynamic\"\n";
    let directory = tempfile::tempdir().unwrap();
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let model = directory.path().join(name);
        std::fs::create_dir(&model).unwrap();
        for file in ["config.json", "model.safetensors"].iter().filter(|file| folder.join(file).exists()) {
            std::fs::copy(folder.join(file), model.join(file)).unwrap();
        }
        let [codes, dense] = ["codes", "dense"].map(|form| directory.path().join(format!("{name}-{form}")));
        compress(&model, &codes, "", INT8);
        compress(&model, &dense, "format = \"dense\"\n", INT8);
        let (checkpoint, network, names) = blank(&codes);
        let codes = load_compressed(network, &checkpoint, &names).unwrap();
        let forms = held(&codes);
        assert!(forms.keys().any(|form| form == "int8"), "{name}: {:?}", forms.keys());
        let (checkpoint, network, names) = blank(&dense);
        let dense = load_into(network, &checkpoint, &names).unwrap();
        let (found, expected) = (weights(&codes.materialize(), &names), weights(&dense, &names));
        let names_of = |all: &[(String, Vec<f32>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names_of(&found), names_of(&expected), "{name}");
        for ((tensor, found), (_, expected)) in found.into_iter().zip(expected) {
            assert!(found.iter().zip(&expected).all(|(a, b)| is_rounded(*a, *b)), "{name}: {tensor}");
        }
    }
}
