//! all-MiniLM-L6-v2, where `just fetch-minilm` has put it; elsewhere these tests say so and pass.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_models::batches::Batching;
use briquette_models::data::arrays::Values;
use briquette_models::data::{Array, Sentences};
use briquette_models::{LoadedModel, Network, metrics, outputs};
use briquette_nn::{DynamicSpec, held, quantize_dynamic};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn minilm() -> Option<PathBuf> {
    let path = root().join("models/minilm");
    if path.join("model.safetensors").exists() {
        return Some(path);
    }
    println!("models/minilm is not there: `just fetch-minilm`; nothing tested");
    None
}

fn cosines(a: &outputs::Outputs, b: &outputs::Outputs) -> Vec<f64> {
    let rows =
        |outputs: &outputs::Outputs| outputs.values.chunks(outputs.width).map(<[f32]>::to_vec).collect::<Vec<_>>();
    rows(a).iter().zip(rows(b)).map(|(a, b)| metrics::cosine(a, &b)).collect()
}

/// What transformers makes of the sentences.
fn reference() -> outputs::Outputs {
    let path = root().join("fixtures/models/minilm.expected.safetensors");
    let array = Array::read(&path, &["embeddings"]).unwrap();
    let Values::Floats(values) = array.values else { panic!("not floats") };
    outputs::Outputs { width: array.shape[1], values, ..outputs::Outputs::default() }
}

/// Rounds the columns of every matrix of a linear layer to 255 steps, as int8 weights are.
#[derive(Default)]
struct Int8 {
    path: Vec<String>,
}

impl ModuleMapper for Int8 {
    fn enter_module(&mut self, _name: &str, kind: &str) {
        self.path.push(kind.into());
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D != 2 || self.path.last().is_none_or(|kind| kind != "Struct:Linear") {
            return param;
        }
        param.map(|weight| {
            let scale = weight.clone().abs().max_dim(0) / 127.0;
            (weight / scale.clone()).round() * scale
        })
    }
}

/// Dynamic int8 as it is served: what it holds, and what its embeddings are worth.
fn check_dynamic(model: &LoadedModel, plain: &outputs::Outputs, sentences: &Sentences, how: Batching) {
    let network = quantize_dynamic(model.network.clone(), &DynamicSpec::new()).unwrap();
    let n_bytes: usize = held(&network).values().map(|held| held.n_bytes).sum();
    let served = LoadedModel { network, ..model.clone() };
    let found = outputs::embed(&served, sentences, how, &mut |_, _| Ok(())).unwrap();
    let cosines = cosines(plain, &found);
    let (mean, least) = (metrics::mean(cosines.iter().copied()), cosines.iter().copied().fold(1.0, f64::min));
    let pairs = |outputs: &outputs::Outputs| metrics::pair_cosines(&outputs.values, outputs.width);
    let spearman = metrics::spearman(&pairs(plain), &pairs(&found)).unwrap();
    println!("dynamic int8: {n_bytes} bytes, cosine {mean}, at least {least}, Spearman {spearman}");
    assert!(n_bytes <= 23_500_000, "{n_bytes}");
    assert!(mean >= 0.9985 && least >= 0.9975 && spearman >= 0.998, "{mean} {least} {spearman}");
}

#[test]
fn minilm_loads_within_its_memory_and_keeps_its_meaning_in_int8() {
    let Some(path) = minilm() else { return };
    let weights = std::fs::metadata(path.join("model.safetensors")).unwrap().len();
    let before = ResidentSet.live_bytes().unwrap_or(0);
    let device = Device::default();
    let mut model = LoadedModel::open(&path, None, &device).unwrap();
    let peak = ResidentSet.peak_bytes().unwrap_or(0).saturating_sub(before);
    println!("weights {weights}, peak while loading {peak}: {:.3}", peak as f64 / weights as f64);
    assert!(peak as f64 <= 1.15 * weights as f64 + 64e6, "{peak} bytes at most while loading {weights}");

    let sentences = Sentences::read_lines(&root().join("bench/peers/sentences.txt")).unwrap();
    let how = Batching { batch_size: 8, workers: 0 };
    let plain = outputs::embed(&model, &sentences, how, &mut |_, _| Ok(())).unwrap();
    assert_eq!((plain.places.len(), plain.width), (40, 384));
    let cosines_to_reference = cosines(&plain, &reference());
    let worst = cosines_to_reference.iter().copied().fold(1.0, f64::min);
    println!("f32 against transformers: cosine at least {worst}");
    assert!(cosines_to_reference.len() == 40 && worst >= 0.99999, "{worst}");
    check_dynamic(&model, &plain, &sentences, how);
    let Network::Bert(bert) = model.network else { panic!("not a BERT") };
    model.network = Network::Bert(bert.map(&mut Int8::default()));
    let coarse = outputs::embed(&model, &sentences, how, &mut |_, _| Ok(())).unwrap();
    let cosines = cosines(&plain, &coarse);
    let mean = metrics::mean(cosines.iter().copied());
    println!("int8: cosine {mean}, at least {:?}", cosines.iter().copied().fold(1.0, f64::min));
    assert!(mean >= 0.9995, "{mean}");
}
