//! Tensors with equal values under two names: stored once, unless a pattern tells them apart.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of, tensors_of};

const TABLE: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A model whose head equals its table of tokens, with a layer between them.
fn model() -> Sandbox {
    let sandbox = Sandbox::new();
    let table = Tensor::random(TABLE, &[64, 32], 1);
    let head = Tensor::f32(HEAD, &[64, 32], table.floats());
    sandbox.write("m.safetensors", safetensors_of(&[table, head, Tensor::random("l.weight", &[32, 32], 2)]));
    sandbox
}

/// The values of the table and of the head in a dense copy of an output.
fn values(sandbox: &Sandbox, output: &str) -> [Vec<f32>; 2] {
    sandbox.ok(&format!("export {output} --to dense -o dense --force"));
    let tensors = tensors_of(&sandbox.path("dense"));
    [TABLE, HEAD].map(|name| tensors[name].floats())
}

#[test]
fn patterns_that_choose_one_of_two_equal_tensors_hold_in_every_format() {
    let sandbox = model();
    let original = tensors_of(&sandbox.path("m.safetensors"))[TABLE].floats();
    let rounded = |values: &[f32]| values != original;
    for (flags, expected) in [
        ("", [true, true]),
        ("--exclude lm_head.weight", [true, false]),
        ("--exclude **.embed_tokens.weight", [false, true]),
        ("--include lm_head.weight", [false, true]),
        ("--include **.embed_tokens.weight", [true, false]),
    ] {
        let ours = sandbox.ok(&format!("compress m.safetensors -o ours --quantize int8 --force {flags}"));
        let found = values(&sandbox, "ours");
        assert_eq!(found.each_ref().map(|values| rounded(values)), expected, "{flags}");
        sandbox.ok(&format!("compress m.safetensors -o floats --format dense --quantize int8 --force {flags}"));
        assert_eq!(values(&sandbox, "floats"), found, "{flags}");
        let says = "a pattern chooses only one of them, so both are stored";
        assert_eq!(ours.stdout.contains(says), expected[0] != expected[1], "{flags}: {}", ours.stdout);
    }
    // Pruning leaves tables of tokens as they are, and a head that equals one too.
    for format in ["briquette", "dense"] {
        sandbox.ok(&format!("compress m.safetensors -o pruned --format {format} --prune 0.5 --force"));
        assert_eq!(values(&sandbox, "pruned"), [original.clone(), original.clone()], "{format}");
    }
}
