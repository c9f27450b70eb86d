//! Size and bit budgets: outputs are at or just below the budget; an impossible budget is one line of error.

use crate::sandbox::Sandbox;
#[cfg(feature = "model")]
use crate::sandbox::{copy, repository};
use crate::weights::{Random, Tensor, safetensors_of, tensors_of};
use serde_json::Value;

/// Normally distributed matrices of different widths, and a norm.
pub(crate) fn model() -> Vec<Tensor> {
    let bell = |name: &str, shape: [usize; 2], width: f32, seed: u64| {
        let (n, mut random) = (shape[0] * shape[1], Random(seed));
        Tensor::f32(name, &shape, (0..n).map(|_| width * (0..6).map(|_| random.next_float() - 0.5).sum::<f32>()))
    };
    vec![
        bell("embed_tokens.weight", [900, 128], 0.4, 1),
        bell("layers.0.up_proj.weight", [512, 128], 0.05, 2),
        bell("layers.0.down_proj.weight", [128, 512], 0.02, 3),
        bell("layers.0.rows[0].weight", [128, 128], 3.0, 4),
        Tensor::f32("norm.weight", &[128], (0..128_u8).map(|i| 1.0 + f32::from(i) / 64.0)),
    ]
}

pub(crate) fn file_bytes(sandbox: &Sandbox, output: &str) -> u64 {
    std::fs::metadata(sandbox.path(output).join("model.briquette.safetensors")).unwrap().len()
}

#[test]
fn outputs_are_at_most_and_nearly_their_size_budget() {
    let sandbox = Sandbox::new();
    sandbox.write("model/model.safetensors", safetensors_of(&model()));
    let mut random = Random(7);
    for round in 0..12 {
        let bytes = 50_000 + random.below(160_000);
        let flags = if round % 3 == 0 { "--quantize step-dynamic" } else { "" };
        let report = sandbox.json(&format!("compress model -o out --force --quiet --bytes {bytes} {flags}"));
        let found = file_bytes(&sandbox, "out");
        assert!(found <= bytes && found as f64 >= 0.995 * bytes as f64, "{found} of {bytes}");
        assert_eq!(report["after"]["file_bytes"], found);
        sandbox.ok("verify out --against model");
    }
    let manifest: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/briquette.json")).unwrap()).unwrap();
    let overrides = manifest["recipe"]["stage"][0]["overrides"].as_array().unwrap();
    assert_eq!(overrides.len(), 4);
    assert!(overrides.iter().all(|rule| rule["scheme"].as_str().unwrap().starts_with("step")), "{overrides:?}");
}

#[test]
fn weights_of_any_size_and_tensors_of_zeros_fit_a_budget() {
    let sandbox = Sandbox::new();
    let mut random = Random(3);
    for (at, width) in [0.0, 1e-44, 1e-33, 1e-12, 1e12, 1e34].into_iter().enumerate() {
        let values: Vec<f32> = (0..64 * 96).map(|_| width * random.next_float()).collect();
        let odd = Tensor::f32("odd.weight", &[64, 96], values);
        let model: Vec<Tensor> = model().into_iter().chain([odd.clone()]).collect();
        sandbox.write(&format!("{at}.safetensors"), safetensors_of(&model));
        sandbox.write(&format!("{at}-alone.safetensors"), safetensors_of(&[odd]));
        for (model, flags) in [("", "--bits 4"), ("-alone", "--bits 4"), ("", "--bytes 90000 --quantize step-dynamic")]
        {
            sandbox.ok(&format!("compress {at}{model}.safetensors -o out --force --quiet {flags}"));
            sandbox.ok(&format!("verify out --against {at}{model}.safetensors"));
            let (before, after) =
                (values_of(&sandbox, &format!("{at}{model}.safetensors")), values_of(&sandbox, "out"));
            let sum = |pairs: &mut dyn Iterator<Item = f64>| pairs.sum::<f64>();
            let error = sum(&mut before.iter().zip(&after).map(|(a, b)| (a - b).powi(2)));
            let whole = sum(&mut before.iter().map(|a| a * a));
            // f32 has no steps finer than its subnormals.
            assert!(width < 1e-40 || error <= 0.2 * whole, "{width:e}{model} {flags}: {error:e} of {whole:e}");
        }
    }
}

/// Returns the values of the tensor `odd.weight`.
fn values_of(sandbox: &Sandbox, model: &str) -> Vec<f64> {
    tensors_of(&sandbox.path(model))["odd.weight"].floats().into_iter().map(f64::from).collect()
}

#[test]
fn a_bit_budget_counts_quantized_weights_and_gives_small_tensors_more_bits() {
    let sandbox = Sandbox::new();
    sandbox.write("model/model.safetensors", safetensors_of(&model()));
    let report = sandbox.json("compress model -o out --bits 3 --quiet");
    let tensors = report["tensors"].as_array().unwrap();
    let coded: Vec<&Value> = tensors.iter().filter(|tensor| tensor["shape"].as_array().unwrap().len() == 2).collect();
    let bits = |tensor: &Value| tensor["bits_per_weight"].as_f64().unwrap();
    let size = |tensor: &Value| -> f64 {
        tensor["shape"].as_array().unwrap().iter().map(|extent| extent.as_f64().unwrap()).product()
    };
    let n_bits: f64 = coded.iter().map(|tensor| size(tensor) * bits(tensor)).sum();
    let n: f64 = coded.iter().map(|tensor| size(tensor)).sum();
    assert!((2.9..3.02).contains(&(n_bits / n)), "{} bits: {coded:?}", n_bits / n);
    // Relative errors of all tensors count the same, and bits of small tensors cost fewer bytes.
    let mut by_size: Vec<(f64, f64)> = coded.iter().map(|tensor| (size(tensor), bits(tensor))).collect();
    by_size.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(by_size[0].1 > by_size[1].1 + 0.5 && by_size[2].1 > by_size[3].1 + 0.2, "{by_size:?}");
}

#[test]
#[cfg(feature = "model")]
fn a_budget_with_data_measures_sensitivity_and_updates_weights() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    let whole =
        sandbox.json("compress bert-tiny -o whole --quantize int8 --storage entropy")["after"]["file_bytes"].as_u64();
    let bytes = whole.unwrap() * 8 / 10;
    let line =
        format!("compress bert-tiny -o out --bytes {bytes} --data text.txt --max-length 16 --device cpu --quiet");
    let plan = sandbox.ok(&line.replace("compress", "plan").replace(" -o out", "").replace(" --quiet", "")).stdout;
    assert!(plan.contains(&format!("for at most {bytes} bytes of weight files")), "{plan}");
    for word in ["loss at four bits", "step", "by gradient, in 1 - cosine", "estimated total loss"] {
        assert!(plan.contains(word), "{word}: {plan}");
    }
    let report = sandbox.json(&line);
    let found = file_bytes(&sandbox, "out");
    assert!(found <= bytes && found as f64 >= 0.99 * bytes as f64, "{found} of {bytes}");
    assert!(report["tensors"].as_array().unwrap().iter().any(|tensor| !tensor["solved"].is_null()), "{report}");
    let steps = report["allocation"]["tensors"].as_array().unwrap();
    assert!(steps.len() > 10 && steps.iter().all(|tensor| tensor["bytes"].as_f64().unwrap() > 0.0), "{steps:?}");
    assert!(std::fs::read_to_string(sandbox.path("out/report.html")).unwrap().contains("Where the bytes went"));
    assert!(!sandbox.path("out.stages").exists());
    let weights = || std::fs::read(sandbox.path("out/model.briquette.safetensors")).unwrap();
    let first = weights();
    sandbox.ok(&format!("{line} --force --threads 1"));
    assert!(first == weights(), "one thread gives other bytes");
    let eval = "eval out --data text.txt --max-length 16 --against bert-tiny --device cpu";
    assert!(sandbox.json(eval)["metrics"]["cosine"].as_f64().unwrap() > 0.9);
}

/// A matrix with three of four weights near zero, and a normally distributed one.
fn mostly_tiny() -> Vec<Tensor> {
    let mut random = Random(11);
    let tiny = |at: usize| if at.is_multiple_of(4) { 1.0 } else { 1e-4 };
    let mut values = |size: fn(usize) -> f32| -> Vec<f32> {
        (0..256 * 256).map(|at| size(at) * (0..6).map(|_| random.next_float() - 0.5).sum::<f32>()).collect()
    };
    vec![
        Tensor::f32("layers.0.tiny_proj.weight", &[256, 256], values(tiny)),
        Tensor::f32("layers.0.bell_proj.weight", &[256, 256], values(|_| 1.0)),
    ]
}

#[test]
fn a_budget_prunes_the_tensors_that_lose_the_least() {
    let sandbox = Sandbox::new();
    sandbox.write("model/model.safetensors", safetensors_of(&mostly_tiny()));
    let flags = "--choices int8,int4-g32,int8+0.75,int4-g32+2:4";
    for (bytes, of_bell) in [(96_000, "int8"), (66_000, "int4-g32")] {
        let plan = sandbox.ok(&format!("plan model --bytes {bytes} {flags}")).stdout;
        assert!(plan.contains("int8+0.75"), "{plan}");
        let report = sandbox.json(&format!("compress model -o out --force --quiet --bytes {bytes} {flags}"));
        let schemes = |name: &str| {
            let tensors = report["allocation"]["tensors"].as_array().unwrap();
            let tensor = tensors.iter().find(|tensor| tensor["name"].as_str().unwrap().contains(name)).unwrap();
            tensor["scheme"].as_str().unwrap().to_string()
        };
        assert_eq!((schemes("tiny").as_str(), schemes("bell").as_str()), ("int8+0.75", of_bell), "{report}");
        let tensors = report["tensors"].as_array().unwrap();
        let tiny = tensors.iter().find(|tensor| tensor["name"].as_str().unwrap().contains("tiny")).unwrap();
        let is_sparse =
            tiny["encoding"].as_str().unwrap().contains("bitmask") && tiny["sparsity"].as_f64().unwrap() >= 0.75;
        assert!(is_sparse, "{tiny}");
        let predicted = report["allocation"]["tensors"].as_array().unwrap();
        let predicted: f64 = predicted.iter().map(|tensor| tensor["bytes"].as_f64().unwrap()).sum();
        let found = file_bytes(&sandbox, "out");
        assert!(found <= bytes && found as f64 > predicted && predicted > 0.95 * bytes as f64 - 6000.0, "{found}");
        sandbox.ok("verify out --against model");
        let text = std::fs::read(sandbox.path("out/briquette.json")).unwrap();
        let stages = serde_json::from_slice::<Value>(&text).unwrap()["recipe"]["stage"].clone();
        assert_eq!(
            (stages[0]["kind"].as_str(), stages[0]["sparsity"].as_f64()),
            (Some("prune"), Some(0.75)),
            "{stages}"
        );
        assert_eq!(stages[0]["include"].as_array().unwrap().len(), 1, "{stages}");
    }
}

#[test]
fn impossible_budgets_are_refused_in_one_line() {
    let sandbox = Sandbox::with("digits");
    let cases = [
        ("compress digits -o out --bytes 2kB", "found 2000 bytes, expected at least"),
        ("compress digits -o out --bytes much", "--bytes: found \"much\", expected a size"),
        ("compress digits -o out --bits 9", "--bits: found 9"),
        ("compress digits -o out --bits 3 --bytes 1MB", "remove one of the two"),
        ("compress digits -o out --quantize step", "--quantize: found step without a size"),
        ("compress digits -o out --quantize int8 --bytes 20kB", "remove --quantize"),
        ("compress digits -o out --bytes 20kB --format dense", "--format: found dense with a budget of step sizes"),
        ("compress digits -o out --bytes 20kB --storage auto", "always uses entropy coding"),
        ("compress digits -o out --bytes 20kB --sensitivity measured", "needs data"),
        ("compress digits -o out --bytes 20kB --include nothing.weight", "nothing.weight"),
        ("compress digits -o out --bytes 20kB --choices int8+1.0", "expected a number from 0 to below 1"),
        ("compress digits -o out --bytes 20kB --choices int8+5:4", "pattern: found \"5:4\""),
        ("compress digits -o out --bytes 20kB --choices step,int8+0.5", "remove it, or \"step\""),
        ("compress digits -o out --bytes 20kB --choices int8+0.5 --storage entropy", "remove it, or --storage"),
        ("compress digits -o out --bytes 20kB --choices int8+0.5 --prune 0.5", "is pruned by a stage already"),
        ("compress digits -o out --bytes 20kB --choices int8+2:7", "a pattern that divides"),
    ];
    for (line, phrase) in cases {
        sandbox.run(line).assert_fails(2, &[phrase]);
        assert!(!sandbox.path("out").exists(), "{line}");
    }
}

#[test]
#[cfg(feature = "model")]
fn a_sweep_writes_every_size_and_a_page_that_links_to_each() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    sandbox.ok("compress bert-tiny -o int8 --quantize int8 --eval text.txt --max-length 16 --device cpu");
    let whole = sandbox.json("inspect int8")["file_bytes"].as_u64().unwrap();
    let (first, last) = (whole * 6 / 10, whole * 9 / 10);
    let line = format!(
        "sweep bert-tiny -o sizes --bytes {first}..{last} --points 3 --data text.txt --eval text.txt --max-length 16 --device cpu"
    );
    let found = sandbox.json(&format!("{line} --also int8"));
    let jobs = found["jobs"].as_array().unwrap();
    assert_eq!((jobs.len(), found["n_done"].as_u64()), (3, Some(3)), "{found}");
    let cosine = |job: &Value| job["metrics"]["cosine"].as_f64().unwrap();
    assert!(cosine(&jobs[0]) < cosine(&jobs[1]) && cosine(&jobs[1]) < cosine(&jobs[2]), "{jobs:?}");
    // The middle size is rounded to three digits.
    let middle = (first as f64 * last as f64).sqrt();
    let unit = 10_f64.powf(middle.log10().floor() - 2.0);
    for (job, most) in jobs.iter().zip([first, ((middle / unit).round() * unit) as u64, last]) {
        let bytes = job["after_bytes"].as_u64().unwrap();
        assert!(bytes <= most && bytes as f64 >= 0.99 * most as f64, "{bytes} of {most}");
    }
    let page = std::fs::read_to_string(sandbox.path("sizes/sweep.report.html")).unwrap();
    let links = page.matches("/report.html\"").count();
    assert!(links >= 7 && page.contains("../int8/report.html"), "{links}: {page}");
    let of_jobs: f64 = jobs.iter().map(|job| job["seconds"].as_f64().unwrap()).sum();
    assert!(found["seconds"].as_f64().unwrap() >= of_jobs, "the total includes the sensitivities: {found}");
    let text = sandbox.run(&format!("{line} --also int8 --resume")).stdout;
    let (here, first_line) = (sandbox.path("").canonicalize().unwrap(), text.lines().next().unwrap());
    assert!(first_line.contains(" → ") && first_line.contains("; cosine 0."), "the result comes first: {text}");
    assert!(text.contains("sizes/sweep.report.html") && !text.contains(here.to_str().unwrap()), "{text}");
    assert!(text.lines().nth(2).unwrap().contains("cosine"), "{text}");
    assert!(page.contains("<p class=\"verdict\">cosine 0.") && !page.contains(here.to_str().unwrap()), "{page}");
    let again = sandbox.json(&format!("{line} --also int8 --resume"));
    assert_eq!((again["n_skipped"].as_u64(), again["n_done"].as_u64()), (Some(3), Some(0)));
    // Another sensitivity method measures the losses again and makes the outputs again.
    let again = sandbox.json(&format!("{line} --also int8 --resume --sensitivity measured"));
    assert_eq!((again["n_skipped"].as_u64(), again["n_done"].as_u64()), (Some(0), Some(3)), "{again}");
    sandbox.run(&line).assert_fails(6, &["sweep.toml: belongs to another sweep", "--force"]);
    sandbox.ok("run sizes/sweep.toml --resume");
    let cases = [
        ("sweep bert-tiny -o s --bytes 9kB..8kB --eval text.txt", "the smaller size first"),
        ("sweep bert-tiny -o s --bytes 8kB..9kB", "--eval"),
        ("sweep bert-tiny -o s --quantize int8 --eval text.txt", "set the sizes"),
        ("sweep bert-tiny -o s --bytes 8kB..9kB --points 0 --eval text.txt", "--points"),
    ];
    for (line, phrase) in cases {
        sandbox.run(line).assert_fails(2, &[phrase]);
    }
}

#[test]
#[cfg(feature = "model")]
fn files_of_a_failed_run_with_another_budget_are_not_used() {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures/digits-data.safetensors"), &sandbox.path("data.safetensors"));
    let line = |output: &str, bytes: &str| {
        format!("compress digits -o {output} --quiet --data data.safetensors --device cpu --bytes {bytes}")
    };
    sandbox.ok(&line("fresh", "12kB"));
    // A run that fails keeps the sensitivities it found, as a killed run does.
    sandbox.run(&line("out", "9kB --cast f16 --exclude fc1.weight")).assert_fails(2, &["budget"]);
    sandbox.ok(&line("out", "12kB"));
    let weights = |output: &str| std::fs::read(sandbox.path(output).join("model.briquette.safetensors")).unwrap();
    assert!(weights("fresh") == weights("out"));
}

#[test]
fn queries_keys_and_values_get_schemes_of_one_kernel() {
    let bell = |name: String, width: f32, seed: u64| {
        let mut random = Random(seed);
        let values = (0..128 * 128).map(|_| width * (0..6).map(|_| random.next_float() - 0.5).sum::<f32>());
        Tensor::f32(&name, &[128, 128], values.collect::<Vec<f32>>())
    };
    // Chosen one by one, only the narrow tensors of each layer would get 4 bits.
    let layer = |layer: u16| {
        ["q", "k", "v", "o"].into_iter().zip([1_u16, 30, 2, 4]).map(move |(name, width)| {
            let seed = u64::from(layer) * 100 + u64::from(width);
            bell(format!("layers.{layer}.attn.{name}_proj.weight"), f32::from(layer + 1) * f32::from(width), seed)
        })
    };
    let sandbox = Sandbox::new();
    sandbox.write("model/model.safetensors", safetensors_of(&(0..3).flat_map(layer).collect::<Vec<Tensor>>()));
    for bytes in [125_000, 150_000, 175_000] {
        let flags = "--choices int8-dynamic,int8-dynamic+0.5,int4-g64";
        let report = sandbox.json(&format!("compress model -o out --force --quiet --bytes {bytes} {flags}"));
        let tensors = report["allocation"]["tensors"].as_array().unwrap();
        let is_narrow = |name: &str| {
            let tensor = tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
            tensor["scheme"].as_str().unwrap().starts_with("int4")
        };
        let mut n_narrow = 0;
        for layer in 0..3 {
            let of = |name: &str| is_narrow(&format!("layers.{layer}.attn.{name}_proj.weight"));
            assert!(of("q") == of("k") && of("k") == of("v"), "{bytes}: {tensors:?}");
            n_narrow += usize::from(of("q"));
        }
        assert!(bytes == 175_000 || n_narrow > 0, "{bytes}: {tensors:?}");
    }
}

#[test]
fn a_budget_may_choose_among_schemes() {
    let sandbox = Sandbox::new();
    sandbox.write("model/model.safetensors", safetensors_of(&model()));
    for (bytes, schemes) in [(190_000, 2), (160_000, 2), (300_000, 1)] {
        let line = format!("compress model -o out --force --quiet --bytes {bytes} --choices int8,int4-g64");
        let report = sandbox.json(&line);
        let found = std::fs::metadata(sandbox.path("out/model.briquette.safetensors")).unwrap().len();
        assert!(found <= bytes && (found as f64 >= 0.8 * bytes as f64 || schemes == 1), "{found} of {bytes}");
        let tensors = report["allocation"]["tensors"].as_array().unwrap();
        let used: std::collections::BTreeSet<&str> = tensors.iter().map(|it| it["scheme"].as_str().unwrap()).collect();
        assert!(used.len() == schemes && used.contains("int8"), "{used:?}");
        sandbox.ok("verify out --against model");
    }
    let report = sandbox.json("compress model -o both --quiet --bytes 120kB --choices step,int4-g64 ");
    assert!(report["after"]["file_bytes"].as_u64().unwrap() <= 120_000, "{report}");
    let cases = [
        ("compress model -o none --bytes 120kB --choices int8+2:3", "no choice has a pattern that divides its rows"),
        ("compress model -o none --bytes 120kB --choices step0.1-dynamic,steep", "--choices: unknown scheme \"steep\""),
        ("compress model -o none --bytes 60kB --choices int8", "expected at least"),
        ("compress model -o none --choices int8", "--b"),
    ];
    for (line, phrase) in cases {
        sandbox.run(line).assert_fails(2, &[phrase]);
        assert!(!sandbox.path("none").exists(), "{line}");
    }
}

#[test]
#[cfg(feature = "model")]
fn training_after_a_budget_keeps_its_step_sizes_and_its_size() {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures/digits-data.safetensors"), &sandbox.path("data.safetensors"));
    let recipe = |bytes: &str, keys: &str| {
        format!(
            "[model]\npath = \"digits\"\n[output]\npath = \"out\"\n[budget]\nbytes = \"{bytes}\"\n[data]\ntrain = \"data.safetensors\"\n\
             eval = \"data.safetensors\"\n[calibration]\ndata = \"data.safetensors\"\n[[stage]]\nkind = \"distill\"\n\
             loss = [{{ kind = \"logits\" }}]\nepochs = 2\ndropout = false\nquantization_aware = true\n{keys}\n[[stage]]\nkind = \"quantize\"\nscheme = \"step\"\n\
             round = \"gptq\"\n[[stage]]\nkind = \"evaluate\"\n"
        )
    };
    sandbox.write("r.toml", recipe("14kB", "rate = 0.001"));
    let report = sandbox.json("distill r.toml --quiet --device cpu");
    let bytes = report["after"]["file_bytes"].as_u64().unwrap();
    assert!(bytes <= 14_000 && bytes > 11_000, "{bytes}");
    assert!(report["evaluation"]["metrics"]["agreement"].as_f64().unwrap() > 0.95, "{}", report["evaluation"]);
    let schemes = report["allocation"]["tensors"].as_array().unwrap();
    assert!(schemes.len() == 4 && schemes.iter().all(|it| it["scheme"].as_str().unwrap().starts_with("step")));
    sandbox.ok("verify out");
    assert!(!sandbox.path("out.stages").exists());
    let weights = || std::fs::read(sandbox.path("out/model.briquette.safetensors")).unwrap();
    let first = weights();
    sandbox.ok("distill r.toml --quiet --device cpu --force");
    assert!(first == weights(), "a second run gives other bytes");
    let cases = [
        (recipe("14kB", "rate = 0.001").replace("\"step\"", "\"int8\""), "none of the last stages has step sizes"),
        (recipe("14kB", "rate = 0.1").replace("quantization_aware = true\n", ""), "needs quantization-aware"),
        (recipe("14kB", "").replace("bytes = \"14kB\"", "min = { agreement = 0.9 }"), "not known in advance"),
        (recipe("14kB", "rate = -1"), "rate: found -1"),
    ];
    for (text, phrase) in cases {
        sandbox.write("bad.toml", text);
        sandbox.run("distill bad.toml --device cpu --force").assert_fails(2, &[phrase]);
    }
}

#[cfg(feature = "model")]
#[test]
fn a_budget_after_a_pruned_and_trained_model_belongs_to_the_last_stages() {
    let recipe = crate::distill::RECIPE.replace("scheme = \"int8\"", "scheme = \"step\"");
    let sandbox = crate::distill::digits(&format!(
        "{}[budget]\nbits = 3.0\n",
        recipe.replace("accuracy = 0.9", "accuracy = 0.3")
    ));
    sandbox.ok("plan recipe.toml");
    let report = sandbox.json("distill recipe.toml --quiet");
    let tensors = report["allocation"]["tensors"].as_array().unwrap();
    let sum = |key: &str| tensors.iter().map(|tensor| tensor[key].as_f64().unwrap()).sum::<f64>();
    assert!(8.0 * sum("bytes") <= 3.0 * sum("n_weights"), "{tensors:?}");
}
