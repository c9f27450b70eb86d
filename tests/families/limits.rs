//! Evaluation within a memory limit: no peak is above it, whatever the network computes first.

use super::models::with;
use super::{Kind, all};
use crate::memory_limit::peak_of;
use crate::sandbox::Sandbox;
use serde_json::json;

/// The least limit in bytes: a refusal takes as much by itself.
const LEAST: u64 = 1_000_000;

/// Fixtures whose runs hold different values: scores, biases, sounds, several widths of a convolution, windows.
const CASES: &[(&str, Kind)] = &[
    ("bert", Kind::Encoder),
    ("modernbert", Kind::Encoder),
    ("t5", Kind::Encoder),
    ("t5-translate", Kind::Pairs),
    ("bart", Kind::Pairs),
    ("whisper", Kind::Sounds),
    ("gpt2", Kind::Decoder),
    ("llama", Kind::Decoder),
    ("gemma2", Kind::Decoder),
    ("mistral", Kind::Decoder),
    ("qwen3_moe", Kind::Decoder),
    ("vit", Kind::Images),
    ("swin", Kind::Images),
    ("resnet", Kind::Images),
    ("efficientnet", Kind::Images),
    ("convnext", Kind::Images),
];

/// The data of a kind: items of several lengths, and one that is longer than the others.
fn write_data(sandbox: &Sandbox) {
    let texts =
        ["A cat sat.", "The dog ran over the hill.", "Snow fell on the town, and no one there spoke of it at all."];
    let lines: Vec<&str> = texts.into_iter().cycle().take(12).collect();
    sandbox.write("lines.txt", lines.join("\n") + "\n");
    let pair = |text: &&str| json!({ "source": text, "target": &text[..text.len() / 2] }).to_string() + "\n";
    sandbox.write("pairs.jsonl", lines.iter().map(pair).collect::<String>());
}

fn data(kind: Kind) -> &'static str {
    match kind {
        Kind::Images => "--data images --size 96",
        Kind::Pairs => "--data pairs.jsonl",
        Kind::Sounds => "--data sounds.jsonl",
        Kind::Encoder | Kind::Decoder => "--data lines.txt",
    }
}

/// Evaluates a model, and returns the exit code and the peak.
fn run(sandbox: &Sandbox, line: &str) -> (i32, u64) {
    let outcome = sandbox.run(&format!("{line} --threads 2 --quiet --trace trace.json"));
    if outcome.code != 0 {
        outcome.assert_fails(6, &["memory.limit: ", "expected at most"]);
    }
    (outcome.code, peak_of(&serde_json::from_slice(&std::fs::read(sandbox.path("trace.json")).unwrap()).unwrap()))
}

#[test]
fn an_evaluation_of_any_family_stays_below_its_limit() {
    all(
        CASES,
        |(fixture, _)| fixture.to_string(),
        |(fixture, kind)| {
            let sandbox = with(fixture);
            write_data(&sandbox);
            for way in ["", "--offload"] {
                let line = format!("eval m {} {way}", data(*kind));
                let (code, free) = run(&sandbox, &line);
                assert_eq!(code, 0);
                for share in [0.3, 0.5, 0.7, 0.85, 0.95, 1.05, 1.5] {
                    let limit = ((free as f64 * share) as u64).max(LEAST);
                    let (_, peak) = run(&sandbox, &format!("{line} --memory-limit {limit}B"));
                    assert!(peak <= limit, "{fixture} {way}: {peak} bytes within {limit}");
                }
                // The prediction counts the scratch of every thread, which tiny networks do not fill.
                let limit = 2 * free + (8 << 20);
                assert_eq!(run(&sandbox, &format!("{line} --memory-limit {limit}B")).0, 0, "{fixture} {way}");
            }
        },
    );
}

#[test]
fn data_beyond_the_limit_is_refused_before_it_is_read() {
    let sandbox = with("bert");
    let text = "the cat sat on the mat ".repeat(8);
    sandbox.write("many.txt", format!("{text}\n").repeat(40_000));
    let (code, peak) = run(&sandbox, "eval m --data many.txt --memory-limit 8MB");
    assert!(code == 6 && peak <= 8_000_000, "{peak}");
    std::fs::create_dir_all(sandbox.path("pictures/a")).unwrap();
    sandbox.write("pictures/a/large.bmp", bitmap(3000));
    crate::sandbox::copy(&crate::sandbox::repository().join("fixtures/families/vit"), &sandbox.path("vit"));
    for way in ["", "--offload"] {
        let line = format!("eval vit --data pictures {way} --memory-limit");
        let (code, peak) = run(&sandbox, &format!("{line} 20MB"));
        assert!(code == 6 && peak <= 20_000_000, "{peak}");
        assert_eq!(run(&sandbox, &format!("{line} 200MB")).0, 0);
    }
}

/// Returns a black picture of `side` by `side` pixels.
fn bitmap(side: u32) -> Vec<u8> {
    let n_bytes = 3 * side * side;
    let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let header = words(&[54 + n_bytes, 0, 54, 40, side, side, 1 | 24 << 16, 0, n_bytes, 0, 0, 0, 0]);
    [b"BM".to_vec(), header, vec![0; n_bytes as usize]].concat()
}

#[test]
fn a_long_document_takes_little_more_than_its_tokens() {
    let sandbox = with("gpt2");
    sandbox.write("long.txt", "a cat sat on the mat. ".repeat(200_000));
    let (code, peak) = run(&sandbox, "calibrate m --data long.txt --max-length 16 --samples 4 -o m.stats");
    // A token for each letter: 4.4 million.
    assert!(code == 0 && peak <= 150_000_000, "{peak}");
}
