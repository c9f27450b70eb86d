//! A shrunk ONNX model computes the outputs of the model whose removed units are 0.

use super::headed::{HeadedModel, SmallerModel};
use super::shrink::ShrinkPlan;
use crate::onnx::{OnnxRequest, export};
use briquette_formats::onnx::{Skeleton, StreamedWeight, carried_model};
use briquette_formats::onnx_write::{LARGEST_FILE, write_onnx};
use briquette_formats::{Checkpoint, Draft, InputFile, TensorInfo, TensorSource};
use briquette_graph::Config;
use briquette_graph::onnx::InputDims;
use briquette_graph::shrink::KeptIndices;
use briquette_models::graph_net::{AnyTensor, GraphNet};
use briquette_recipe::{ModelStage, Recipe, StageKind, TransformStage};
use briquette_writer::RunOptions;
use burn::tensor::{Device, Int, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Images, and texts with padding.
fn inputs(is_text: bool) -> BTreeMap<String, AnyTensor> {
    let numbers = |n: i64| Tensor::<1, Int>::arange(0..n, &Device::flex()).float();
    if !is_text {
        return BTreeMap::from([("x".to_string(), numbers(2 * 3 * 16 * 16).sin().reshape([2, 3, 16, 16]).into())]);
    }
    let texts = |values: Tensor<1>| AnyTensor::from(values.reshape([2, 7]));
    let mask = numbers(14).lower_elem(12.0).float();
    BTreeMap::from([
        ("input_ids".to_string(), texts(numbers(14) + 3.0)),
        ("attention_mask".to_string(), texts(mask.clone())),
        ("token_type_ids".to_string(), texts(mask * 0.0)),
    ])
}

fn outputs(path: &Path, inputs: &BTreeMap<String, AnyTensor>) -> Vec<Vec<f32>> {
    let net = GraphNet::from_onnx(path, &InputDims::default(), &Device::flex()).unwrap();
    net.run_named(inputs).unwrap().into_iter().map(|(_, value)| value.to_f32("an output").unwrap()).collect()
}

/// The places of the elements of a tensor that remain.
fn kept_places(info: &TensorInfo, kept: &[KeptIndices]) -> Vec<usize> {
    let shape = &info.shape.0;
    let is_kept = |place: &usize| {
        let mut rest = *place;
        (0..shape.len()).rev().all(|axis| {
            let index = rest % shape[axis];
            rest /= shape[axis];
            kept[axis].as_ref().is_none_or(|kept| kept.contains(&index))
        })
    };
    (0..info.n_elements()).filter(is_kept).collect()
}

/// Removes half of the units of a model. Returns the model before, and the smaller one.
fn halved(path: &Path, directory: &Path) -> (HeadedModel, SmallerModel) {
    let text = format!(
        "[model]\npath = {path:?}\n[output]\npath = {:?}\n[[stage]]\nkind = \"shrink\"\nratio = 0.5\n",
        directory.join("unused")
    );
    std::fs::write(directory.join("r.toml"), text).unwrap();
    let recipe = Recipe::from_file(&directory.join("r.toml")).unwrap();
    let ModelStage::Transform(stage) = &recipe.parts[0].then else { panic!("the recipe shrinks") };
    let TransformStage::Shrink(stage) = stage.as_ref() else { panic!("the recipe shrinks") };
    let checkpoint = Checkpoint::open(path).unwrap();
    let before = HeadedModel::of(&checkpoint, &recipe, Config::parse(None).unwrap(), StageKind::Shrink).unwrap();
    let plan = ShrinkPlan::of(stage, before.clone()).unwrap();
    let removed = plan.spread_units();
    assert!(!removed.is_empty());
    (before, plan.smaller(&removed).unwrap())
}

/// Writes the model with zeros in the places of removed units.
fn write_masked(path: &Path, to: &Path, before: &HeadedModel, smaller: &SmallerModel) {
    let mut bytes = std::fs::read(path).unwrap();
    for (info, _, start) in &Skeleton::read(InputFile::open(path).unwrap()).unwrap().tensors {
        let Some(weight) = before.graph.weight(&info.name) else { continue };
        let kept = kept_places(info, &smaller.kept[weight.0]);
        for place in (0..info.n_elements()).filter(|place| kept.binary_search(place).is_err()) {
            let width = info.dtype.n_bits() / 8;
            let at = usize::try_from(*start).unwrap() + width * place;
            bytes[at..at + width].fill(0);
        }
    }
    std::fs::write(to, bytes).unwrap();
}

/// Writes the smaller model.
fn write_smaller(path: &Path, directory: &Path, before: &HeadedModel, smaller: &SmallerModel) -> PathBuf {
    let checkpoint = Checkpoint::open(path).unwrap();
    let network = directory.join("network.onnx");
    std::fs::write(&network, smaller.model.network.as_ref().unwrap().as_slice()).unwrap();
    let weight = |(index, info): (usize, &TensorInfo)| -> (String, StreamedWeight) {
        (info.name.to_string(), (index, (*info.shape).clone()))
    };
    let infos = smaller.model.infos.iter().enumerate();
    let weights = infos.filter(|(_, info)| info.dtype.is_weight()).map(weight).collect();
    let model = carried_model(&InputFile::open(&network).unwrap(), &weights).unwrap();
    let out = directory.join("small");
    let draft = Draft::create(&out, &[], false).unwrap();
    write_onnx(&model, &draft, LARGEST_FILE, &mut |index, to| {
        let info = &checkpoint.tensors()[index];
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes)?;
        let Some(weight) = before.graph.weight(&info.name) else { return to(&bytes) };
        let kept = kept_places(info, &smaller.kept[weight.0]);
        let width = info.dtype.n_bits() / 8;
        to(&kept.iter().flat_map(|place| bytes[width * place..width * (place + 1)].to_vec()).collect::<Vec<u8>>())
    })
    .unwrap();
    draft.publish().unwrap();
    out.join("model.onnx")
}

#[test]
fn a_shrunk_onnx_model_equals_the_masked_one() {
    let exported = tempfile::tempdir().unwrap();
    let text = exported.path().join("out");
    export(&OnnxRequest::new(&fixture("models/bert-tiny"), &text), &RunOptions::default()).unwrap();
    for path in [fixture("onnx/convolutions.onnx"), text.join("model.onnx")] {
        let (directory, name) = (tempfile::tempdir().unwrap(), path.display());
        let (before, smaller) = halved(&path, directory.path());
        let masked = directory.path().join("masked.onnx");
        write_masked(&path, &masked, &before, &smaller);
        let small = write_smaller(&path, directory.path(), &before, &smaller);
        let given = inputs(path.starts_with(exported.path()));
        let (expected, found) = (outputs(&masked, &given), outputs(&small, &given));
        assert_ne!(expected, outputs(&path, &given), "{name}: units are removed");
        for (expected, found) in expected.iter().zip(&found) {
            let largest = expected.iter().fold(0_f32, |most, value| most.max(value.abs()));
            let apart = expected.iter().zip(found).fold(0_f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(expected.len() == found.len() && apart <= 1e-5 * largest, "{name}: {apart} of {largest}");
        }
    }
}
