//! Training of scales while codes stay: values, formats, resumption, refusals.
#![cfg(feature = "model")]

use crate::distill::{assert_resumes_to_the_same_output, digits};
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::tensors_of;
use briquette::formats::stored::DecodeBuffers;
use briquette::formats::{Checkpoint, TensorSource};
use serde_json::Value;

const TRAINING: &str =
    "[[stage]]\nkind = \"distill\"\ntrain = \"scales\"\nepochs = 2\nlearning_rate = 1e-2\nsave_every = 5\n";

/// Returns a recipe that quantizes the digits network and trains its scales.
fn recipe(scheme: &str, output: &str, training: &str) -> String {
    format!(
        "[model]\npath = \"digits\"\n[output]\npath = \"out\"\n{output}[data]\ntrain = \"digits-data.safetensors\"\n\
         eval = \"digits-data.safetensors\"\n[memory]\nbatch_size = 64\n[[stage]]\nkind = \"quantize\"\nscheme = \"{scheme}\"\n\
         {TRAINING}loss = [{{ kind = \"logits\", temperature = 1 }}]\n{training}[[stage]]\nkind = \"evaluate\"\n"
    )
}

/// Returns the codes and the scales of a weight.
fn stored(sandbox: &Sandbox, out: &str, name: &str) -> (Vec<i8>, Vec<f32>) {
    let checkpoint = Checkpoint::open(&sandbox.path(out)).unwrap();
    let (stored, index) = (checkpoint.stored().unwrap(), checkpoint.stored().unwrap().find(name).unwrap());
    let rows = stored.tensors[index].rows();
    let mut codes = vec![0; rows.n_elements()];
    stored.read_codes(index, 0..rows.n_rows, &mut DecodeBuffers::default(), &mut codes).unwrap();
    (codes, stored.scales(index).unwrap())
}

fn kl(report: &Value) -> f64 {
    report["evaluation"]["metrics"]["kl"].as_f64().unwrap()
}

#[test]
fn codes_stay_and_the_loss_falls_in_a_file_of_the_same_size() {
    let sandbox = digits(&recipe("int2-g8", "", ""));
    let plain = "compress digits -o plain --quantize int2-g8 --eval digits-data.safetensors --quiet";
    let (before, after) = (sandbox.json(plain), sandbox.json("distill recipe.toml --threads 1 --quiet"));
    assert!(kl(&after) < 0.7 * kl(&before), "{} after {}", kl(&after), kl(&before));
    assert_eq!(before["after"]["file_bytes"], after["after"]["file_bytes"]);
    for name in ["fc1.weight", "fc2.weight"] {
        let [(codes, scales), (same, others)] = ["plain", "out"].map(|out| stored(&sandbox, out, name));
        assert!(codes == same && scales != others && others.iter().all(|scale| *scale > 0.0), "{name}");
    }
    let biases = ["plain", "out"].map(|out| tensors_of(&sandbox.path(out))["fc1.bias"].bytes.clone());
    assert_eq!(biases[0], biases[1]);
    sandbox.ok("verify out");
    assert_eq!(after["trained"][0]["student"], "the scales of the model's codes");
    assert!(!sandbox.path("out.stages").exists());
    // The report's figures are those of the output as it runs.
    let again = sandbox.json("eval out --data digits-data.safetensors --against digits");
    assert!((again["metrics"]["kl"].as_f64().unwrap() - kl(&after)).abs() < 1e-6, "{again}");
}

#[test]
fn a_compressed_model_is_trained_like_the_stages_that_made_it() {
    let sandbox = digits(&recipe("int3-g16", "", ""));
    sandbox.ok("distill recipe.toml --threads 1 --quiet");
    sandbox.ok("compress digits -o codes --quantize int3-g16 --quiet");
    let of_codes = recipe("int3-g16", "", "teacher = \"digits\"\n");
    let of_codes = of_codes.replace("\"digits\"\n[output]\npath = \"out\"", "\"codes\"\n[output]\npath = \"again\"");
    let of_codes = of_codes.replace("[[stage]]\nkind = \"quantize\"\nscheme = \"int3-g16\"\n", "");
    sandbox.write("codes.toml", &of_codes);
    sandbox.ok("distill codes.toml --threads 1 --quiet");
    let weights = |out: &str| std::fs::read(sandbox.path(out).join("model.briquette.safetensors")).unwrap();
    assert!(weights("again") == weights("out"));
    sandbox.write("codes.toml", of_codes.replace("teacher = \"digits\"\n", "").replace("\"again\"", "\"third\""));
    sandbox.run("distill codes.toml").assert_fails(2, &["teacher: missing", "quantized"]);
}

#[test]
fn formats_with_codes_or_floats_have_the_trained_values() {
    let sandbox = digits(&recipe("int4-g16", "", ""));
    let values = |out: &str| -> Vec<(String, Vec<u8>)> {
        tensors_of(&sandbox.path(out)).into_iter().map(|(name, tensor)| (name, tensor.bytes)).collect()
    };
    sandbox.ok("distill recipe.toml --threads 1 --quiet");
    sandbox.ok("export out --to dense -o dense --quiet");
    let of_format = |format: &str| {
        let output = format!("format = \"{format}\"\nallow_untested = true\n");
        let text = recipe("int4-g16", &output, "").replace("\"out\"", "\"other\"");
        sandbox.write("other.toml", text);
        sandbox.json("distill other.toml --threads 1 --quiet --force")
    };
    of_format("dense");
    assert!(values("other") == values("dense"));
    let report = of_format("compressed-tensors");
    sandbox.ok("compress digits -o plain --quantize int4-g16 --format compressed-tensors --allow-untested --quiet");
    let [(codes, scales), (same, others)] = ["plain", "other"].map(|out| stored(&sandbox, out, "fc1.weight"));
    assert!(codes == same && scales != others);
    let again = sandbox.json("eval other --data digits-data.safetensors --against digits");
    assert!((again["metrics"]["kl"].as_f64().unwrap() - kl(&report)).abs() < 1e-6, "{again}");
}

#[test]
fn a_killed_training_of_scales_resumes_to_the_same_output() {
    let sandbox = digits(&recipe("int4-g8", "", ""));
    assert_resumes_to_the_same_output(&sandbox, &[0, 5, 30]);
}

#[test]
fn codes_of_another_format_are_not_resumed() {
    let gate = "[gate]\nmax = { kl = 1e-9 }\n";
    let sandbox = digits(&(recipe("int2-g8", "", "") + gate));
    sandbox.run("distill recipe.toml --threads 1 --quiet").assert_fails(6, &["gate: kl"]);
    sandbox.write("recipe.toml", recipe("int2-g8", "format = \"dense\"\n", ""));
    sandbox
        .run("distill recipe.toml --threads 1 --quiet")
        .assert_fails(6, &["output.format was \"briquette\" and is \"dense\"", "--force"]);
}

#[test]
fn rounded_inputs_and_a_budget_of_entropy_coded_steps_are_trained() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    let head = "[model]\npath = \"bert-tiny\"\n[output]\npath = \"out\"\n[budget]\nbytes = \"24kB\"\n[data]\ntrain = \"text.txt\"\n\
                eval = \"text.txt\"\nmax_length = 16\n[calibration]\ndata = \"text.txt\"\nmax_length = 16\n[[stage]]\nkind = \"quantize\"\n\
                scheme = \"step-dynamic\"\nround = \"gptq\"\n";
    let training = "loss = [{ kind = \"embedding\" }]\n[[stage]]\nkind = \"evaluate\"\n";
    sandbox.write("r.toml", format!("{head}{TRAINING}{training}"));
    let report = sandbox.json("distill r.toml --quiet --device cpu");
    assert!(report["after"]["file_bytes"].as_u64().unwrap() <= 24_000, "{report}");
    assert!(report["allocation"]["tensors"].as_array().is_some_and(|tensors| !tensors.is_empty()), "{report}");
    sandbox.ok("verify out");
}

#[test]
fn scales_of_columns_and_frozen_tables_stay() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    let data = "[data]\ntrain = \"text.txt\"\neval = \"text.txt\"\nmax_length = 16\n";
    let calibration = "[calibration]\ndata = \"text.txt\"\nmax_length = 16\n";
    let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"int4-g8-dynamic\"\ncolumn_scales = true\n";
    let table = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\nroles = [\"embedding\"]\n";
    let training = format!("{TRAINING}loss = [{{ kind = \"embedding\" }}]\nfreeze = [\"embeddings.**\"]\n");
    let evaluate = "[[stage]]\nkind = \"evaluate\"\n";
    let recipe = |out: &str, training: &str| {
        format!(
            "[model]\npath = \"bert-tiny\"\n[output]\npath = \"{out}\"\n{data}{calibration}{quantize}roles = [\"linear\"]\n{table}\
             {training}{evaluate}"
        )
    };
    sandbox.write("plain.toml", recipe("plain", "").replace("train = \"text.txt\"\n", ""));
    sandbox.write("trained.toml", recipe("out", &training));
    let before = sandbox.json("run plain.toml --quiet --device cpu");
    let after = sandbox.json("distill trained.toml --quiet --device cpu");
    let cosine = |report: &Value| report["evaluation"]["metrics"]["cosine"].as_f64().unwrap();
    assert!(cosine(&after) > cosine(&before), "{} after {}", cosine(&after), cosine(&before));
    let (layer, table) = ("encoder.layer.0.output.dense.weight", "embeddings.word_embeddings.weight");
    let [(codes, scales), (same, others)] = ["plain", "out"].map(|out| stored(&sandbox, out, layer));
    assert!(codes == same && scales != others);
    assert!(stored(&sandbox, "plain", table) == stored(&sandbox, "out", table));
    let columns = ["plain", "out"].map(|out| {
        let checkpoint = Checkpoint::open(&sandbox.path(out)).unwrap();
        let index = checkpoint.stored().unwrap().find(layer).unwrap();
        checkpoint.columns(index).unwrap().map(|columns| columns.values().to_vec())
    });
    assert!(columns[0].is_some() && columns[0] == columns[1]);
    sandbox.ok("verify out");
    // The epochs of the training round inputs as the output does.
    let last = after["trained"][0]["epochs"].as_array().unwrap().last().unwrap()["metrics"]["cosine"].as_f64().unwrap();
    assert!((last - cosine(&after)).abs() < 1e-4, "{last} in the training, {}", cosine(&after));
}

#[test]
fn keys_that_do_not_fit_are_refused_in_one_line() {
    let cases = [
        ("student = \"layers\"\nn_layers = 1\n", "student"),
        ("prune = { sparsity = 0.5 }\n", "prune"),
        ("batch_norm = \"batch\"\n", "batch_norm"),
        ("rate = 0.1\n", "rate"),
        ("freeze = [\"**\"]\n", "freeze fewer"),
        ("freeze = [\"nothing\"]\n", "nothing"),
    ];
    for (keys, expected) in cases {
        let sandbox = digits(&recipe("int4", "", keys));
        sandbox.run("distill recipe.toml").assert_fails(2, &[expected]);
        assert!(!sandbox.path("out").exists());
    }
    let plain = recipe("int4", "", "");
    digits(&plain).run("distill recipe.toml --devices cpu,cpu").assert_fails(2, &["train", "several devices"]);
    let others = [
        (plain.replace("\"scales\"", "\"scale\""), "train"),
        (plain.replace("[[stage]]\nkind = \"quantize\"\nscheme = \"int4\"\n", ""), "put a quantize stage before it"),
        (plain.replace("[[stage]]\nkind = \"evaluate\"", "[[stage]]\nkind = \"cast\"\ndtype = \"f16\""), "comes last"),
    ];
    for (text, expected) in others {
        let sandbox = digits(&text);
        sandbox.run("distill recipe.toml").assert_fails(2, &[expected]);
    }
}

#[test]
fn scales_are_trained_after_other_parts() {
    let whole = recipe("int4-g8", "", "");
    let plain = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\", temperature = 1 }]\n";
    for before in [
        format!("[[stage]]\nkind = \"prune\"\nsparsity = 0.5\n{plain}"),
        "[[stage]]\nkind = \"factorize\"\nbytes = 0.6\n".to_string(),
    ] {
        let quantize = "[[stage]]\nkind = \"quantize\"";
        let sandbox = digits(&whole.replace(quantize, &format!("{before}{quantize}")));
        sandbox.ok("plan recipe.toml");
        let report = sandbox.json("distill recipe.toml --quiet");
        let trained = report["trained"].as_array().unwrap().last().unwrap();
        assert_eq!(trained["student"], "the scales of the model's codes", "{before}");
        sandbox.ok("verify out");
    }
}
