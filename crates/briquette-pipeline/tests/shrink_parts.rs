//! Shrink stages that follow from headers and files: experts, the width, a size in bytes, and the importance of inputs.

use crate::shrink::{config, fixture, recipe, refused, shrink, shrunk, tensor};
use briquette_core::InputStats;
use briquette_formats::input_stats::{StatisticsFile, fingerprint};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_pipeline::{RunOptions, run, transform};
use std::path::Path;

/// Writes statistics of vectors of ones for some layers, with an importance of each input.
fn statistics(model: &str, layers: &[(String, u64, Vec<f64>)], path: &Path) {
    let of_layer = |(name, count, importance): &(String, u64, Vec<f64>)| {
        let sums = vec![*count as f64; importance.len()];
        let stats = InputStats {
            count: *count,
            sum: sums.clone(),
            sum_squares: sums,
            importance: importance.clone(),
            ..InputStats::empty(importance.len(), false)
        };
        (name.clone(), InputStats { max: vec![1.0; importance.len()], ..stats })
    };
    let model = Some(fingerprint(&Checkpoint::open(&fixture(model)).unwrap()).unwrap());
    StatisticsFile { model, layers: layers.iter().map(of_layer).collect(), ..Default::default() }.write(path).unwrap();
}

/// Checks that a shrunk mixture has these experts of the original one, in this order.
fn check_experts(output: &Checkpoint, original: &Checkpoint, block: usize, experts: &[usize]) {
    let path = format!("model.layers.{block}.block_sparse_moe");
    for (new, old) in experts.iter().enumerate() {
        for matrix in ["w1", "w2", "w3"] {
            let of = |expert: usize| format!("{path}.experts.{expert}.{matrix}.weight");
            assert_eq!(tensor(output, &of(new)), tensor(original, &of(*old)), "{new} {old} {matrix}");
        }
    }
    let gone = format!("{path}.experts.{}.w1.weight", experts.len());
    assert!(!output.tensors().iter().any(|info| info.name == gone.as_str()));
    let router = format!("{path}.gate.weight");
    let ((shape, before), (_, after)) = (tensor(original, &router), tensor(output, &router));
    let rows = experts.iter().flat_map(|expert| before[expert * shape[1]..(expert + 1) * shape[1]].to_vec());
    assert_eq!(after, rows.collect::<Vec<f32>>(), "rows of the router");
}

#[test]
fn experts_are_removed_with_their_rows_of_the_router() {
    let directory = tempfile::tempdir().unwrap();
    let original = Checkpoint::open(&fixture("families/mixtral")).unwrap();
    let (report, output) = shrunk(directory.path(), "families/mixtral", &shrink("count = 1\nparts = [\"experts\"]"));
    let norm = |block: usize, expert: usize| {
        let of = |matrix: &str| {
            tensor(&original, &format!("model.layers.{block}.block_sparse_moe.experts.{expert}.{matrix}.weight")).1
        };
        ["w1", "w2", "w3"].iter().flat_map(|matrix| of(matrix)).map(|value| f64::from(value).powi(2)).sum::<f64>()
    };
    for block in 0..2 {
        let weakest = (0..3).min_by(|a, b| norm(block, *a).total_cmp(&norm(block, *b))).unwrap();
        let left: Vec<usize> = (0..3).filter(|expert| *expert != weakest).collect();
        check_experts(&output, &original, block, &left);
    }
    assert_eq!(config(&directory.path().join("out"))["num_local_experts"], 2);
    let words = report.shrunk[0].in_words();
    assert!(words[0].contains("experts: 6 units of 2 groups become 4"), "{words:?}");
    assert!(words.iter().any(|line| line.contains("so that other programs load the model")), "{words:?}");
}

#[test]
fn experts_that_the_router_rarely_chooses_are_removed_first() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.safetensors");
    let original = Checkpoint::open(&fixture("families/mixtral")).unwrap();
    let layer = |block: usize, expert: usize, count: u64| {
        (format!("model.layers.{block}.block_sparse_moe.experts.{expert}.w2"), count, vec![1.0; 24])
    };
    // The router never chose expert 1 of the first block, and expert 0 of the second least.
    let seen = [layer(0, 0, 9000), layer(0, 2, 9000), layer(1, 0, 1), layer(1, 1, 9000), layer(1, 2, 9000)];
    statistics("families/mixtral", &seen, &file);
    let keys = format!("ratio = 0.34\nparts = [\"experts\"]\nstatistics = {:?}", file.display().to_string());
    let (_, output) = shrunk(directory.path(), "families/mixtral", &shrink(&keys));
    check_experts(&output, &original, 0, &[0, 2]);
    check_experts(&output, &original, 1, &[1, 2]);
    let plan = recipe(&fixture("families/mixtral"), &directory.path().join("other"), &shrink(&keys));
    let notes = transform::notes(&plan, &original).unwrap();
    assert!(notes[0].contains("each group keeps 2"), "{notes:?}");
}

#[test]
fn the_width_of_a_decoder_is_a_key_of_its_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let stages = shrink("ratio = 0.25\nparts = [\"width\"]");
    let (report, output) = shrunk(directory.path(), "models/llama-tied", &stages);
    let after = config(&directory.path().join("out"));
    assert_eq!((after["hidden_size"].as_u64(), after["head_dim"].as_u64()), (Some(24), Some(8)));
    assert_eq!(tensor(&output, "model.embed_tokens.weight").0, [264, 24]);
    assert_eq!(tensor(&output, "model.layers.0.self_attn.q_proj.weight").0, [32, 24]);
    assert_eq!(tensor(&output, "model.norm.weight").0, [24]);
    assert!(report.shrunk[0].lost.is_empty());
}

#[test]
fn a_size_in_bytes_chooses_the_smallest_ratio() {
    let directory = tempfile::tempdir().unwrap();
    let before = Checkpoint::open(&fixture("models/bert-tiny")).unwrap();
    let bytes = |checkpoint: &Checkpoint| checkpoint.tensors().iter().map(|info| info.n_bytes()).sum::<usize>();
    let asked = bytes(&before) * 9 / 10;
    let keys = format!("max_bytes = \"{asked}\"\nparts = [\"feed-forward\"]");
    let (report, output) = shrunk(directory.path(), "models/bert-tiny", &shrink(&keys));
    let found = bytes(&output);
    // A unit of a block has two rows or columns and a bias.
    let width = tensor(&before, "embeddings.word_embeddings.weight").0[1];
    assert!(found <= asked && found + 2 * 4 * (2 * width + 1) >= asked, "{found} of {asked}");
    assert_eq!(report.shrunk[0].tensor_bytes, [bytes(&before) as u64, found as u64]);
}

#[test]
fn a_size_in_bytes_chooses_the_number_of_experts() {
    let directory = tempfile::tempdir().unwrap();
    let before = Checkpoint::open(&fixture("families/mixtral")).unwrap();
    let bytes = |checkpoint: &Checkpoint| checkpoint.tensors().iter().map(|info| info.n_bytes()).sum::<usize>();
    let path = "model.layers.0.block_sparse_moe";
    let of = |name: &str| {
        let found = before.tensors().iter().find(|info| info.name == format!("{path}.{name}.weight").as_str());
        found.unwrap().n_bytes()
    };
    // Each of two layers has three experts, and keeps two or more.
    let expert = of("experts.0.w1") + of("experts.0.w2") + of("experts.0.w3") + of("gate") / 3;
    let least = bytes(&before) - 2 * expert;
    let with = |bytes: usize, parts: &str| shrink(&format!("max_bytes = \"{bytes}\"\nparts = [{parts}]"));
    for (place, asked) in [least, bytes(&before) - 1].into_iter().enumerate() {
        let text = with(asked, "\"experts\"");
        let other = recipe(&fixture("families/mixtral"), &directory.path().join("planned"), &text);
        let notes = transform::notes(&other, &before).unwrap();
        assert!(notes[0].contains("experts: 6 units of 2 groups become 4"), "{notes:?}");
        let directory = directory.path().join(place.to_string());
        std::fs::create_dir(&directory).unwrap();
        let (report, output) = shrunk(&directory, "families/mixtral", &text);
        assert_eq!((bytes(&output), report.shrunk[0].tensor_bytes[1]), (least, least as u64));
    }
    // Fewer bytes need other parts.
    let asked = least - expert / 2;
    let (report, output) = shrunk(directory.path(), "families/mixtral", &with(asked, "\"experts\", \"feed-forward\""));
    assert!(bytes(&output) <= asked && bytes(&output) + 2 * expert > asked, "{} of {asked}", bytes(&output));
    let words = report.shrunk[0].in_words().join("\n");
    assert!(words.contains("experts: 6 units of 2 groups become 4"), "{words}");
    let error = |bytes: usize| refused(&fixture("families/mixtral"), &with(bytes, "\"experts\"")).to_string();
    assert!(error(least - 1).contains(&format!("expected {least} bytes or more")), "{}", error(least - 1));
    assert!(error(bytes(&before)).contains("the network has"), "{}", error(bytes(&before)));
}

#[test]
fn a_share_of_the_latency_chooses_the_number_of_experts() {
    let directory = tempfile::tempdir().unwrap();
    let before = Checkpoint::open(&fixture("families/mixtral")).unwrap();
    let text = shrink("latency = 0.0001\nparts = [\"experts\"]");
    let recipe = recipe(&fixture("families/mixtral"), &directory.path().join("out"), &text);
    let notes = transform::notes(&recipe, &before).unwrap().join("\n");
    assert!(notes.contains("6 units of 2 groups become 4") && notes.contains("with the fewest experts"), "{notes}");
    let error = run(&recipe, &RunOptions::default()).unwrap_err();
    assert!(error.to_string().contains("latency") && error.exit_code() == 2, "{error}");
    assert!(!directory.path().join("out").exists());
}

#[test]
fn the_importance_of_inputs_chooses_units() {
    let directory = tempfile::tempdir().unwrap();
    let (file, output) = (directory.path().join("stats.safetensors"), directory.path().join("out"));
    let (inner, outer) = ("encoder.layer.0.intermediate.dense.weight", "encoder.layer.0.output.dense");
    let original = Checkpoint::open(&fixture("models/bert-tiny")).unwrap();
    let (shape, rows) = tensor(&original, inner);
    let n = shape[0];
    let importance: Vec<f64> = (0..n).map(|unit| if unit % 4 == 1 { 1e-3 } else { 1.0 }).collect();
    let layers = ["encoder.layer.0.output.dense", "encoder.layer.1.output.dense"];
    statistics("models/bert-tiny", &layers.map(|layer| (layer.to_string(), 10, importance.clone())), &file);
    let keys = "ratio = 0.25\nparts = [\"feed-forward\"]\nmethod = \"taylor\"\nrefit = false";
    let text = shrink(&format!("{keys}\nstatistics = {:?}", file.display().to_string()));
    run(&recipe(&fixture("models/bert-tiny"), &output, &text), &RunOptions::default()).unwrap();
    let kept =
        rows.chunks_exact(shape[1]).enumerate().filter(|(unit, _)| unit % 4 != 1).flat_map(|(_, row)| row.to_vec());
    assert_eq!(tensor(&Checkpoint::open(&output).unwrap(), inner).1, kept.collect::<Vec<f32>>());

    let mut found = StatisticsFile::read(&file).unwrap();
    found.layers.get_mut(outer).unwrap().importance.clear();
    found.write(&file).unwrap();
    let error = refused(&fixture("models/bert-tiny"), &text);
    assert!(error.to_string().contains("briquette calibrate --gradients") && error.exit_code() == 4, "{error}");
}

#[test]
fn impossible_parts_and_amounts_are_one_line_before_any_work() {
    let cases = [
        ("families/mixtral", "count = 2\nparts = [\"experts\"]", "1 of 3 experts would be left, expected 2 or more"),
        ("families/mixtral", "ratio = 0.1\nparts = [\"experts\"]", "no expert is removed"),
        ("families/llama", "count = 1\nparts = [\"experts\"]", "the network has no experts"),
        ("models/bert-tiny", "max_bytes = \"1kB\"", "max_bytes: found 1000 bytes, expected"),
        ("families/bert", "ratio = 0.3\nparts = [\"width\"]", "the network has no width"),
    ];
    for (model, keys, expected) in cases {
        let error = refused(&fixture(model), &shrink(keys));
        assert!(error.to_string().contains(expected) && error.exit_code() == 2, "{keys}: {error}");
    }
}
