//! Compares curvatures with the measured loss of noise in the weights.

#![allow(clippy::print_stdout)]

use briquette_core::random::uniform;
use briquette_eval::evaluate::{RunOutputs, run};
use briquette_eval::layerwise::Room;
use briquette_eval::outputs::OutputRows;
use briquette_eval::{Curvatures, LossUnit, Samples, curvatures, metrics};
use briquette_formats::Checkpoint;
use briquette_models::batches::Batching;
use briquette_models::data::DataSpec;
use briquette_models::{Arch, LoadedModel};
use briquette_nn::module::Trail;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

/// Returns the path of a fixture, or an absolute path.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Returns the mean curvatures of several seeds.
fn traces(model: &str, spec: &DataSpec) -> Curvatures {
    let checkpoint = Checkpoint::open(&fixture(model)).unwrap();
    let arch = Arch::detect(&checkpoint).unwrap();
    let (data, device) = (spec.open(arch.task()).unwrap(), Device::flex());
    let room = Room { max_bytes: Some(10_000), ..Room::new(Path::new("/tmp")) };
    let of_seed = |seed| {
        let how = (Samples { n: usize::MAX, seed }, room);
        curvatures(&checkpoint, arch, &device, (&data, spec), how, &mut |_, _| Ok(())).unwrap()
    };
    const N: u64 = 16;
    let mut found = of_seed(0);
    for seed in 1..N {
        let other = of_seed(seed);
        for (name, trace) in &mut found.traces {
            *trace += other.traces[name];
        }
    }
    found.traces.values_mut().for_each(|trace| *trace /= N as f64);
    found
}

/// Adds uniform noise of a step size to the parameter at a path.
struct Noise<'a> {
    path: &'a str,
    step: f32,
    seed: u64,
    trail: Trail,
}

impl ModuleMapper for Noise<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.trail.path() != self.path {
            return param;
        }
        let (step, seed) = (self.step, self.seed);
        param.map(|tensor| {
            let n = tensor.dims().iter().product();
            let noise: Vec<f32> = (0..n).map(|at| (uniform(seed, at as u64) - 0.5) * step).collect();
            let noise = TensorData::new(noise, tensor.dims());
            let device = tensor.device();
            tensor + Tensor::from_data(noise, &device)
        })
    }
}

/// Compares `trace·Δ²/24` of every matrix with the loss that noise of that step size causes.
fn check(model: &str, found: &Curvatures, step: f32, loss: impl Fn(&LoadedModel, &LoadedModel) -> f64) {
    let original = LoadedModel::open(&fixture(model), None, &Device::flex()).unwrap();
    let parameters = original.names.parameters(&original.network).unwrap();
    let (mut logs, mut n) = (0.0, 0);
    for parameter in parameters.iter().filter(|parameter| parameter.shape.0.len() >= 2) {
        let Some(trace) = found.traces.get(&original.names.file_name(parameter)) else { continue };
        let of_seed = |seed| {
            let mut noise = Noise { path: &parameter.path, step, seed, trail: Trail::default() };
            let network = original.network.clone().map(&mut noise);
            loss(&original, &LoadedModel { network, ..original.clone() })
        };
        let measured = (0..8).map(of_seed).sum::<f64>() / 8.0;
        let expected = trace * f64::from(step * step) / 24.0;
        println!("{}: {measured:.3e} of {expected:.3e}: {:.2}", parameter.path, measured / expected);
        if expected > 1e-9 {
            assert!((0.4..2.5).contains(&(measured / expected)), "{}: {measured} of {expected}", parameter.path);
            (logs, n) = (logs + (measured / expected).ln(), n + 1);
        }
    }
    let mean = (logs / f64::from(n)).exp();
    assert!(n > 2 && (0.8..1.25).contains(&mean), "{mean} over {n}");
}

/// Runs a model whose outputs are rows: embeddings or logits of classes.
fn rows_of(model: &LoadedModel, spec: &DataSpec) -> OutputRows {
    let data = spec.open(model.arch.task()).unwrap();
    match run(model, &data, spec, Batching::default(), &mut |_, _| Ok(())).unwrap() {
        RunOutputs::Rows(rows) => rows,
        _ => panic!("expected rows"),
    }
}

#[test]
fn curvatures_predict_the_cosine_loss_of_an_encoder() {
    let spec = DataSpec { path: fixture("models/sentences.txt"), ..DataSpec::default() };
    let found = traces("models/bert-tiny", &spec);
    assert_eq!(found.unit, LossUnit::Cosine);
    check("models/bert-tiny", &found, 0.01, |original, noisy| {
        let (a, b) = (rows_of(original, &spec), rows_of(noisy, &spec));
        let pairs = a.values.chunks(a.width).zip(b.values.chunks(b.width));
        1.0 - metrics::mean(pairs.map(|(a, b)| metrics::cosine(a, b)))
    });
}

/// Copies a classifier of texts, with a tokenizer of words.
fn classifier_of_words(name: &str, to: &Path) {
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("families").join(name).join(file), to.join(file)).unwrap();
    }
    let words = ["<unk>", "a", "cat", "sat", "on", "the", "mat", "and", "dog", "ran"];
    let vocab: serde_json::Map<String, serde_json::Value> =
        words.into_iter().enumerate().map(|(id, word)| (word.to_string(), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
    });
    std::fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let word = |at: usize| words[1 + (uniform(3, at as u64) * 9.0) as usize];
    let line = |at: usize| (0..3 + at % 6).map(|i| word(at * 10 + i)).collect::<Vec<&str>>().join(" ");
    let lines = (0..48).map(line).collect::<Vec<String>>().join("\n");
    std::fs::write(to.join("lines.txt"), lines).unwrap();
}

#[test]
fn curvatures_predict_the_divergence_of_a_classifier_of_texts_or_tokens() {
    for (name, head) in [("albert-classify", "classifier.weight"), ("bert-tokens", "classifier.weight")] {
        let dir = tempfile::tempdir().unwrap();
        classifier_of_words(name, dir.path());
        let (model, spec) =
            (dir.path().to_str().unwrap(), DataSpec { path: dir.path().join("lines.txt"), ..DataSpec::default() });
        let found = traces(model, &spec);
        assert_eq!(found.unit, LossUnit::Nats);
        assert!(found.traces[head] > 0.0, "{name}: {:?}", found.traces);
        check(model, &found, 0.01, |original, noisy| {
            let (a, b) = (rows_of(original, &spec), rows_of(noisy, &spec));
            metrics::kl(&a.values, &b.values, a.width)
        });
    }
}

#[test]
fn curvatures_predict_the_divergence_of_a_decoder() {
    for model in ["models/llama-tied", "models/llama-untied"] {
        let spec = DataSpec { path: fixture("models/text.txt"), max_length: Some(16), ..DataSpec::default() };
        let found = traces(model, &spec);
        assert_eq!(found.unit, LossUnit::Nats);
        let text = std::fs::read_to_string(&spec.path).unwrap();
        let tokens = LoadedModel::open(&fixture(model), None, &Device::flex()).unwrap();
        let tokens = tokens.tokenizer().unwrap().encode_all(&text).unwrap().ids;
        let scores = |model: &LoadedModel| {
            let mut found = Vec::new();
            for window in tokens.chunks(16).filter(|window| window.len() > 1) {
                let ids: Vec<i32> = window.iter().map(|&id| id as i32).collect();
                let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, window.len()]), &Device::flex());
                found.extend(model.network.decode(ids).into_data().try_into_vec_as::<f32>().unwrap());
            }
            found
        };
        check(model, &found, 0.01, |original, noisy| {
            metrics::kl(&scores(original), &scores(noisy), original.network.as_decoder().vocab_size())
        });
    }
}

#[test]
fn curvatures_predict_the_divergence_of_a_classifier() {
    let spec = DataSpec { path: fixture("digits-data.safetensors"), ..DataSpec::default() };
    let found = traces("digits", &spec);
    check("digits", &found, 0.02, |original, noisy| {
        let (a, b) = (rows_of(original, &spec), rows_of(noisy, &spec));
        metrics::kl(&a.values, &b.values, a.width)
    });
}
