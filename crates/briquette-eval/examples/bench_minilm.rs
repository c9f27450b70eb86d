//! Times a sentence encoder in float, dynamic int8 and sparse dynamic int8. Prints a line of JSON for each.
//!
//! `bench_minilm [--model models/minilm] [--batches 1,32] [--length 128] [--seconds 3] [--kinds
//! f32,int8,sparse] [--sentences bench/peers/sentences.txt]`; `RAYON_NUM_THREADS` sets the number of threads. A
//! kind may also be the path of a directory that Briquette wrote.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_eval::{metrics, outputs};
use briquette_models::LoadedModel;
use briquette_models::batches::Batching;
use briquette_models::data::Sentences;
use briquette_nn::{Compression, DynamicSpec, Prune, held, quantize_dynamic};
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};
use std::time::Instant;

struct Options {
    model: PathBuf,
    batches: Vec<usize>,
    length: usize,
    seconds: f64,
    kinds: Vec<String>,
    sentences: PathBuf,
}

fn main() {
    let options = options();
    let sentences = Sentences::read_lines(&options.sentences).unwrap();
    let mut reference = None;
    for kind in &options.kinds {
        let model = model_of(kind, &options.model);
        let embedded = embed(&model, &sentences);
        let fidelity = reference.as_ref().map_or_else(|| "null".to_string(), |plain| fidelity(plain, &embedded));
        reference.get_or_insert(embedded);
        let held = held(&model.network);
        let n_bytes: usize = held.values().map(|held| held.n_bytes).sum();
        let threads = std::env::var("RAYON_NUM_THREADS").unwrap_or_default();
        for &batch in &options.batches {
            let (best, median) = time(&model, batch, &options);
            println!(
                "{{\"what\":\"{kind}\",\"batch\":{batch},\"ms\":{best:.3},\"median_ms\":{median:.3},\"bytes\":{n_bytes},\
                 \"threads\":\"{threads}\",\"fidelity\":{fidelity},\"held\":{}}}",
                serde_json::to_string(&held).unwrap()
            );
        }
    }
}

fn options() -> Options {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, usual: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.map_or_else(|| usual.to_string(), |at| args[at + 1].clone())
    };
    Options {
        model: value("--model", "models/minilm").into(),
        batches: value("--batches", "1,32").split(',').map(|batch| batch.parse().unwrap()).collect(),
        length: value("--length", "128").parse().unwrap(),
        seconds: value("--seconds", "3").parse().unwrap(),
        kinds: value("--kinds", "f32,int8,sparse").split(',').map(str::to_string).collect(),
        sentences: value("--sentences", "bench/peers/sentences.txt").into(),
    }
}

fn model_of(kind: &str, path: &Path) -> LoadedModel {
    let device = Device::default();
    let open = |path: &Path| LoadedModel::open(path, None, &device).unwrap();
    match kind {
        "f32" => open(path),
        "int8" => {
            let model = open(path);
            let network = quantize_dynamic(model.network, &DynamicSpec::new().dense()).unwrap().module;
            LoadedModel { network, ..model }
        }
        "sparse" => {
            let model = open(path);
            let rules = Compression::new().prune(Prune::new("**.encoder.**.weight", 0.4).unwrap());
            let network = rules.attach(model.network).unwrap().materialize();
            LoadedModel { network: quantize_dynamic(network, &DynamicSpec::new()).unwrap().module, ..model }
        }
        directory => open(Path::new(directory)),
    }
}

fn embed(model: &LoadedModel, sentences: &Sentences) -> outputs::OutputRows {
    outputs::embed(model, sentences, Batching { batch_size: 8, workers: 0 }, &mut |_, _| Ok(())).unwrap()
}

fn fidelity(plain: &outputs::OutputRows, found: &outputs::OutputRows) -> String {
    let rows = plain.values.chunks(plain.width).zip(found.values.chunks(found.width));
    let cosines: Vec<f64> = rows.map(|(a, b)| metrics::cosine(a, b)).collect();
    let pairs = |outputs: &outputs::OutputRows| metrics::pair_cosines(&outputs.values, outputs.width);
    let spearman = metrics::spearman(&pairs(plain), &pairs(found)).unwrap();
    let (mean, min) = (metrics::mean(cosines.iter().copied()), cosines.iter().copied().fold(1.0, f64::min));
    format!("{{\"cosine\":{mean:.5},\"cosine_min\":{min:.5},\"spearman\":{spearman:.5}}}")
}

/// Returns the best and median milliseconds of a batch of full length.
fn time(model: &LoadedModel, batch: usize, options: &Options) -> (f64, f64) {
    let (device, shape) = (Device::default(), [batch, options.length]);
    let ids: Vec<i32> = (0..batch * options.length).map(|i| 1000 + (i * 7919 % 20_000) as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &device);
    let padding = Tensor::<2, Bool>::from_data(TensorData::new(vec![false; batch * options.length], shape), &device);
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 7 || start.elapsed().as_secs_f64() < options.seconds {
        let call = Instant::now();
        let states = model.network.encode(ids.clone(), padding.clone());
        std::hint::black_box(states.into_data());
        times.push(call.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}
