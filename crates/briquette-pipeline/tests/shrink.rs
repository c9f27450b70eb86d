//! Shrink stages from recipe to output: shapes, values, `config.json`, statistics, and errors before any work.

use briquette_core::{DType, InputStats, rows};
use briquette_formats::input_stats::{StatisticsFile, fingerprint};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_pipeline::distill::student_of;
use briquette_pipeline::recipe::{Recipe, parse};
use briquette_pipeline::{Report, RunOptions, run, transform};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

pub(crate) fn recipe(model: &Path, output: &Path, stages: &str) -> Recipe {
    let text = format!(
        "model.path = {:?}\noutput.path = {:?}\noutput.format = \"dense\"\n{stages}",
        model.display().to_string(),
        output.display().to_string()
    );
    Recipe::from_raw(parse(&text, "r.toml").unwrap(), "".as_ref()).unwrap()
}

pub(crate) fn shrink(keys: &str) -> String {
    format!("[[stage]]\nkind = \"shrink\"\n{keys}\n")
}

/// Runs a recipe on a fixture, and returns the report and the output.
pub(crate) fn shrunk(directory: &Path, model: &str, stages: &str) -> (Report, Checkpoint) {
    let output = directory.join("out");
    let report = run(&recipe(&fixture(model), &output, stages), &RunOptions::default()).unwrap();
    (report, Checkpoint::open(&output).unwrap())
}

pub(crate) fn refused(model: &Path, stages: &str) -> briquette_core::Error {
    let directory = tempfile::tempdir().unwrap();
    let error = run(&recipe(model, &directory.path().join("out"), stages), &RunOptions::default()).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert!(left.is_empty(), "{error}: {left:?}");
    error
}

/// Returns the shape and the values of a tensor.
pub(crate) fn tensor(checkpoint: &Checkpoint, name: &str) -> (Vec<usize>, Vec<f32>) {
    let index = checkpoint.tensors().iter().position(|info| info.name == name).unwrap();
    let info = &checkpoint.tensors()[index];
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(index, 0, &mut bytes).unwrap();
    let mut values = vec![0.0; info.n_elements()];
    rows::to_f32(&bytes, info.dtype, &mut values);
    (info.shape.0.clone(), values)
}

pub(crate) fn config(directory: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(directory.join("config.json")).unwrap()).unwrap()
}

const INNER: &str = "encoder.layer.0.intermediate.dense";
const OUTER: &str = "encoder.layer.0.output.dense";

#[test]
fn channels_with_the_smallest_weights_are_removed_from_all_their_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let stages = shrink("ratio = 0.25\nparts = [\"feed-forward\"]");
    let (report, output) = shrunk(directory.path(), "models/bert-tiny", &stages);
    let original = Checkpoint::open(&fixture("models/bert-tiny")).unwrap();
    let names = [format!("{INNER}.weight"), format!("{INNER}.bias"), format!("{OUTER}.weight")];
    let [inner, bias, outer] = names.each_ref().map(|name| tensor(&original, name));
    let (n, width) = (inner.0[0], inner.0[1]);
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let score = |unit: usize| {
        let row: f64 = inner.1[unit * width..(unit + 1) * width].iter().map(square).sum();
        let column: f64 = (0..width).map(|out| square(&outer.1[out * n + unit])).sum();
        row + column + square(&bias.1[unit])
    };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| score(a).total_cmp(&score(b)));
    let mut kept = order[n / 4..].to_vec();
    kept.sort_unstable();
    let rows: Vec<f32> = kept.iter().flat_map(|&unit| inner.1[unit * width..(unit + 1) * width].to_vec()).collect();
    assert_eq!(tensor(&output, &names[0]), (vec![kept.len(), width], rows));
    assert_eq!(tensor(&output, &names[1]).1, kept.iter().map(|&unit| bias.1[unit]).collect::<Vec<_>>());
    let columns: Vec<f32> = (0..width)
        .flat_map(|out| kept.iter().map(move |&unit| (out, unit)))
        .map(|(out, unit)| outer.1[out * n + unit])
        .collect();
    assert_eq!(tensor(&output, &names[2]), (vec![width, kept.len()], columns));
    assert_eq!(config(&directory.path().join("out"))["intermediate_size"], kept.len());
    let found = &report.shrunk[0];
    assert_eq!((found.groups.len(), found.groups[0].before, found.groups[0].after), (2, n, kept.len()));
    assert!(found.lost.is_empty() && found.multiply_adds[1] < found.multiply_adds[0]);
    assert!(report.notes.iter().any(|note| note.contains("other programs load")), "{:?}", report.notes);
}

#[test]
fn plans_predict_the_shapes_and_runs_resume_with_the_same_bytes() {
    let cases = [
        ("models/bert-tiny", "ratio = 0.5"),
        ("models/bert-tiny", "drop_blocks = [0]"),
        ("models/llama-tied", "ratio = 0.5\nparts = [\"heads\"]"),
        ("models/llama-untied", "count = 3\nparts = [\"feed-forward\"]\nmethod = \"random\"\nseed = 4"),
        ("digits", "multiply_adds = 0.5\nmethod = \"l1\""),
        ("families/gpt2", "ratio = 0.5"),
        ("families/vit", "ratio = 0.5\ndrop_blocks = [1]"),
        ("families/mobilenet_v2", "ratio = 0.3"),
    ];
    for (model, keys) in cases {
        let directory = tempfile::tempdir().unwrap();
        let (report, output) = shrunk(directory.path(), model, &shrink(keys));
        let made = recipe(&fixture(model), &directory.path().join("out"), &shrink(keys));
        let checkpoint = Checkpoint::open(&made.model).unwrap();
        let predicted = student_of(&made, &checkpoint).unwrap().unwrap();
        let mut expected: Vec<_> = predicted.iter().map(|info| (info.name.to_string(), info.shape.0.clone())).collect();
        let mut found: Vec<_> =
            output.tensors().iter().map(|info| (info.name.to_string(), info.shape.0.clone())).collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{model} {keys}");
        assert!(report.after.file_bytes < report.before.file_bytes, "{model} {keys}");
        let notes = transform::notes(&made, &checkpoint).unwrap();
        let parameters = report.shrunk[0].parameters;
        assert!(
            notes.iter().any(|note| note.contains(&format!("parameters from {} to {}", parameters[0], parameters[1])))
        );
        let again = directory.path().join("again");
        run(&recipe(&fixture(model), &again, &shrink(keys)), &RunOptions { threads: 1, ..RunOptions::default() })
            .unwrap();
        let bytes = |path: &Path| std::fs::read(path.join("model.safetensors")).unwrap();
        assert_eq!(bytes(&again), bytes(&directory.path().join("out")), "{model} {keys}");
    }
}

#[test]
fn heads_of_decoders_are_keys_of_their_configuration() {
    let directory = tempfile::tempdir().unwrap();
    shrunk(directory.path(), "models/llama-tied", &shrink("ratio = 0.5\nparts = [\"heads\"]"));
    let (before, after) = (config(&fixture("models/llama-tied")), config(&directory.path().join("out")));
    let number = |config: &Value, key: &str| config[key].as_u64().unwrap();
    assert_eq!(number(&after, "num_key_value_heads") * 2, number(&before, "num_key_value_heads"));
    assert_eq!(number(&after, "num_attention_heads") * 2, number(&before, "num_attention_heads"));
    let width = number(&before, "hidden_size") / number(&before, "num_attention_heads");
    assert_eq!(number(&after, "head_dim"), width);
}

#[test]
fn a_global_threshold_gives_layers_different_widths_and_later_stages_follow() {
    let directory = tempfile::tempdir().unwrap();
    let keys = "ratio = 0.3\nscope = \"global\"\nfloor = 0.25\nparts = [\"channels\", \"feed-forward\"]";
    let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";
    let text = format!("{}{quantize}", shrink(keys));
    let output = directory.path().join("out");
    let mut raw = recipe(&fixture("digits"), &output, &text);
    raw.profile = briquette_formats::OutputFormat::Briquette;
    let report = run(&raw, &RunOptions::default()).unwrap();
    let of_group = |group: &briquette_pipeline::report::ShrunkGroup| group.after * 4 >= group.before;
    assert!(report.shrunk[0].groups.iter().all(of_group));
    assert!(
        Checkpoint::open(&output).unwrap().weight_bytes() * 4
            < Checkpoint::open(&fixture("digits")).unwrap().weight_bytes()
    );
    assert!(student_of(&raw, &Checkpoint::open(&fixture("digits")).unwrap()).unwrap().is_none());
}

/// Writes statistics of layers whose inputs are mixtures of a few numbers, so that most inputs follow from others.
fn statistics(model: &str, layers: &[(&str, usize)], path: &Path) {
    let number = |at: usize| f64::from(briquette_core::random::uniform(7, at as u64)) - 0.5;
    let of_layer = |&(name, n): &(&str, usize)| {
        let n_sources = n / 2;
        let mut stats = InputStats::empty(n, true);
        let mut gram = vec![0.0; n * n];
        for vector in 0..4 * n {
            let sources: Vec<f64> = (0..n_sources).map(|at| number(vector * n + at)).collect();
            let mix = |i: usize| (0..n_sources).map(|at| sources[at] * number((1 << 20) | (i * n + at))).sum::<f64>();
            let x: Vec<f64> = (0..n).map(mix).collect();
            stats.count += 1;
            (0..n).for_each(|i| {
                stats.sum[i] += x[i];
                stats.sum_squares[i] += x[i] * x[i];
                (0..n).for_each(|j| gram[i * n + j] += x[i] * x[j]);
            });
        }
        stats.gram = Some(Arc::new(gram));
        (name.to_string(), stats)
    };
    let model = Some(fingerprint(&Checkpoint::open(&fixture(model)).unwrap()).unwrap());
    StatisticsFile { model, layers: layers.iter().map(of_layer).collect(), ..Default::default() }.write(path).unwrap();
}

/// Returns `tr(D G Dᵀ)` of the change of a layer's weights, as a share of `tr(W G Wᵀ)`.
fn output_error(directory: &Path, gram: &[f64], units: &[usize]) -> f64 {
    let original = tensor(&Checkpoint::open(&fixture("models/bert-tiny")).unwrap(), &format!("{OUTER}.weight"));
    let found = tensor(&Checkpoint::open(directory).unwrap(), &format!("{OUTER}.weight"));
    let (n, left) = (original.0[1], found.0[1]);
    assert_eq!(units.len(), left);
    let energy = |rows: &[Vec<f64>]| -> f64 {
        let of_row = |row: &Vec<f64>| (0..n * n).map(|at| row[at / n] * gram[at] * row[at % n]).sum::<f64>();
        rows.iter().map(of_row).sum()
    };
    let old: Vec<Vec<f64>> =
        original.1.chunks_exact(n).map(|row| row.iter().copied().map(f64::from).collect()).collect();
    let mut change = old.clone();
    for (row, own) in change.iter_mut().zip(found.1.chunks_exact(left)) {
        units.iter().zip(own).for_each(|(&unit, value)| row[unit] -= f64::from(*value));
    }
    energy(&change) / energy(&old)
}

/// Returns the units that are left, by the biases of the first layer.
fn units_left(directory: &Path) -> Vec<usize> {
    let name = format!("{INNER}.weight");
    let (shape, before) = tensor(&Checkpoint::open(&fixture("models/bert-tiny")).unwrap(), &name);
    let (_, after) = tensor(&Checkpoint::open(directory).unwrap(), &name);
    let before: Vec<&[f32]> = before.chunks_exact(shape[1]).collect();
    after.chunks_exact(shape[1]).map(|row| before.iter().position(|own| *own == row).unwrap()).collect()
}

#[test]
fn statistics_choose_units_and_refits_preserve_outputs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.safetensors");
    let n = tensor(&Checkpoint::open(&fixture("models/bert-tiny")).unwrap(), &format!("{OUTER}.weight")).0[1];
    statistics("models/bert-tiny", &[(OUTER, n), ("encoder.layer.1.output.dense", n)], &file);
    let gram = StatisticsFile::read(&file).unwrap().layers[OUTER].gram.clone().unwrap();
    let error = |keys: &str| {
        let output = directory.path().join("out");
        let keys =
            format!("ratio = 0.5\nparts = [\"feed-forward\"]\n{keys}\nstatistics = {:?}", file.display().to_string());
        let keys = if keys.contains("l2") {
            keys.replace(&format!("statistics = {:?}", file.display().to_string()), "")
        } else {
            keys
        };
        let made = recipe(&fixture("models/bert-tiny"), &output, &shrink(&keys));
        let report = run(&made, &RunOptions { force: true, ..RunOptions::default() }).unwrap();
        let refits = if keys.contains("refit = false") || keys.contains("l2") { 0 } else { 2 };
        assert_eq!(report.shrunk[0].n_refitted, refits, "{keys}");
        let found = output_error(&output, &gram, &units_left(&output));
        std::fs::remove_dir_all(&output).unwrap();
        found
    };
    let by_weights = error("method = \"l2\"");
    let by_inputs = error("method = \"wanda\"\nrefit = false");
    let refitted = error("method = \"wanda\"");
    let osscar = error("");
    assert!(refitted < 0.5 * by_inputs, "{refitted} {by_inputs} {by_weights}");
    assert!(osscar < refitted, "{osscar} {refitted}");
}

#[test]
fn impossible_stages_are_one_line_before_any_work() {
    let bert = fixture("models/bert-tiny");
    let cases = [
        (bert.clone(), "count = 4000", 2, "count: nothing is left of"),
        (bert.clone(), "ratio = 0.001", 2, "no unit of"),
        (bert.clone(), "ratio = 0.5\nparts = [\"channels\"]", 2, "the network has no channels"),
        (bert.clone(), "ratio = 0.5\ninclude = [\"nothing*\"]", 2, "nothing*"),
        (bert.clone(), "drop_blocks = [0, 1]", 2, "drop_blocks: found all 2 blocks"),
        (bert.clone(), "drop_blocks = [2]", 2, "drop_blocks: found block 2"),
        (bert.clone(), "multiply_adds = 0.01", 2, "multiply_adds: found 0.01, expected 0."),
        (fixture("digits"), "drop_blocks = [0]", 2, "drop_blocks: found block 0"),
    ];
    for (model, keys, code, expected) in cases {
        let error = refused(&model, &shrink(keys));
        assert!(error.to_string().contains(expected) && error.exit_code() == code, "{keys}: {error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.safetensors");
    let keys = format!("ratio = 0.5\nparts = [\"feed-forward\"]\nstatistics = {:?}", path.display().to_string());
    statistics("models/bert-tiny", &[(INNER, 8)], &path);
    let error = refused(&bert, &shrink(&keys));
    assert!(error.to_string().contains("no inputs of this layer") && error.exit_code() == 4, "{error}");
    statistics("digits", &[(INNER, 8)], &path);
    let error = refused(&bert, &shrink(&keys));
    assert!(error.to_string().contains("statistics of another model") && error.exit_code() == 4, "{error}");
    let unknown = directory.path().join("u.safetensors");
    let tensors = std::collections::BTreeMap::from([("w".into(), (DType::F32, vec![2, 2], vec![0; 16]))]);
    std::fs::write(&unknown, briquette_formats::safetensors::to_file(&tensors).unwrap()).unwrap();
    let error = refused(&unknown, &shrink("ratio = 0.5"));
    assert!(
        error.to_string().contains("expected a model of a family with a graph") && error.exit_code() == 4,
        "{error}"
    );
}

#[test]
fn biases_take_up_the_mean_of_inputs_that_hardly_change() {
    let directory = tempfile::tempdir().unwrap();
    let (file, output) = (directory.path().join("stats.safetensors"), directory.path().join("out"));
    let model = Checkpoint::open(&fixture("models/bert-tiny")).unwrap();
    let (shape, weights) = tensor(&model, &format!("{OUTER}.weight"));
    let n = shape[1];
    let layers = [(OUTER, n), ("encoder.layer.1.output.dense", n)];
    statistics("models/bert-tiny", &layers, &file);
    let mut found = StatisticsFile::read(&file).unwrap();
    // Every fourth input is large and constant.
    for stats in found.layers.values_mut() {
        for at in (0..n).step_by(4) {
            (stats.sum[at], stats.sum_squares[at]) = (5.0 * stats.count as f64, 25.0 * stats.count as f64);
        }
    }
    found.write(&file).unwrap();
    let keys = "ratio = 0.25\nparts = [\"feed-forward\"]\nmethod = \"flap\"";
    let text = shrink(&format!("{keys}\nstatistics = {:?}", file.display().to_string()));
    let report = run(&recipe(&fixture("models/bert-tiny"), &output, &text), &RunOptions::default()).unwrap();
    assert_eq!((report.shrunk[0].n_biases, report.shrunk[0].n_refitted), (2, 0));
    let left = units_left(&output);
    assert!(left.len() == n - n / 4 && left.iter().all(|unit| unit % 4 != 0), "{left:?}");
    let bias = |checkpoint: &Checkpoint| tensor(checkpoint, &format!("{OUTER}.bias")).1;
    let (before, after) = (bias(&model), bias(&Checkpoint::open(&output).unwrap()));
    for (row, (before, after)) in weights.chunks_exact(n).zip(before.iter().zip(&after)) {
        let mean: f32 = row.iter().step_by(4).map(|weight| 5.0 * weight).sum();
        assert!((after - before - mean).abs() < 1e-4, "{before} {after} {mean}");
    }
}
