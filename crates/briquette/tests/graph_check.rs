//! Runs what the GPU check runs of graphs on the CPU, so that it is known to be complete.

#[path = "../examples/cuda_check/graphs.rs"]
mod graphs;

use burn::tensor::Device;

#[test]
fn the_check_of_graphs_runs_all_networks_and_passes_on_the_cpu() {
    let device = Device::flex();
    let found = graphs::compare(&device, &device);
    let names: Vec<&str> = found.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "encoder f32",
            "encoder int8",
            "ResNet-18 int8",
            "separable convolutions int8",
            "decoder f32",
            "decoder f32, cached keys",
            "decoder int8",
            "decoder int8, cached keys",
            "decoder with windows and caps f32",
            "decoder with windows and caps f32, cached keys",
            "decoder with windows and caps int8",
            "decoder with windows and caps int8, cached keys",
        ]
    );
    for check in &found {
        assert!(check.difference <= check.most, "{}: {} above {}", check.name, check.difference, check.most);
        let is_same_run = !check.name.ends_with("cached keys");
        assert!(!is_same_run || check.difference == 0.0, "{}: {}", check.name, check.difference);
    }
}
