//! Fold stages on every family: the folded network computes what the original computes.

use briquette_core::{DType, Error, InputStats, random, rows};
use briquette_formats::input_stats::{StatisticsFile, fingerprint};
use briquette_formats::{Checkpoint, TensorSource, safetensors};
use briquette_pipeline::recipe::{Recipe, parse};
use briquette_pipeline::{Report, RunOptions, run, transform};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The largest difference of outputs, as a share of the largest output.
const TOLERANCE: f64 = 1e-4;

fn families() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

fn family(name: &str) -> PathBuf {
    families().into_iter().find(|folder| folder.ends_with(name)).unwrap()
}

/// Returns the values of every tensor of a model as f32.
fn tensors(model: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let floats = checkpoint.tensors().iter().enumerate().filter(|(_, info)| info.dtype.is_weight());
    let one = |(index, info): (usize, &briquette_formats::TensorInfo)| {
        let (mut bytes, mut values) = (vec![0; info.n_bytes()], vec![0.0; info.n_elements()]);
        checkpoint.read(index, 0, &mut bytes).unwrap();
        rows::to_f32(&bytes, info.dtype, &mut values);
        (info.name.to_string(), (info.shape.0.clone(), values))
    };
    floats.map(one).collect()
}

/// Writes a model in f32, after a change of its tensors.
fn in_f32(model: &Path, to: &Path, change: impl Fn(&str, &mut Vec<f32>)) -> PathBuf {
    let mut found = BTreeMap::new();
    for (name, (shape, mut values)) in tensors(model) {
        change(&name, &mut values);
        let mut bytes = vec![0; 4 * values.len()];
        rows::from_f32(&values, DType::F32, &mut bytes);
        found.insert(name, (DType::F32, shape, bytes));
    }
    std::fs::create_dir(to).unwrap();
    std::fs::write(to.join("model.safetensors"), safetensors::to_file(&found).unwrap()).unwrap();
    if model.join("config.json").exists() {
        std::fs::copy(model.join("config.json"), to.join("config.json")).unwrap();
    }
    to.to_path_buf()
}

fn recipe(model: &Path, output: &Path, keys: &str) -> Recipe {
    let text = format!(
        "model.path = {:?}\noutput.path = {:?}\noutput.format = \"dense\"\n[[stage]]\nkind = \"fold\"\n{keys}\n",
        model.display().to_string(),
        output.display().to_string()
    );
    Recipe::from_raw(parse(&text, "r.toml").unwrap(), "".as_ref()).unwrap()
}

fn folded(model: &Path, output: &Path, keys: &str) -> Result<Report, Error> {
    run(&recipe(model, output, keys), &RunOptions::default())
}

/// Writes random statistics of the inputs of every matrix, in which some inputs are large.
fn statistics(model: &Path, path: &Path) {
    let of_layer = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| {
        let layer = name.strip_suffix(".weight").filter(|_| shape.len() == 2)?;
        // GPT-2 stores its matrices turned.
        let n = if layer.contains(".c_") || layer.starts_with("h.") { shape[0] } else { shape[1] };
        let mut stats = InputStats::empty(n, false);
        stats.count = 10;
        for at in 0..n {
            let size = if at % 7 == 3 { 40.0 } else { 1.0 } * (0.5 + random::uniform(5, at as u64));
            (stats.max[at], stats.sum_squares[at]) = (2.0 * size, 10.0 * f64::from(size * size));
        }
        Some((layer.to_string(), stats))
    };
    let model_hash = Some(fingerprint(&Checkpoint::open(model).unwrap()).unwrap());
    let layers = tensors(model).iter().filter_map(of_layer).collect();
    StatisticsFile { model: model_hash, layers, ..Default::default() }.write(path).unwrap();
}

/// Folds every family that has a place, and returns their names. The others are refused in one line.
fn every_family(keys: &str) -> Vec<String> {
    let mut done = Vec::new();
    for folder in families() {
        let directory = tempfile::tempdir().unwrap();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let model = in_f32(&folder, &directory.path().join("model"), |_, _| {});
        let output = directory.path().join("out");
        let file = directory.path().join("stats.safetensors");
        let keys = &keys.replace("STATISTICS", &file.display().to_string());
        if keys.contains("statistics") {
            statistics(&model, &file);
        }
        match folded(&model, &output, keys) {
            Ok(report) => {
                let difference = report.folded[0].difference.unwrap();
                assert!(difference <= TOLERANCE, "{name}: {difference}");
                assert_ne!(tensors(&output), tensors(&model), "{name}");
                assert!(report.notes.iter().any(|note| note.contains("outputs on random inputs differ")));
                let checkpoint = Checkpoint::open(&model).unwrap();
                let notes = transform::notes(&recipe(&model, &output, keys), &checkpoint).unwrap();
                assert_eq!(notes[0], report.folded[0].in_words()[0], "{name}");
                done.push(name);
            }
            Err(error) => {
                assert!(error.exit_code() == 2 && !error.to_string().contains('\n'), "{name}: {error}");
                assert!(error.to_string().contains("the network has no"), "{name}: {error}");
                assert!(!output.exists() && !directory.path().join("out.stages").exists(), "{name}");
            }
        }
    }
    done
}

#[test]
fn batch_norms_become_identities() {
    let done = every_family("method = \"batch-norm\"");
    assert!(done.len() >= 10, "{done:?}");
    let directory = tempfile::tempdir().unwrap();
    let model = in_f32(&family("resnet"), &directory.path().join("model"), |_, _| {});
    let output = directory.path().join("out");
    let n = folded(&model, &output, "method = \"batch-norm\"").unwrap().folded[0].n_places;
    let found = tensors(&output);
    let variances: Vec<_> = found.iter().filter(|(name, _)| name.ends_with("running_var")).collect();
    assert_eq!(variances.len(), n);
    for (name, (_, variance)) in variances {
        let of = |key: &str| &found[&name.replace("running_var", key)].1;
        assert!(variance.iter().all(|value| *value == (1.0 - 1e-5) as f32), "{name}");
        assert!(of("weight").iter().all(|value| *value == 1.0) && of("running_mean").iter().all(|value| *value == 0.0));
        assert!(of("bias").iter().any(|value| *value != 0.0), "{name}");
    }
}

#[test]
fn equalized_layers_have_equal_ranges() {
    let done = every_family("method = \"equalize\"");
    assert!(done.len() >= 10, "{done:?}");
    let directory = tempfile::tempdir().unwrap();
    // OPT has a ReLU between its two feed-forward layers.
    let model = in_f32(&family("opt"), &directory.path().join("model"), |name, values| {
        if name.ends_with("fc1.weight") {
            values.iter_mut().enumerate().for_each(|(at, value)| *value *= 1.0 + (at / 16) as f32);
        }
    });
    let output = directory.path().join("out");
    folded(&model, &output, "method = \"equalize\"").unwrap();
    let found = tensors(&output);
    let mut n_compared = 0;
    for (name, (shape, before)) in found.iter().filter(|(name, _)| name.ends_with("fc1.weight")) {
        let after = &found[&name.replace("fc1", "fc2")].1;
        let most = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0_f32, |most, value| most.max(value.abs()));
        for unit in 0..shape[0] {
            let row = most(&mut before[unit * shape[1]..(unit + 1) * shape[1]].iter().copied());
            let column = most(&mut after.iter().skip(unit).step_by(shape[0]).copied());
            assert!((row / column - 1.0).abs() < 1e-4, "{name} {unit}: {row} {column}");
            n_compared += 1;
        }
    }
    assert!(n_compared >= 32, "{n_compared}");
}

#[test]
fn smoothed_layers_have_the_scales_of_the_formula() {
    let done = every_family("method = \"smooth\"\nstatistics = \"STATISTICS\"");
    assert!(done.len() >= 40, "{done:?}");
    let directory = tempfile::tempdir().unwrap();
    let model = in_f32(&family("llama"), &directory.path().join("model"), |_, _| {});
    let (output, file) = (directory.path().join("out"), directory.path().join("stats.safetensors"));
    statistics(&model, &file);
    let keys = format!("method = \"smooth\"\nalpha = 0.5\nstatistics = {:?}", file.display().to_string());
    folded(&model, &output, &keys).unwrap();
    let (before, after) = (tensors(&model), tensors(&output));
    let block = "model.layers.1.";
    let inputs = &StatisticsFile::read(&file).unwrap().layers[&format!("{block}self_attn.q_proj")].max;
    let norm = format!("{block}input_layernorm.weight");
    for (unit, input) in inputs.iter().enumerate() {
        let columns = ["q", "k", "v"].map(|name| &before[&format!("{block}self_attn.{name}_proj.weight")]);
        let of_layer = |(shape, values): &(Vec<usize>, Vec<f32>)| {
            values.iter().skip(unit).step_by(shape[1]).fold(0.0_f32, |most, value| most.max(value.abs()))
        };
        let weight = columns.into_iter().map(of_layer).fold(0.0, f32::max);
        let (expected, found) = ((input / weight).sqrt(), before[&norm].1[unit] / after[&norm].1[unit]);
        assert!((found / expected - 1.0).abs() < 1e-4, "{unit}: {found} {expected}");
    }
}

#[test]
fn automatic_scales_keep_the_function() {
    let done = every_family("method = \"auto\"\nscheme = \"int8-dynamic\"\nstatistics = \"STATISTICS\"");
    assert!(done.len() >= 40, "{done:?}");
}

#[test]
fn awq_scales_keep_the_function() {
    let done = every_family("method = \"awq\"\nscheme = \"int4-g8\"\nstatistics = \"STATISTICS\"");
    assert!(done.len() >= 40, "{done:?}");
}

#[test]
fn missing_statistics_are_one_line_before_any_work() {
    let directory = tempfile::tempdir().unwrap();
    let model = in_f32(&family("llama"), &directory.path().join("model"), |_, _| {});
    let (output, file) = (directory.path().join("out"), directory.path().join("stats.safetensors"));
    statistics(&model, &file);
    let mut known = StatisticsFile::read(&file).unwrap();
    known.layers.retain(|name, _| !name.contains("layers.1.mlp.down_proj"));
    known.write(&file).unwrap();
    let keys = format!("method = \"smooth\"\nstatistics = {:?}", file.display().to_string());
    let error = folded(&model, &output, &keys).unwrap_err();
    assert!(error.exit_code() == 4 && !error.to_string().contains('\n'), "{error}");
    assert!(error.to_string().contains("layers.1.mlp.down_proj") && error.to_string().contains("no inputs"), "{error}");
    let other = in_f32(&family("qwen2"), &directory.path().join("other"), |_, _| {});
    let error = folded(&other, &output, &keys).unwrap_err();
    assert!(error.to_string().contains("statistics of another model"), "{error}");
    assert!(!output.exists() && !directory.path().join("out.stages").exists());
}

#[test]
fn wrong_stages_are_one_line_before_any_work() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("out");
    let refused = |keys: &str| folded(&family("resnet"), &output, keys).unwrap_err().to_string();
    let error = refused("method = \"batch-norm\"\ninclude = [\"nothing*\"]");
    assert!(error.contains("nothing*") && !error.contains('\n'), "{error}");
    let text = |keys: &str| {
        let text = format!("model.path = \"m\"\noutput.path = \"o\"\n[[stage]]\nkind = \"fold\"\n{keys}\n");
        Recipe::from_raw(parse(&text, "r.toml").unwrap(), "".as_ref()).unwrap_err().to_string()
    };
    assert!(
        text("").starts_with("stage 1 (fold): method: missing; set it to one of batch-norm, equalize, rotate, smooth")
    );
    assert!(
        text("method = \"equalise\"").contains("expected one of batch-norm, equalize"),
        "{}",
        text("method = \"x\"")
    );
    assert!(text("method = \"smooth\"").contains("statistics: missing; method `smooth` needs layer inputs"));
    assert!(text("method = \"equalize\"\nalpha = 0.5").contains("alpha: a equalize fold stage has no such key"));
    assert!(text("method = \"smooth\"\nalpha = 2").contains("alpha: found 2, expected a number from 0 to 1"));
    assert!(text("method = \"awq\"\nscheme = \"int9\"").contains("unknown scheme"));
    assert!(text("method = \"rotate\"\ninclude = [\"*\"]").contains("include: a rotate fold stage has no such key"));
    assert!(text("method = \"smooth\"\nseed = 1").contains("seed: a smooth fold stage has no such key"));
    assert!(text("method = \"equalize\"\nratio = 0.5").contains("ratio: a fold stage has no such key"));
    assert!(!output.exists());
}

#[test]
fn rotated_streams_have_no_outliers_and_keep_the_function() {
    let done = every_family("method = \"rotate\"");
    for name in ["llama", "mistral", "qwen2", "qwen3", "phi3"] {
        assert!(done.iter().any(|own| own == name), "{name} is not rotated: {done:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let model = in_f32(&family("llama"), &directory.path().join("model"), |name, values| {
        if name == "model.embed_tokens.weight" {
            values.iter_mut().step_by(16).for_each(|value| *value = 30.0);
        }
        if name.ends_with("layernorm.weight") {
            values.iter_mut().enumerate().for_each(|(at, value)| *value = 0.5 + at as f32 / 8.0);
        }
    });
    let output = directory.path().join("out");
    let report = folded(&model, &output, "method = \"rotate\"\nseed = 3").unwrap();
    assert!(report.folded[0].difference.unwrap() <= TOLERANCE);
    let found = tensors(&output);
    for (name, (_, values)) in &found {
        assert!(!name.ends_with("norm.weight") || values.iter().all(|value| *value == 1.0), "{name}");
    }
    let outlier = |values: &[f32]| {
        let mean = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        values.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / mean.sqrt()
    };
    let table = "model.embed_tokens.weight";
    let (before, after) = (outlier(&tensors(&model)[table].1), outlier(&found[table].1));
    assert!(before > 3.9 && after < 2.5, "{before} {after}");
    let other = directory.path().join("other");
    folded(&model, &other, "method = \"rotate\"\nseed = 4").unwrap();
    assert_ne!(tensors(&other)[table], found[table]);
}
