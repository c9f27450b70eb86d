//! Shrink stages that run the network: refits before removed blocks, and every family without a part of its width.

use crate::shrink::{fixture, recipe, shrink};
use briquette_formats::Checkpoint;
use briquette_models::graph_net::{GraphNet, RunInputs};
use briquette_pipeline::{RunOptions, run};
use burn::tensor::{Device, Int, Tensor};
use std::path::Path;

/// Returns the logits of a decoder for some tokens.
fn logits(model: &Path) -> Vec<f32> {
    let device = Device::flex();
    let net = GraphNet::from_checkpoint(model, &device).unwrap();
    let ids = Tensor::<1, Int>::arange(10..42, &device).reshape([1, 32]);
    net.forward(&RunInputs::tokens(ids)).to_f32("logits").unwrap()
}

#[test]
fn the_layer_before_removed_blocks_takes_up_what_they_did() {
    let directory = tempfile::tempdir().unwrap();
    let model = fixture("models/llama-tied");
    let text = fixture("models/text.txt");
    let without = |name: &str, keys: &str, tables: &str| {
        let output = directory.path().join(name);
        let stages = format!("{tables}{}", shrink(&format!("drop_blocks = [1]\n{keys}")));
        let report = run(&recipe(&model, &output, &stages), &RunOptions::default()).unwrap();
        (report.shrunk[0].n_refitted_blocks, output)
    };
    let data = format!("[calibration]\ndata = {:?}\nmax_length = 32\n", text.display().to_string());
    let ((none, plain), (one, refitted)) = (without("plain", "", ""), without("refitted", "", &data));
    assert_eq!((none, one), (0, 1));
    let original = logits(&model);
    let error = |output: &Path| -> f32 { logits(output).iter().zip(&original).map(|(a, b)| (a - b) * (a - b)).sum() };
    let (before, after) = (error(&plain), error(&refitted));
    assert!(after < before, "{after} {before}");
}

#[test]
fn every_family_loses_a_part_of_its_width_or_says_why_not() {
    let directory = tempfile::tempdir().unwrap();
    let (mut cut, mut refused) = (Vec::new(), Vec::new());
    let mut folders: Vec<_> =
        std::fs::read_dir(fixture("families")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().to_string();
        let output = directory.path().join(&name);
        // Half of the width is a multiple of the width of a head.
        let made = recipe(&folder, &output, &shrink("ratio = 0.5\nparts = [\"width\"]"));
        match run(&made, &RunOptions::default()) {
            Ok(_) => {
                assert!(GraphNet::from_checkpoint(&output, &Device::flex()).is_ok(), "{name}");
                let bytes = |path: &Path| Checkpoint::open(path).unwrap().weight_bytes();
                assert!(bytes(&output) < bytes(&folder), "{name}");
                cut.push(name);
            }
            Err(error) => {
                println!("{name}: {error}");
                assert_eq!(error.exit_code(), 2, "{name}: {error}");
                refused.push(name);
            }
        }
    }
    println!("{cut:?}\n{refused:?}");
    assert!(cut.len() > 20, "{cut:?}");
}
