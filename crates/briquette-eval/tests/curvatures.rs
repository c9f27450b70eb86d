//! Compares curvatures with the measured loss of noise in the weights.

#![allow(clippy::print_stdout)]

use briquette_core::random::uniform;
use briquette_eval::evaluate::{RunOutputs, run};
use briquette_eval::layerwise::Room;
use briquette_eval::outputs::OutputRows;
use briquette_eval::{Curvatures, Gathering, LossUnit, Samples, calibrate, curvatures, metrics};
use briquette_formats::Checkpoint;
use briquette_models::batches::Batching;
use briquette_models::data::DataSpec;
use briquette_models::{Arch, LoadedModel};
use briquette_nn::module::{Trail, read_f32};
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

/// Changes the elements of the parameter at a path, by their places in burn's order.
struct Changed<'a, F: Fn(usize, f32) -> f32> {
    path: &'a str,
    change: F,
    trail: Trail,
}

impl<F: Fn(usize, f32) -> f32> ModuleMapper for Changed<'_, F> {
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
        param.map(|tensor| {
            let (dims, device) = (tensor.dims(), tensor.device());
            let values = read_f32(tensor, "a parameter").unwrap();
            let values = values.into_iter().enumerate().map(|(at, value)| (self.change)(at, value));
            Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), dims), &device)
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
            let change = |at: usize, value: f32| value + (uniform(seed, at as u64) - 0.5) * step;
            let mut noise = Changed { path: &parameter.path, change, trail: Trail::default() };
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

#[test]
fn the_importance_of_an_input_predicts_the_loss_of_a_smaller_one() {
    const LAYER: &str = "encoder.layer.1.output.dense";
    const LESS: f32 = 0.1;
    let spec = DataSpec { path: fixture("models/sentences.txt"), ..DataSpec::default() };
    let checkpoint = Checkpoint::open(&fixture("models/bert-tiny")).unwrap();
    let arch = Arch::detect(&checkpoint).unwrap();
    let (data, device, n_seeds) = (spec.open(arch.task()).unwrap(), Device::flex(), 24);
    let of_seed = |seed| {
        let samples = Samples { n: usize::MAX, seed };
        let room = Room::new(Path::new("/tmp"));
        let gathering = Gathering { samples, has_gram: false, has_gradients: true, room };
        calibrate(&checkpoint, arch, &device, (&data, &spec), gathering, &mut |_, _| Ok(())).unwrap()
    };
    let first = of_seed(0);
    for (layer, stats) in &first.layers {
        assert_eq!(stats.importance.len(), stats.n_inputs(), "{layer}");
    }
    let mut importance = first.layers[LAYER].importance.clone();
    for seed in 1..n_seeds {
        let other = &of_seed(seed).layers[LAYER].importance;
        importance.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
    }
    let original = LoadedModel::open(&fixture("models/bert-tiny"), None, &device).unwrap();
    let parameters = original.names.parameters(&original.network).unwrap();
    let name = format!("{LAYER}.weight");
    let parameter = parameters.iter().find(|one| original.names.file_name(one) == name).unwrap();
    let before = rows_of(&original, &spec);
    let mut logs = Vec::new();
    for input in (0..importance.len()).step_by(5) {
        // burn stores [in, out].
        let is_of_input = |at: usize| at / parameter.shape.0[1] == input;
        let change = |at: usize, value: f32| if is_of_input(at) { value * (1.0 - LESS) } else { value };
        let mut scaled = Changed { path: &parameter.path, change, trail: Trail::default() };
        let network = original.network.clone().map(&mut scaled);
        let after = rows_of(&LoadedModel { network, ..original.clone() }, &spec);
        let pairs = before.values.chunks(before.width).zip(after.values.chunks(after.width));
        let measured = 1.0 - metrics::mean(pairs.map(|(a, b)| metrics::cosine(a, b)));
        let per_item = importance[input] / f64::from(n_seeds as u32) / first.n_items as f64;
        let expected = 0.5 * f64::from(LESS * LESS) * per_item;
        println!("{input}: {measured:.3e} of {expected:.3e}: {:.2}", measured / expected);
        if expected > 1e-9 {
            logs.push((measured / expected).ln());
        }
    }
    let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    assert!(logs.len() > 4 && (0.75..1.33).contains(&mean), "{mean} over {}", logs.len());
}
