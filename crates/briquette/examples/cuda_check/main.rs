//! Checks the CUDA kernels on a GPU and measures them: `cuda_check MINILM_INT8 [--out FILE.json] [--quick]`.
//!
//! MINILM_INT8 is an int8 output of MiniLM. The checks compare:
//!
//! - every kernel with dot products on the device and on the CPU
//! - compressed parameters with the decoded files of the same parameters
//! - graphs of an encoder, convolutional networks and a decoder with cached keys with their outputs on the CPU
//! - MiniLM and ResNet-152 with their outputs on the CPU
//!
//! Memory and speed are measured afterwards. Failures are listed first, and the exit code is then 1. `--quick`
//! uses small shapes, for an emulated device, and does not measure speed.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod findings;
mod graphs;
mod kernels;
mod law;
mod models;
mod speed;

use burn::tensor::Device;
use findings::Findings;

/// Command line options.
pub(crate) struct Options {
    minilm: String,
    out: Option<String>,
    is_quick: bool,
}

fn main() {
    let options = options();
    let device = match briquette::models::device("cuda:0") {
        Ok(device) => device,
        Err(error) => {
            eprintln!("cuda_check: {error}");
            std::process::exit(error.exit_code().into());
        }
    };
    let cpu = Device::flex();
    let mut findings = Findings::default();
    findings.section("kernels", || kernels::check(&device, &cpu, &options));
    findings.section("law", || law::check(&device));
    findings.section("models", || models::check(&device, &cpu, &options));
    if !options.is_quick {
        findings.section("speed", || speed::measure(&device, &options));
    }
    findings.section("distillation", || models::distill(&device, &options));
    findings.print();
    if let Some(path) = &options.out {
        std::fs::write(path, findings.to_json()).unwrap();
    }
    std::process::exit(i32::from(findings.has_failed()));
}

fn options() -> Options {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).cloned();
    let Some(minilm) = args.first().filter(|arg| !arg.starts_with('-')).cloned() else {
        eprintln!("usage: cuda_check MINILM_INT8 [--out FILE.json] [--quick]");
        std::process::exit(2);
    };
    Options { minilm, out: after("--out"), is_quick: args.iter().any(|arg| arg == "--quick") }
}
