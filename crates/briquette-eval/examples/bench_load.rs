//! Times loading models from cached files to ready layers.
//!
//! Prints a line of JSON with the median for each model.
//!
//! `bench_load MODEL... [--rounds 7]` takes the models in
//! turn; `RAYON_NUM_THREADS` sets the number of threads.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_models::LoadedModel;
use briquette_nn::held;
use burn::tensor::Device;
use std::path::Path;
use std::time::Instant;

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let at = args.iter().position(|arg| arg == "--rounds");
    let n_rounds = at.map_or(7, |at| args.drain(at..at + 2).next_back().unwrap().parse().unwrap());
    let mut found = vec![(Vec::new(), 0); args.len()];
    for _ in 0..n_rounds {
        for (path, (times, n_bytes)) in args.iter().zip(&mut found) {
            let begun = Instant::now();
            let model = LoadedModel::open(Path::new(path), None, &Device::default()).unwrap();
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            *n_bytes = held(&model.network).values().map(|held| held.n_bytes).sum();
        }
    }
    for (path, (mut times, n_bytes)) in args.iter().zip(found) {
        times.sort_by(f64::total_cmp);
        let ms = times[times.len() / 2];
        println!("{{\"model\":\"{path}\",\"ms\":{ms:.2},\"held_bytes\":{n_bytes}}}");
    }
}
