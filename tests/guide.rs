//! The guide and the README: commands run, and flags, links and quoted messages exist.

mod benchmarks;
mod blocks;
mod flags;
mod links;
mod messages;
mod recipes;

use crate::sandbox::{Sandbox, copy, repository};
use blocks::{Block, blocks_of, logical_lines};
use briquette::formats::{Checkpoint, TensorSource, safetensors};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_briquette");
/// The folder of the guide's pages.
const GUIDE: &str = "docs/guide/src";
const README: &str = "README.md";

/// Defines a test for each page, and the list of all pages.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        /// Every page of the guide.
        const PAGES: &[&str] = &[$($page),*];

        $(#[test]
        fn $test() {
            run_page(&format!("{GUIDE}/{}", $page));
        })*
    };
}

pages! {
    getting_started: "getting-started.md",
    network: "network.md",
    onnx: "onnx.md",
    shrink: "shrink.md",
    fold: "fold.md",
    choose: "choose.md",
    compress: "compress.md",
    budget: "budget.md",
    calibrate: "calibrate.md",
    distill: "distill.md",
    distill_stages: "distill-stages.md",
    distill_code: "distill-code.md",
    training_code: "training-code.md",
    batch: "batch.md",
    evaluate: "evaluate.md",
    deploy: "deploy.md",
    compressed_tensors: "compressed-tensors.md",
    gpus: "gpus.md",
    file_format: "file-format.md",
    reliability: "reliability.md",
    troubleshooting: "troubleshooting.md",
    glossary: "glossary.md",
    peers: "peers.md",
    extend: "extend.md",
}

#[test]
fn readme() {
    run_page(README);
}

#[test]
fn every_page_is_tested_and_in_the_table_of_contents() {
    let entries = std::fs::read_dir(repository().join(GUIDE)).unwrap();
    let mut found: BTreeSet<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(found.remove("SUMMARY.md"));
    assert_eq!(found, PAGES.iter().map(|page| page.to_string()).collect());
    let contents = read(&format!("{GUIDE}/SUMMARY.md"));
    for page in found {
        assert_eq!(contents.matches(&format!("]({page})")).count(), 1, "{page} in SUMMARY.md");
    }
}

#[test]
fn every_page_with_a_program_is_a_doctest() {
    let listed = read("docs/lib.rs");
    for page in PAGES {
        let has_program = blocks_of(&read(&format!("{GUIDE}/{page}"))).iter().any(|block| block.is("rust"));
        assert!(!has_program || listed.contains(&format!("\"guide/src/{page}\"")), "{page} is not in docs/lib.rs");
    }
}

/// The text of a file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every page, and the README, by their paths in the repository.
fn all_pages() -> impl Iterator<Item = String> {
    PAGES.iter().map(|page| format!("{GUIDE}/{page}")).chain([README.to_string()])
}

/// Returns whether the real model and its texts exist; `just fetch-minilm` downloads them.
fn has_minilm() -> bool {
    let folder = repository().join("models");
    ["minilm/model.safetensors", "sentences.txt", "held-out.txt"].iter().all(|name| folder.join(name).is_file())
}

/// Runs the commands of a page in order, in a folder with the files of a clone that they read.
fn run_page(page: &str) {
    let blocks = blocks_of(&read(page));
    let script = script_of(page, &blocks, has_minilm());
    let sandbox = clone_of_inputs();
    let output = bash(&sandbox, &script).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{page}: {}\n{}\n{}", output.status, text(&output.stderr), text(&output.stdout));
}

/// Creates a folder with copies of the fixtures, configs and scripts, and of the real model if it exists.
fn clone_of_inputs() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["fixtures", "configs", "scripts"] {
        copy(&repository().join(name), &sandbox.path(name));
    }
    if has_minilm() {
        copy(&repository().join("models/minilm"), &sandbox.path("models/minilm"));
        make_small(&sandbox.path("models/minilm"));
        // All 6,000 sentences would take the tests of a few pages a quarter of an hour.
        for name in ["models/sentences.txt", "models/held-out.txt"] {
            let sentences: Vec<String> = read(name).lines().take(64).map(String::from).collect();
            sandbox.write(name, sentences.join("\n"));
        }
    }
    sandbox
}

/// Tokens that the small MiniLM keeps, of 30,522.
const N_TOKENS: usize = 12_000;

/// Keeps the first two of the six layers of MiniLM, and its first tokens: the whole model would take each of a few
/// tests minutes.
fn make_small(model: &Path) {
    let weights = model.join("model.safetensors");
    let checkpoint = Checkpoint::open(&weights).unwrap();
    let mut kept = BTreeMap::new();
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        if (2..6).any(|layer| info.name.contains(&format!("layer.{layer}."))) {
            continue;
        }
        let mut shape = info.shape.0.clone();
        if info.name.ends_with("word_embeddings.weight") {
            shape[0] = N_TOKENS;
        }
        let mut bytes = vec![0; info.n_bytes() / info.shape.0[0] * shape[0]];
        checkpoint.read(index, 0, &mut bytes).unwrap();
        kept.insert(info.name.to_string(), (info.dtype, shape, bytes));
    }
    drop(checkpoint);
    std::fs::write(&weights, safetensors::to_file(&kept).unwrap()).unwrap();
    edit_json(&model.join("config.json"), |config| {
        config["num_hidden_layers"] = 2.into();
        config["vocab_size"] = N_TOKENS.into();
    });
    edit_json(&model.join("tokenizer.json"), |tokenizer| {
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        vocabulary.retain(|_, id| id.as_u64().unwrap() < N_TOKENS as u64);
    });
}

fn edit_json(path: &Path, edit: impl Fn(&mut serde_json::Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

/// Returns a bash command in this folder, with `briquette` on its path.
fn bash(sandbox: &Sandbox, script: &str) -> Command {
    let own = Path::new(BINARY).parent().unwrap().display().to_string();
    let path = std::env::var("PATH").map_or(own.clone(), |path| format!("{own}:{path}"));
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(sandbox.path("")).env("PATH", path).env_remove("BURN_DEVICE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the script of a page; it stops at the first command with an unexpected exit code and prints it.
///
/// A command that ends in `# exit code N` must exit with N, all others with 0.
fn script_of(page: &str, blocks: &[Block], has_minilm: bool) -> String {
    let mut script = "set -Eeuo pipefail\ntrap 'echo \"failed: $BASH_COMMAND\" >&2' ERR\n".to_string();
    for block in blocks.iter().filter(|block| block.info == "sh" || has_minilm && block.info == "sh,minilm") {
        for line in logical_lines(&block.text) {
            let installs = ["cargo ", "just ", "pip "].iter().any(|start| line.starts_with(start));
            match line.rsplit_once("# exit code ") {
                _ if page == README && installs => {}
                Some((command, code)) => {
                    let code: u8 = code.trim().parse().unwrap_or_else(|_| panic!("{page}: {line}"));
                    script += &format!("found=0; {} || found=$?\n", command.trim_end());
                    script += &format!(
                        "[ $found = {code} ] || {{ echo \"exit code $found instead of {code}\" >&2; false; }}\n"
                    );
                }
                None => script += &format!("{line}\n"),
            }
        }
    }
    script
}

#[test]
fn a_script_stops_at_an_unexpected_failure_or_success() {
    let succeeds = |text: &str| {
        let script = script_of("a page", &blocks_of(&format!("```sh\n{text}\n```\n")), false);
        bash(&Sandbox::new(), &script).output().unwrap().status.success()
    };
    assert!(succeeds("briquette --version # prints it\ntrue | cat > x"));
    assert!(succeeds("briquette inspect missing # exit code 4\nbriquette \\\n  inspect missing  # exit code 4"));
    for wrong in
        ["briquette inspect missing", "false | cat", "false\ntrue", "true # exit code 4", "false # exit code 4"]
    {
        assert!(!succeeds(wrong), "{wrong}");
    }
}
