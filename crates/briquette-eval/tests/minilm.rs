//! Tests of all-MiniLM-L6-v2 in `models/minilm` (`just fetch-minilm`); without it they print a note and pass.

#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_eval::{metrics, outputs};
use briquette_models::LoadedModel;
use briquette_models::batches::Batching;
use briquette_models::data::arrays::Values;
use briquette_models::data::{Array, Sentences};
use briquette_nn::{Compression, DynamicSpec, Export, Quantize, held, quantize_dynamic};
use burn::tensor::Device;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn minilm() -> Option<PathBuf> {
    let path = root().join("models/minilm");
    if path.join("model.safetensors").exists() {
        return Some(path);
    }
    println!("models/minilm is missing, nothing tested; run `just fetch-minilm`");
    None
}

fn cosines(a: &outputs::OutputRows, b: &outputs::OutputRows) -> Vec<f64> {
    let rows =
        |outputs: &outputs::OutputRows| outputs.values.chunks(outputs.width).map(<[f32]>::to_vec).collect::<Vec<_>>();
    rows(a).iter().zip(rows(b)).map(|(a, b)| metrics::cosine(a, &b)).collect()
}

/// Returns the embeddings of transformers.
fn reference() -> outputs::OutputRows {
    let path = root().join("fixtures/models/minilm.expected.safetensors");
    let array = Array::read(&path, &["embeddings"]).unwrap();
    let Values::Floats(values) = array.values else { panic!("not floats") };
    outputs::OutputRows { width: array.shape[1], values, ..outputs::OutputRows::default() }
}

/// Checks weight-only int8 as stored and served: every matrix, including embeddings.
fn check_weight_only(
    model: &LoadedModel,
    path: &Path,
    plain: &outputs::OutputRows,
    sentences: &Sentences,
    how: Batching,
) {
    let dir = tempfile::tempdir().unwrap();
    let rules = Compression::new().quantize(Quantize::new("**", "int8").unwrap());
    let network = rules.attach(model.network.clone()).unwrap();
    Export::to(dir.path().join("out")).names(model.names.clone()).like(path).write(&network).unwrap();
    let served = LoadedModel::open(&dir.path().join("out"), None, &Device::default()).unwrap();
    let held = held(&served.network);
    assert!(held["int8 weight-only"].n_tensors == 36 && held["int8 table"].n_tensors == 3, "{held:?}");
    let found = outputs::embed(&served, sentences, how, &mut |_, _| Ok(())).unwrap();
    let cosines = cosines(plain, &found);
    let mean = metrics::mean(cosines.iter().copied());
    println!("int8: cosine {mean}, at least {:?}", cosines.iter().copied().fold(1.0, f64::min));
    assert!(mean >= 0.9995, "{mean}");
}

/// Checks dynamic int8 as served: its size and the quality of its embeddings.
fn check_dynamic(model: &LoadedModel, plain: &outputs::OutputRows, sentences: &Sentences, how: Batching) {
    let network = quantize_dynamic(model.network.clone(), &DynamicSpec::new()).unwrap().module;
    let n_bytes: usize = held(&network).values().map(|held| held.n_bytes).sum();
    let served = LoadedModel { network, ..model.clone() };
    let found = outputs::embed(&served, sentences, how, &mut |_, _| Ok(())).unwrap();
    let cosines = cosines(plain, &found);
    let (mean, least) = (metrics::mean(cosines.iter().copied()), cosines.iter().copied().fold(1.0, f64::min));
    let pairs = |outputs: &outputs::OutputRows| metrics::pair_cosines(&outputs.values, outputs.width);
    let spearman = metrics::spearman(&pairs(plain), &pairs(&found)).unwrap();
    println!("dynamic int8: {n_bytes} bytes, cosine {mean}, at least {least}, Spearman {spearman}");
    assert!(n_bytes <= 23_500_000, "{n_bytes}");
    assert!(mean >= 0.9985 && least >= 0.9975 && spearman >= 0.998, "{mean} {least} {spearman}");
}

#[test]
fn minilm_loads_within_memory_and_keeps_quality_in_int8() {
    let Some(path) = minilm() else { return };
    let weights = std::fs::metadata(path.join("model.safetensors")).unwrap().len();
    let before = ResidentSet.live_bytes().unwrap_or(0);
    let device = Device::default();
    let model = LoadedModel::open(&path, None, &device).unwrap();
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
    check_weight_only(&model, &path, &plain, &sentences, how);
}
