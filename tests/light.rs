//! The build without features: a command that needs a feature prints how to build it.

use crate::sandbox::Sandbox;

const BUILD: &str = "build it with `cargo build --release -p briquette-cli`";

#[test]
fn commands_that_run_a_model_print_how_to_build_with_the_feature() {
    let sandbox = Sandbox::with("digits");
    sandbox.write("text.txt", "one\ntwo\n");
    let recipe = "[model]\npath = \"digits\"\n[output]\npath = \"out\"\n[data]\ntrain = \"text.txt\"\n[[stage]]\nkind = \"distill\"\n\
        teacher = \"digits\"\nloss = [{ kind = \"logits\" }]\n";
    sandbox.write("r.toml", recipe);
    let lines = [
        "eval digits --data text.txt",
        "generate digits --prompt a",
        "calibrate digits --data text.txt -o stats.safetensors",
        "sensitivity digits --data text.txt",
        "sensitivity digits --data text.txt --how measured",
        "compress digits -o out --bytes 9kB --data text.txt",
        "compress digits -o out --bits 3 --sensitivity measured --data text.txt",
        "plan digits --bytes 9kB --data text.txt",
        "sweep digits -o out --bytes 6kB..9kB --data text.txt --eval text.txt",
        "compress digits -o out --quantize int8 --eval text.txt",
        "compress digits -o out --min cosine=0.9 --eval text.txt",
        "compress digits -o out --prune 0.5 --prune-method wanda --data text.txt",
        "distill r.toml",
        "export digits --to onnx --quantize int8-static --data text.txt -o out",
    ];
    for line in lines {
        let outcome = sandbox.run(line);
        outcome.assert_fails(2, &["it lacks the feature `model`", BUILD]);
        assert!(!outcome.stderr.contains("relative"), "a worse method is suggested: {}", outcome.stderr);
        assert!(!sandbox.path("out").exists(), "{line}");
    }
}

#[test]
fn errors_of_unavailable_features_name_the_flag() {
    let sandbox = Sandbox::with("digits");
    sandbox.write("text.txt", "one\ntwo\n");
    for (line, flag) in [
        ("compress digits -o out --bytes 9kB --data text.txt", "error: --data: "),
        ("compress digits -o out --quantize int8 --eval text.txt", "error: --eval: "),
        ("plan digits --bytes 9kB --data text.txt", "error: --data: "),
    ] {
        sandbox.run(line).assert_fails(2, &[flag]);
    }
    sandbox.ok("compress digits -o out --bytes 9kB --sensitivity relative --quiet");
}

#[test]
fn gpus_need_a_build_with_cuda() {
    let sandbox = Sandbox::with("digits");
    let build = "build it with `cargo build --release -p briquette-cli --features cuda`";
    sandbox.run("compress digits -o out --quantize int8 --device cuda").assert_fails(2, &["\"cuda\"", build]);
    assert!(sandbox.ok("devices").stdout.contains(build));
}
