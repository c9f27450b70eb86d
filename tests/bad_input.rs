//! Bad files and commands: each ends in its exit code and one line of error, and changes nothing.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of, tiny};
use std::os::unix::fs::symlink;

/// A command, its exit code, and phrases of its error line.
pub(crate) type Case<'a> = (&'a str, i32, &'a [&'a str]);

/// A directory with `tiny.safetensors`.
fn with_tiny() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.safetensors", safetensors_of(&tiny()));
    sandbox
}

/// Checks that every case fails as expected, changes no file and leaves none.
pub(crate) fn assert_refused(sandbox: &Sandbox, cases: &[Case]) {
    let before = sandbox.files("");
    for (line, code, phrases) in cases {
        let outcome = sandbox.run(line);
        outcome.assert_fails(*code, phrases);
        for wrong in ["panicked", "RUST_BACKTRACE", "internal:"] {
            assert!(!outcome.stderr.contains(wrong), "{line}: {}", outcome.stderr);
        }
        assert!(sandbox.files("") == before, "{line}: changed files, now {:?}", sandbox.names());
    }
}

/// Checks that every command that reads a model refuses this one.
fn assert_bad_model(sandbox: &Sandbox, model: &str, code: i32, phrases: &[&str]) {
    for line in
        ["inspect M", "plan M --quantize int8", "compress M -o out --quantize int8", "export M --to dense -o out"]
    {
        assert_refused(sandbox, &[(&line.replace('M', model), code, phrases)]);
    }
}

#[test]
fn errors_name_files_that_are_no_checkpoint() {
    let sandbox = with_tiny();
    let good = safetensors_of(&tiny());
    let files: [(&str, Vec<u8>, &str); 10] = [
        ("empty.safetensors", Vec::new(), "empty file"),
        ("short.safetensors", good[..good.len() - 1].to_vec(), "cut short"),
        ("header.safetensors", good[..100].to_vec(), "cut short"),
        ("long.safetensors", [good.as_slice(), b"x"].concat(), "belong to no tensor"),
        ("lies.safetensors", [&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "an unknown format"),
        ("large.safetensors", [&99_999_999_u64.to_le_bytes()[..], b"{}"].concat(), "claims 99999999 bytes"),
        (
            "lfs.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n".into(),
            "git lfs pull",
        ),
        ("page.safetensors", b"<!DOCTYPE html>\n<html><body>Sign in</body></html>".into(), "web page"),
        ("model.safetensors", b"GGUF\x03\0\0\0\0\0\0\0".into(), "GGUF"),
        ("zeros.bin", vec![0; 4096], "starts with zeros"),
    ];
    for (name, bytes, phrase) in files {
        sandbox.write(name, bytes);
        assert_bad_model(&sandbox, name, 4, &[name, phrase]);
    }
}

#[test]
fn headers_that_contradict_their_file_are_refused() {
    let sandbox = with_tiny();
    let with_header =
        |json: &str, data: usize| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![1; data]].concat();
    let tensor =
        |shape: &str, offsets: &str| format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
    let cases = [
        (tensor("[3]", "[0,8]"), 8, "expected 12"),
        (tensor("[4294967296,4294967296]", "[0,8]"), 8, "no size in bytes"),
        (tensor("[2]", "[8,16]"), 16, "hole"),
        (tensor("[2]", "[0,8]").replace("F32", "Q9"), 8, "unknown type"),
        ("{}".to_string(), 0, "no tensor"),
        ("{\"a\"".to_string(), 0, "not valid"),
    ];
    for (json, n_data, phrase) in cases {
        sandbox.write("m.safetensors", with_header(&json, n_data));
        assert_bad_model(&sandbox, "m.safetensors", 4, &[phrase]);
    }
}

#[test]
fn paths_without_a_checkpoint_are_refused() {
    let sandbox = with_tiny();
    let pipe = sandbox.path("pipe.safetensors");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    assert_bad_model(&sandbox, "pipe.safetensors", 4, &["pipe.safetensors", "a pipe"]);
    assert_bad_model(&sandbox, "nowhere", 4, &["nowhere", "no such file"]);
    assert_bad_model(&sandbox, "tiny.safetensors/x", 4, &["no such file"]);
    assert_bad_model(&sandbox, "/dev/null", 4, &["/dev/null", "device"]);
    sandbox.write("none/readme.txt", "x");
    assert_bad_model(&sandbox, "none", 4, &["none", "found no weights"]);
    sandbox.write("two/a.safetensors", "x");
    sandbox.write("two/b.safetensors", "x");
    assert_bad_model(&sandbox, "two", 2, &["2 weight files and no index", "a.safetensors"]);
    symlink("loop", sandbox.path("loop")).unwrap();
    let outcome = sandbox.run("inspect loop");
    assert!([4, 5].contains(&outcome.code) && outcome.stderr.lines().count() == 1, "{outcome:?}");
}

#[test]
fn some_parts_of_a_model_are_not_the_model() {
    let sandbox = Sandbox::with("digits-sharded");
    std::fs::remove_file(sandbox.path("digits-sharded/model.safetensors.index.json")).unwrap();
    let missing = "is one of 3 parts of a model, and their index is missing";
    assert_bad_model(&sandbox, "digits-sharded", 4, &[missing]);
    for part in ["00002", "00003"] {
        std::fs::remove_file(sandbox.path(&format!("digits-sharded/model-{part}-of-00003.safetensors"))).unwrap();
    }
    assert_bad_model(&sandbox, "digits-sharded", 4, &["model-00001-of-00003.safetensors", missing]);
}

#[test]
fn an_index_of_any_name_is_read() {
    let sandbox = Sandbox::with("digits-sharded");
    let [from, to] = ["model", "diffusion_pytorch_model"]
        .map(|name| sandbox.path(&format!("digits-sharded/{name}.safetensors.index.json")));
    let whole = sandbox.ok("inspect digits-sharded").stdout;
    std::fs::rename(from, to).unwrap();
    assert_eq!(sandbox.ok("inspect digits-sharded").stdout, whole);
}

#[test]
fn numbers_that_only_python_writes_are_kept_in_a_config() {
    let sandbox = Sandbox::with("digits");
    let config = std::fs::read_to_string(sandbox.path("digits/config.json")).unwrap();
    let odd = config.replacen('{', "{\n  \"limits\": [0.0, Infinity, NaN],", 1);
    sandbox.write("digits/config.json", &odd);
    sandbox.ok("inspect digits");
    sandbox.ok("compress digits -o out --quantize int8");
    assert_eq!(std::fs::read_to_string(sandbox.path("out/config.json")).unwrap(), odd);
}

#[test]
fn indices_that_contradict_their_shards_are_refused() {
    let sandbox = Sandbox::with("digits-sharded");
    let index = "digits-sharded/model.safetensors.index.json";
    let good = std::fs::read_to_string(sandbox.path(index)).unwrap();
    let first = "model-00001-of-00003.safetensors";
    for outside in ["../x.safetensors", "/etc/passwd", "a/../../x", ".."] {
        sandbox.write(index, good.replace(first, outside));
        assert_bad_model(&sandbox, "digits-sharded", 4, &["index.json", "expected a file beside the index"]);
    }
    for (text, phrase) in [
        (good.replace(first, "model-00002-of-00003.safetensors"), "the shards do not belong together"),
        (good.replace("conv1.bias", "conv1.sorrow"), "the shards do not belong together"),
        ("{}".into(), "weight_map"),
        ("{\"weight_map\": {}}".into(), "lists no tensor"),
        ("not JSON".into(), "index"),
    ] {
        sandbox.write(index, text);
        assert_bad_model(&sandbox, "digits-sharded", 4, &[phrase]);
    }
    sandbox.write(index, &good);
    std::fs::remove_file(sandbox.path("digits-sharded").join(first)).unwrap();
    assert_bad_model(&sandbox, "digits-sharded", 4, &[first, "missing"]);
}

#[test]
fn nan_and_infinity_are_refused_unless_allowed() {
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        for name in ["up.weight", "up.bias"] {
            let mut tensors = tiny();
            let tensor = tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
            tensor.bytes[4 * 15..4 * 16].copy_from_slice(&value.to_le_bytes());
            let sandbox = Sandbox::new();
            sandbox.write("m.safetensors", safetensors_of(&tensors));
            for recipe in ["--quantize int8", "--prune 0.4", "--prune 0.4 --scope global", "--nm 2:4"] {
                let line = format!("compress m.safetensors -o out {recipe}");
                assert_refused(
                    &sandbox,
                    &[(&line, 6, &[name, &format!("found {word} at"), "15", "--allow-nonfinite"])],
                );
                sandbox.ok(&format!("{line} --allow-nonfinite"));
                sandbox.ok("verify out --against m.safetensors");
                let before = &crate::weights::tensors_of(&sandbox.path("m.safetensors"))[name];
                assert_eq!(&crate::weights::tensors_of(&sandbox.path("out"))[name], before);
                std::fs::remove_dir_all(sandbox.path("out")).unwrap();
            }
        }
    }
}

#[test]
fn errors_of_options_that_do_not_fit_the_model_name_the_tensor() {
    let odd = Sandbox::new();
    odd.write("odd.safetensors", safetensors_of(&[Tensor::random("fc.weight", &[4, 33], 1)]));
    let n_cols = |i| if i == 2 { 32 } else { 33 };
    let layers = [0, 1, 2].map(|i| Tensor::random(&format!("layers.{i}.up.weight"), &[4, n_cols(i)], 1));
    let down = [0, 1].map(|i| Tensor::random(&format!("layers.{i}.down.weight"), &[4, 33], 1));
    odd.write("layers.safetensors", safetensors_of(&[layers.as_slice(), &down].concat()));
    assert_refused(
        &odd,
        &[
            (
                "compress layers.safetensors -o out --nm 2:4",
                2,
                &[
                    "nor those of 3 other tensors",
                    "--exclude 'layers.*.down.weight' --exclude layers.0.up.weight --exclude layers.1.up.weight",
                ],
            ),
            ("compress odd.safetensors -o out --nm 2:4", 2, &["\"fc.weight\"", "2:4", "33 columns"]),
            (
                "compress odd.safetensors -o out --quantize int8-asym --format compressed-tensors",
                2,
                &["fc.weight", "symmetric"],
            ),
            (
                "compress odd.safetensors -o out --quantize int5 --format compressed-tensors",
                2,
                &["only symmetric int8 and int4"],
            ),
        ],
    );
}

#[test]
fn patterns_that_match_no_tensor_suggest_one() {
    let tiny = with_tiny();
    assert_refused(
        &tiny,
        &[
            (
                "compress tiny.safetensors -o out --quantize int8 --include up.wieght",
                2,
                &["\"up.wieght\"", "\"up.weight\""],
            ),
            ("compress tiny.safetensors -o out --prune 0.5 --exclude upp.*", 2, &["matches no tensor", "nearest name"]),
            ("compress tiny.safetensors -o out --prune 0.5 --include up[", 2, &["up[", "not a valid glob"]),
            ("compress tiny.safetensors -o out --prune 0.5 --prune-roles conv", 2, &["selects no tensor"]),
        ],
    );
}

#[test]
fn unknown_words_are_refused() {
    let mut cases: Vec<(String, i32, Vec<&str>)> = Vec::new();
    let mut case = |options: &str, phrases: &[&'static str]| {
        cases.push((format!("compress tiny.safetensors -o out {options}"), 2, phrases.to_vec()));
    };
    for share in ["1", "1.5", "nan", "inf", "1e9", "-0.1", "-inf"] {
        case(&format!("--prune={share}"), &[share, "--prune", "expected a number from 0 to below 1"]);
    }
    case("--prune -0.1", &["-0.1", "expected a number from 0 to below 1"]);
    case("--prune half", &["'half'", "--prune"]);
    for scheme in ["int9", "int1", "int4-g0", "fp8", "int4-x", "8"] {
        case(&format!("--quantize {scheme}"), &["unknown scheme", "expected int8"]);
    }
    for pattern in ["4:2", "2:2", "0:4", "2", "a:b", "1:1000"] {
        case(&format!("--nm {pattern}"), &["expected N:M"]);
    }
    case("--prune 0.5 --scope globl", &["did you mean \"global\"?"]);
    case("--quantize int8 --format dens", &["did you mean \"dense\"?"]);
    case("--quantize int8 --range percentil", &["did you mean \"percentile\"?"]);
    case("--prune 0.5 --prune-method magnitud", &["did you mean \"magnitude\"?"]);
    case("--prune 0.5 --prune-roles linaer", &["linaer", "expected linear"]);
    case("--prune 0.5 --nm 2:4", &["cannot be used with"]);
    case("--prune 0.5 --recipe r.toml", &["cannot be used with"]);
    case("--prune 0.5 --sed 3", &["--sed", "--seed"]);
    case("--prune 0.5 --bogus", &["--bogus"]);
    case("--scope global --quantize int8", &["--prune"]);
    case("--quantize int8 extra", &["extra"]);
    case("", &["nothing to do"]);
    case("--threads many --quantize int8", &["'many'"]);
    case("--threads 100000 --quantize int8", &["100000 is not in 0..=1024"]);
    let cases: Vec<Case> =
        cases.iter().map(|(line, code, phrases)| (line.as_str(), *code, phrases.as_slice())).collect();
    assert_refused(&with_tiny(), &cases);
}

#[test]
fn flags_without_effect_are_refused() {
    let mut cases: Vec<(String, Vec<&str>)> = Vec::new();
    let mut case = |options: &str, phrases: &[&'static str]| {
        cases.push((format!("compress tiny.safetensors -o out {options}"), phrases.to_vec()));
    };
    for ignored in ["--seed 3", "--prune-method random", "--prune-roles conv"] {
        case(&format!("--quantize int8 {ignored}"), &["--prune"]);
    }
    case("--prune 0.5 --quantize-roles conv", &["--quantize"]);
    for ignored in ["--include up.*", "--exclude up.*", "--quantize-roles conv", "--range mse", "--seed 1"] {
        case(&format!("--recipe r.toml {ignored}"), &["error"]);
    }
    for device in ["foo", "cuda:x", "cuda:99"] {
        case(&format!("--quantize int8 --device {device}"), &["device: found", device]);
    }
    let sandbox = with_tiny();
    sandbox.write("r.toml", "[model]\npath = \"tiny.safetensors\"\n[output]\npath = \"out\"\n");
    cases.push(("plan r.toml --quantize int8 --format dense".into(), vec!["r.toml: is a recipe"]));
    cases.push(("plan r.toml --allow-nonfinite".into(), vec!["r.toml: is a recipe"]));
    for (line, phrases) in &cases {
        assert_refused(&sandbox, &[(line, 2, phrases)]);
    }
}

#[test]
fn errors_of_incomplete_commands_name_what_is_missing() {
    assert_refused(
        &with_tiny(),
        &[
            ("--threads 2", 2, &["--help"]),
            ("compres tiny.safetensors", 2, &["compres"]),
            ("compress tiny.safetensors --quantize int8", 2, &["--output"]),
            ("compress -o out --quantize int8", 2, &["MODEL"]),
            ("export tiny.safetensors --to gguf -o out", 2, &["gguf", "burnpack"]),
            ("verify", 2, &["OUTPUT"]),
            ("devices --device foo", 2, &["device: found \"foo\""]),
            ("verify tiny.safetensors", 4, &["tiny.safetensors", "is not a directory"]),
            ("verify /dev/null", 4, &["is not a directory"]),
            ("verify nowhere", 4, &["no such directory"]),
            ("verify .", 4, &["is not an output of briquette"]),
            ("report .", 4, &["is not an output of briquette"]),
        ],
    );
}

#[test]
fn errors_in_a_recipe_name_the_line_and_the_word() {
    let sandbox = with_tiny();
    let head = "[model]\npath = \"tiny.safetensors\"\n[output]\npath = \"out\"\n";
    let stage = |text: &str| format!("{head}[[stage]]\n{text}");
    let recipes: [(String, &[&str]); 12] = [
        (stage("kind = \"prune\"\nspasity = 0.4"), &["r.toml:7", "spasity", "did you mean \"sparsity\"?"]),
        (stage("kind = \"prune\"\nsparsity = \"much\""), &["r.toml:7", "invalid type"]),
        (stage("kind = \"prune\""), &["sparsity: missing"]),
        (stage("sparsity = 0.4"), &["kind"]),
        (stage("kind = \"quantise\"\nscheme = \"int8\""), &["did you mean \"quantize\"?"]),
        (
            stage("kind = \"prune\"\nsparsity = 0.4\n[[stage]]\nkind = \"prune\"\nsparsity = 0.4"),
            &["earlier prune stage"],
        ),
        ("[output]\npath = \"out\"\n".into(), &["model.path: missing"]),
        ("[model]\npath = \"tiny.safetensors\"\n".into(), &["output.path: missing"]),
        ("[modell]\n".into(), &["r.toml:1", "did you mean \"model\"?"]),
        (
            stage("kind = \"prune\"\nsparsity = 0.4\n[[model.roles]]\ninclude = [\"upp.*\"]\nrole = \"conv\""),
            &["model.roles", "matches no tensor", "nearest name"],
        ),
        (
            stage("kind = \"prune\"\nsparsity = 0.4\noverrides = [{ include = [\"up.bias\"], sparsity = 0.1 }]"),
            &["stage 1 (prune): overrides: pattern \"up.bias\" matches no tensor that this stage selects"],
        ),
        (format!("{head}[memory]\nlimit = \"4XB\"\n"), &["memory.limit: found \"4XB\""]),
    ];
    for (text, phrases) in recipes {
        sandbox.write("r.toml", text);
        assert_refused(&sandbox, &[("run r.toml", 2, phrases)]);
    }
    sandbox.write("r.toml", [0xff, 0xfe]);
    assert_refused(&sandbox, &[("run r.toml", 2, &["r.toml"]), ("run absent.toml", 2, &["absent.toml"])]);
}

#[test]
fn incomplete_outputs_do_not_verify() {
    let sandbox = with_tiny();
    sandbox.write("other.safetensors", safetensors_of(&[Tensor::random("up.weight", &[16, 32], 9)]));
    sandbox.ok("compress tiny.safetensors -o out --quantize int8");
    sandbox.ok("export tiny.safetensors --to dense -o dense");
    assert_refused(
        &sandbox,
        &[
            ("verify nowhere", 4, &["nowhere", "no such directory"]),
            ("verify tiny.safetensors", 4, &["is not a directory"]),
            ("verify out --against other.safetensors", 4, &["out", "another"]),
            ("diff out nowhere", 4, &["nowhere"]),
            ("report nowhere", 4, &["nowhere"]),
        ],
    );
    let weights = "out/model.briquette.safetensors";
    let good = sandbox.files("")[weights].clone();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    sandbox.write(weights, &bad);
    assert_refused(&sandbox, &[("verify out", 4, &[weights, "SHA-256"])]);
    sandbox.write(weights, &good[..good.len() - 8]);
    assert_refused(&sandbox, &[("verify out", 4, &[weights]), ("inspect out", 4, &[weights, "cut short"])]);
    sandbox.write(weights, &good);
    sandbox.ok("verify out");
}

#[test]
fn an_unwritable_parent_directory_is_an_io_error() {
    let sandbox = with_tiny();
    std::fs::create_dir(sandbox.path("locked")).unwrap();
    let mode = |bits| std::os::unix::fs::PermissionsExt::from_mode(bits);
    std::fs::set_permissions(sandbox.path("locked"), mode(0o555)).unwrap();
    if std::fs::write(sandbox.path("locked/probe"), "x").is_ok() {
        eprintln!("skipped: this user may write anywhere");
    } else {
        let line = "compress tiny.safetensors -o locked/out --quantize int8";
        assert_refused(&sandbox, &[(line, 5, &["locked", "permission"])]);
    }
    std::fs::set_permissions(sandbox.path("locked"), mode(0o755)).unwrap();
}
