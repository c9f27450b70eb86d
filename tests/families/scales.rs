//! Scales of every family are trained as the output runs.

use super::models;
use super::{Decoder, Encoder, Images, MODELS, Pairs, Sounds, all};
use crate::sandbox::Sandbox;

/// Returns a sandbox with the model in f32, since weights decoded to f16 differ from those that kernels multiply.
fn with(fixture: &str) -> Sandbox {
    let sandbox = models::with(fixture);
    sandbox.ok("compress m -o f32 --cast f32");
    sandbox
}

/// Returns the recipe that quantizes `m` and trains its scales.
fn recipe(kind: super::Kind, scheme: &str, memory: &str) -> String {
    let (loss, data) = match kind {
        Encoder => ("embedding", "train = \"data.txt\"\neval = \"held.txt\"\nmax_length = 16"),
        Decoder => ("logits", "train = \"data.txt\"\neval = \"held.txt\"\nmax_length = 16"),
        Images => ("logits", "train = \"images\"\neval = \"images\""),
        Pairs | Sounds => unreachable!("encoder-decoders are not trained"),
    };
    let calibration = if scheme == "int8-static" { "[calibration]\ndata = \"images\"\nsamples = 2\n" } else { "" };
    format!(
        "[model]\npath = \"f32\"\n[output]\npath = \"out\"\n[data]\n{data}\n{calibration}{memory}[[stage]]\nkind = \"quantize\"\n\
         scheme = \"{scheme}\"\n[[stage]]\nkind = \"distill\"\ntrain = \"scales\"\nloss = [{{ kind = \"{loss}\" }}]\n\
         learning_rate = 1e-2\n[[stage]]\nkind = \"evaluate\"\n"
    )
}

#[test]
fn scales_of_every_family_are_trained_as_the_output_runs() {
    let models: Vec<_> = MODELS.iter().filter(|(.., kind)| matches!(kind, Encoder | Decoder | Images)).collect();
    all(
        &models,
        |(fixture, ..)| fixture.to_string(),
        |(fixture, _, kind)| {
            let sandbox = with(fixture);
            let static_int8 = if *kind == Images { "int8-static" } else { "int8-dynamic" };
            for scheme in ["int4-g8-dynamic", static_int8] {
                sandbox.write("recipe.toml", recipe(*kind, scheme, ""));
                let report = sandbox.json("distill recipe.toml --force");
                let metric = if *kind == Decoder { "perplexity" } else { "cosine" };
                // Codes of inputs halfway between two may differ, and kernels of encoders also round queries, keys and values.
                let bound = 2e-3;
                let trained = report["trained"][0]["epochs"][0]["metrics"][metric].as_f64().unwrap();
                let written = report["evaluation"]["metrics"][metric].as_f64().unwrap();
                assert!(
                    (trained / written - 1.0).abs() < bound,
                    "{fixture} {scheme}: {trained} trained, {written} written"
                );
                sandbox.ok("verify out");
                sandbox.ok(&format!("compress f32 -o plain --quantize {scheme} --force {}", data_of(scheme)));
                sandbox.ok("export plain --to dense -o before --force");
                sandbox.ok("export out --to dense -o after --force");
                let [before, after] = ["before", "after"].map(|out| crate::weights::tensors_of(&sandbox.path(out)));
                let changed = before.iter().filter(|(name, tensor)| after[*name] != **tensor).count();
                assert!(changed > 1, "{fixture} {scheme}: {changed} tensors changed");
            }
        },
    );
}

#[test]
fn a_run_by_block_rounds_inputs_as_kernels_do() {
    let models: Vec<_> = MODELS.iter().filter(|(.., kind)| matches!(kind, Encoder | Decoder)).collect();
    all(
        &models,
        |(fixture, ..)| fixture.to_string(),
        |(fixture, _, kind)| {
            let sandbox = with(fixture);
            for scheme in ["int4-g8-dynamic", "int8-dynamic"] {
                sandbox.ok(&format!("compress f32 -o out --quantize {scheme} --force"));
                let run = |against: &str, flags: &str| {
                    sandbox.json(&format!("eval out --against {against} --data held.txt --max-length 16 {flags}"))
                };
                let far =
                    |against: &str, flags: &str, name: &str| run(against, flags)["metrics"][name].as_f64().unwrap();
                let name = if *kind == Decoder { "perplexity" } else { "cosine" };
                let (whole, by_block) = (far("f32", "", name), far("f32", "--offload", name));
                assert!((by_block / whole - 1.0).abs() < 2e-3, "{fixture} {scheme}: {whole} and {by_block} by block");
                if *kind == Decoder {
                    // Heads have rounded inputs too, also that of the model beside it.
                    let (whole, by_block) = (far("f32", "", "kl"), far("f32", "--offload", "kl"));
                    assert!(
                        (by_block / whole - 1.0).abs() < 0.2,
                        "{fixture} {scheme}: KL {whole} and {by_block} by block"
                    );
                    let own = far("out", "", "kl");
                    assert!(own < 1e-6, "{fixture} {scheme}: KL {own} to itself");
                }
            }
        },
    );
}

fn data_of(scheme: &str) -> &'static str {
    if scheme == "int8-static" { "--data images --samples 2" } else { "" }
}

#[test]
fn checkpointed_gradients_and_parts_of_batches_train_the_same_scales() {
    for (fixture, kind) in [("bert", Encoder), ("qwen3_moe", Decoder)] {
        let sandbox = with(fixture);
        let mut outputs = Vec::new();
        for memory in
            ["batch_size = 4", "batch_size = 2\naccumulate = 2", "batch_size = 4\ngradient_checkpointing = true"]
        {
            let text = recipe(kind, "int4-g8", &format!("[memory]\n{memory}\n"));
            sandbox.write(
                "recipe.toml",
                text.replace("[[stage]]\nkind = \"distill\"", "[[stage]]\nkind = \"distill\"\ndropout = false"),
            );
            sandbox.ok("distill recipe.toml --force --threads 1 --quiet");
            sandbox.ok("export out --to dense -o dense --force");
            let tensors = crate::weights::tensors_of(&sandbox.path("dense"));
            outputs.push(tensors.into_values().flat_map(|tensor| tensor.floats()).collect::<Vec<f32>>());
        }
        for others in &outputs[1..] {
            let apart = outputs[0].iter().zip(others).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-3 && others.len() == outputs[0].len(), "{fixture}: {apart}");
        }
    }
}
