//! Checks the CUDA kernels on a GPU and measures them: `cuda_check MINILM_INT8 [--section NAME] [--out FILE.json] [--quick]`.
//!
//! MINILM_INT8 is an int8 output of MiniLM. The checks compare:
//!
//! - every kernel with dot products on the device and on the CPU
//! - compressed parameters with the decoded files of the same parameters
//! - graphs of an encoder, convolutional networks and a decoder with cached keys with their outputs on the CPU
//! - MiniLM and ResNet-152 with their outputs on the CPU
//!
//! Memory and speed are measured afterwards. Failures are listed first, and the exit code is then 1. `--quick`
//! uses small shapes, for an emulated device, and does not measure speed. `--sections` lists the names of the sections.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod findings;
mod graphs;
mod kernels;
mod law;
mod models;
mod speed;

use burn::tensor::Device;
use findings::{Finding, Findings};

/// A part of the check, in a process of its own where `bench/cuda_check.py` runs it: after some errors, a device refuses all
/// later work of a process.
type Section = fn(&Device, &Device, &Options) -> Vec<Finding>;

const SECTIONS: [(&str, Section); 17] = [
    ("products", kernels::products),
    ("linear", kernels::linear),
    ("weight-only", kernels::weight_only),
    ("convolutions", kernels::convolutions),
    ("embedding", kernels::embedding),
    ("NaN", kernels::nan_rows),
    ("law", law::check),
    ("graphs", models::graphs),
    ("MiniLM", models::minilm),
    ("ResNet", models::resnet),
    ("distillation", models::distill),
    ("speed of kernels", speed::kernels),
    ("speed of products", speed::products),
    ("speed of few rows", speed::few_rows),
    ("speed of MiniLM", speed::minilm),
    ("speed of a decoder", speed::decoder),
    ("speed of ResNet", speed::resnet),
];

/// Command line options.
pub(crate) struct Options {
    minilm: String,
    section: Option<String>,
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
    for (name, check) in SECTIONS {
        let is_wanted = options.section.as_ref().is_none_or(|section| section == name);
        if is_wanted && !(options.is_quick && name.starts_with("speed")) {
            findings.section(name, || check(&device, &cpu, &options));
        }
    }
    if options.section.is_none() {
        findings.print();
    }
    if let Some(path) = &options.out {
        std::fs::write(path, findings.to_json()).unwrap();
    }
    std::process::exit(i32::from(findings.has_failed()));
}

fn options() -> Options {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--sections") {
        SECTIONS.iter().for_each(|(name, _)| println!("{name}"));
        std::process::exit(0);
    }
    let after = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).cloned();
    let Some(minilm) = args.first().filter(|arg| !arg.starts_with('-')).cloned() else {
        eprintln!(
            "usage: cuda_check MINILM_INT8 [--section NAME] [--out FILE.json] [--quick], or cuda_check --sections"
        );
        std::process::exit(2);
    };
    let is_quick = args.iter().any(|arg| arg == "--quick");
    Options { minilm, section: after("--section"), out: after("--out"), is_quick }
}
