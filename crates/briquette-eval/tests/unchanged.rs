//! Compares the cost of changed weights with an evaluation of a model with these weights.

use briquette_core::DType;
use briquette_core::random::uniform;
use briquette_eval::layerwise::Room;
use briquette_eval::{Baseline, ChangeCost, Fits, LossMeasure, ModelOnData, Request, Samples, curvatures, evaluate};
use briquette_formats::{Checkpoint, TensorSource, safetensors};
use briquette_models::Arch;
use briquette_models::batches::Batching;
use briquette_models::data::DataSpec;
use burn::tensor::Device;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() { copy(&path, &to) } else { std::fs::copy(&path, to).map(drop).unwrap() }
    }
}

/// Returns the same model with uniform noise of a step size in one tensor.
fn noisy(model: &Path, tensor: &str, step: f32, seed: u64, to: &Path) -> Checkpoint {
    copy(model, to);
    let checkpoint = Checkpoint::open(model).unwrap();
    let mut tensors = BTreeMap::new();
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes).unwrap();
        if info.name == tensor {
            assert_eq!(info.dtype, DType::F32);
            for (at, value) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let noise = (uniform(seed, at as u64) - 0.5) * step;
                *value = (f32::from_le_bytes(*value) + noise).to_le_bytes();
            }
        }
        tensors.insert(info.name.to_string(), (info.dtype, info.shape.0.clone(), bytes));
    }
    std::fs::write(to.join("model.safetensors"), safetensors::to_file(&tensors).unwrap()).unwrap();
    Checkpoint::open(to).unwrap()
}

/// Returns the cost of each of these changed models, and the unit of the losses.
fn costs(model: &Path, spec: &DataSpec, by: LossMeasure, changed: &[&Checkpoint]) -> (Vec<ChangeCost>, &'static str) {
    let (checkpoint, device) = (Checkpoint::open(model).unwrap(), Device::flex());
    let arch = Arch::detect(&checkpoint).unwrap();
    let data = spec.open(arch.task()).unwrap();
    let room = Room::new(Path::new("/tmp"));
    let (over, samples) = ((&data, spec), Samples::ALL);
    let of = ModelOnData { checkpoint: &checkpoint, arch, device: &device, over, samples, room };
    let original = Baseline::run(of, by, &mut |_, _| Ok(())).unwrap();
    let cost = |changed: &&Checkpoint| original.cost(*changed, &mut |_, _| Ok(())).unwrap();
    (changed.iter().map(cost).collect(), original.unit().unwrap())
}

fn metrics(changed: &Path, original: &Path, spec: &DataSpec) -> BTreeMap<String, f64> {
    let request = Request {
        model: changed.to_path_buf(),
        reference: Some(original.to_path_buf()),
        choice: Default::default(),
        arch: None,
        data: spec.clone(),
        batching: Batching { batch_size: 7, workers: 0 },
        fits: Fits::default(),
        offload: None,
        device: Device::flex(),
    };
    evaluate(&request, &[], &mut |_, _| Ok(())).unwrap().metrics
}

/// Compares the cost of noise in each of these tensors with a metric of the noisy model.
fn check(
    model: &str,
    spec: &DataSpec,
    by: LossMeasure,
    unit: &str,
    tensors: &[&str],
    loss: impl Fn(&BTreeMap<String, f64>) -> f64,
) {
    let (model, directory) = (fixture(model), tempfile::tempdir().unwrap());
    let changed: Vec<Checkpoint> =
        tensors.iter().map(|name| noisy(&model, name, 0.4, 5, &directory.path().join(name))).collect();
    let (found, found_unit) = costs(&model, spec, by, &changed.iter().collect::<Vec<_>>());
    assert_eq!(found_unit, unit);
    for (name, cost) in tensors.iter().zip(found) {
        let expected = loss(&metrics(&directory.path().join(name), &model, spec));
        assert!(cost.is_seen && (by == LossMeasure::Metric || cost.loss > 1e-9), "{name}: {cost:?}");
        assert!((cost.loss - expected).abs() < 1e-4 * expected.abs() + 1e-6, "{name}: {cost:?} of {expected}");
    }
    let same = Checkpoint::open(&model).unwrap();
    let (found, _) = costs(&model, spec, by, &[&same]);
    assert!(!found[0].is_seen && found[0].loss.abs() < 1e-10, "{found:?}");
}

const OF_LLAMA: [&str; 4] = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.norm.weight",
];

#[test]
fn the_divergence_of_a_decoder_matches_an_evaluation() {
    let spec = DataSpec { path: fixture("models/text.txt"), max_length: Some(16), ..DataSpec::default() };
    check("models/llama-tied", &spec, LossMeasure::Kl, "nats", &OF_LLAMA, |found| found["kl"]);
    let heads = ["lm_head.weight", "model.layers.0.mlp.up_proj.weight"];
    check("models/llama-untied", &spec, LossMeasure::Kl, "nats", &heads, |found| found["kl"]);
}

#[test]
fn the_metric_of_a_decoder_is_log_perplexity() {
    let spec = DataSpec { path: fixture("models/text.txt"), max_length: Some(16), ..DataSpec::default() };
    check("models/llama-tied", &spec, LossMeasure::Metric, "ln perplexity", &OF_LLAMA, |found| {
        (found["perplexity"] / found["reference_perplexity"]).ln()
    });
}

#[test]
fn a_classifier_has_divergence_cosine_and_accuracy() {
    let spec = DataSpec { path: fixture("digits-data.safetensors"), ..DataSpec::default() };
    let tensors = ["conv1.weight", "fc2.weight"];
    check("digits", &spec, LossMeasure::Kl, "nats", &tensors, |found| found["kl"]);
    check("digits", &spec, LossMeasure::Cosine, "1 - cosine", &tensors, |found| 1.0 - found["cosine"]);
    check("digits", &spec, LossMeasure::Metric, "accuracy", &tensors, |found| {
        found["reference_accuracy"] - found["accuracy"]
    });
}

#[test]
fn an_encoder_has_cosine_and_pair_ratings() {
    let spec = DataSpec { path: fixture("models/sentences.txt"), ..DataSpec::default() };
    let tensors = ["encoder.layer.0.attention.self.query.weight", "embeddings.word_embeddings.weight"];
    check("models/bert-tiny", &spec, LossMeasure::Cosine, "1 - cosine", &tensors, |found| 1.0 - found["cosine"]);
    let texts = std::fs::read_to_string(&spec.path).unwrap();
    let texts: Vec<&str> = texts.lines().filter(|line| !line.trim().is_empty()).collect();
    let pair = |(at, two): (usize, &[&str])| {
        format!("{{\"sentence1\": {:?}, \"sentence2\": {:?}, \"score\": {}}}\n", two[0], two[1], at * 7 % 5)
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pairs.jsonl");
    std::fs::write(&path, texts.windows(2).enumerate().map(pair).collect::<String>()).unwrap();
    let spec = DataSpec { path, ..DataSpec::default() };
    check("models/bert-tiny", &spec, LossMeasure::Metric, "sts_spearman", &tensors, |found| {
        found["reference_sts_spearman"] - found["sts_spearman"]
    });
}

#[test]
fn gradients_predict_the_cost_of_small_noise() {
    let (model, step) = (fixture("models/llama-tied"), 0.02);
    let spec = DataSpec { path: fixture("models/text.txt"), max_length: Some(16), ..DataSpec::default() };
    let checkpoint = Checkpoint::open(&model).unwrap();
    let arch = Arch::detect(&checkpoint).unwrap();
    let (data, room) = (spec.open(arch.task()).unwrap(), Room::new(Path::new("/tmp")));
    let of_seed = |seed| {
        let how = (Samples { n: usize::MAX, seed }, room);
        curvatures(&checkpoint, arch, &Device::flex(), (&data, &spec), how, &mut |_, _| Ok(())).unwrap().traces
    };
    let draws: Vec<BTreeMap<String, f64>> = (0..16).map(of_seed).collect();
    let directory = tempfile::tempdir().unwrap();
    for name in OF_LLAMA.into_iter().filter(|name| !name.contains("norm")) {
        let trace = draws.iter().map(|traces| traces[name]).sum::<f64>() / draws.len() as f64;
        let changed: Vec<Checkpoint> = (0..8)
            .map(|seed| noisy(&model, name, step, seed, &directory.path().join(format!("{name}{seed}"))))
            .collect();
        let (found, _) = costs(&model, &spec, LossMeasure::Kl, &changed.iter().collect::<Vec<_>>());
        let measured = found.iter().map(|cost| cost.loss).sum::<f64>() / 8.0;
        let expected = trace * f64::from(step * step) / 24.0;
        assert!((0.6..1.6).contains(&(measured / expected)), "{name}: {measured} of {expected}");
    }
}

#[test]
fn losses_that_a_task_lacks_are_refused() {
    use briquette_models::ModelTask::{Classifier, Decoder, Encoder};
    let open = |name: &str, task| DataSpec { path: fixture(name), ..DataSpec::default() }.open(task).unwrap();
    let (text, sentences) = (open("models/text.txt", Decoder), open("models/sentences.txt", Encoder));
    let (digits, unlabelled) = (open("digits-data.safetensors", Classifier), open("models/x.npy", Classifier));
    let cases = [
        (LossMeasure::Cosine, Decoder, &text, "use \"kl\" or \"metric\""),
        (LossMeasure::Kl, Encoder, &sentences, "use \"cosine\" or \"metric\""),
        (LossMeasure::Metric, Encoder, &sentences, "no pairs with a score"),
        (LossMeasure::Metric, Classifier, &unlabelled, "no labels"),
    ];
    for (by, task, data, phrase) in cases {
        let error = by.check(task, data).unwrap_err();
        assert!(error.to_string().contains(phrase) && error.exit_code() == 2, "{error}");
    }
    for (by, task, data) in [
        (LossMeasure::Metric, Decoder, &text),
        (LossMeasure::Metric, Classifier, &digits),
        (LossMeasure::Cosine, Classifier, &unlabelled),
        (LossMeasure::Kl, Classifier, &unlabelled),
    ] {
        by.check(task, data).unwrap();
    }
}
