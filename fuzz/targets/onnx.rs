//! Fuzzes ONNX models: their tensors, and the graph.
#![no_main]

use briquette::formats::Checkpoint;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let path = briquette_fuzz::file("model.onnx", input);
    briquette_fuzz::open_and_read(&path);
    if let Ok(checkpoint) = Checkpoint::open(&path)
        && let Some(file) = checkpoint.onnx_file()
        && let Ok(graph) = briquette::graph::onnx::import(file, &Default::default())
    {
        graph.lower().expect("an imported graph is sound");
    }
});
