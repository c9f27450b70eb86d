//! Times a decoder on windows of tokens and on single tokens. Prints a line of JSON for each.
//!
//! `bench_decoder MODEL [--windows 128,512] [--prompt 128] [--steps 64] [--seconds 3] [--tokens FILE]`;
//! `RAYON_NUM_THREADS` sets the number of threads. FILE has a JSON list of tokens; without it, tokens are
//! synthetic. The time of a window is from tokens to the likelihood of each token on the host. With
//! `--bandwidth` instead of MODEL, it prints the memory read bandwidth of one thread.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_eval::likelihood::nll_of;
use briquette_models::{CacheType, LoadedModel};
use briquette_nn::held;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, usual: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.map_or_else(|| usual.to_string(), |at| args[at + 1].clone())
    };
    if args[0] == "--bandwidth" {
        return println!("{{\"read_gb_per_s\":{:.2}}}", read_bandwidth());
    }
    let model = LoadedModel::open(Path::new(&args[0]), None, &Device::default()).unwrap();
    let given = value("--tokens", "");
    let tokens: Vec<u32> = match given.as_str() {
        "" => (0..1024).map(|i| 1000 + i * 7919 % 20_000).collect(),
        path => serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap(),
    };
    let n_bytes: usize = held(&model.network).values().map(|held| held.n_bytes).sum();
    let print = |what: &str, [ms, median_ms, cpu_ms]: [f64; 3], nll: f64| {
        let peak = peak_resident();
        println!(
            "{{\"what\":\"{what}\",\"ms\":{ms:.4},\"median_ms\":{median_ms:.4},\"cpu_ms\":{cpu_ms:.4},\"held_bytes\":{n_bytes},\"peak_bytes\":{peak},\"nll\":{nll:.6}}}"
        );
    };
    for window in value("--windows", "128,512").split(',').filter(|n| !n.is_empty()) {
        let n: usize = window.parse().unwrap();
        let mut nll = 0.0;
        let times = times(value("--seconds", "3").parse().unwrap(), || nll = nll_of(&model, &tokens[..n]).unwrap());
        print(&format!("window {n}"), times, nll / (n - 1) as f64);
    }
    let (prompt, steps) = (value("--prompt", "128").parse().unwrap(), value("--steps", "64").parse().unwrap());
    if steps > 0 {
        print(&format!("token after {prompt}"), one_by_one(&model, &tokens[..prompt], steps), 0.0);
    }
}

/// Returns the best, median and mean CPU milliseconds of calls.
fn times(seconds: f64, mut call: impl FnMut()) -> [f64; 3] {
    call();
    let (start, cpu, mut each) = (Instant::now(), cpu_ms(), Vec::new());
    while each.len() < 5 || start.elapsed().as_secs_f64() < seconds {
        let begun = Instant::now();
        call();
        each.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let cpu = (cpu_ms() - cpu) / each.len() as f64;
    each.sort_by(f64::total_cmp);
    [each[0], each[each.len() / 2], cpu]
}

/// Returns the same times for generating tokens one at a time.
fn one_by_one(model: &LoadedModel, prompt: &[u32], steps: usize) -> [f64; 3] {
    let decoder = model.network.as_decoder();
    let mut caches = [decoder.key_values(CacheType::F32)];
    let mut next = |tokens: &[u32]| {
        let ids: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, tokens.len()]), &Device::default());
        let state = decoder.next_state(ids, &mut caches).narrow(1, tokens.len() - 1, 1);
        let scores = decoder.scores(state).into_data();
        let scores = scores.as_slice::<f32>().unwrap();
        let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        best.0 as u32
    };
    let mut token = next(prompt);
    let (cpu, mut each) = (cpu_ms(), Vec::new());
    for _ in 0..steps {
        let begun = Instant::now();
        token = next(&[token]);
        each.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let cpu = (cpu_ms() - cpu) / steps as f64;
    each.sort_by(f64::total_cmp);
    [each[0], each[each.len() / 2], cpu]
}

/// Returns the CPU milliseconds of all threads.
fn cpu_ms() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = tasks.map(|task| {
        let figures = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        figures.split(' ').next().unwrap().parse::<f64>().unwrap()
    });
    nanoseconds.sum::<f64>() / 1e6
}

fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Returns the memory read bandwidth of one thread in GB/s, on data larger than any cache.
fn read_bandwidth() -> f64 {
    let values = vec![1_u64; 1 << 26];
    let n_bytes = 8.0 * values.len() as f64;
    let sum = || {
        values.chunks_exact(32).fold([0_u64; 32], |mut sums, chunk| {
            sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
            sums
        })
    };
    let best = (0..9).map(|_| {
        let begun = Instant::now();
        black_box(sum());
        begun.elapsed().as_secs_f64()
    });
    n_bytes / best.fold(f64::MAX, f64::min) / 1e9
}
