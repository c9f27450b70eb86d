//! Text generation: its output, its errors, and how it ends.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, repository};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::process::Stdio;

fn llama() -> Sandbox {
    Sandbox::with("models/llama-tied")
}

/// A model that never generates an end token.
fn endless() -> Sandbox {
    let sandbox = llama();
    let path = sandbox.path("llama-tied/config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let config = config.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 1000000");
    std::fs::write(path, config.replace("\"eos_token_id\": 0", "\"eos_token_id\": null")).unwrap();
    sandbox
}

#[test]
fn the_same_prompt_and_seed_give_the_same_text_on_stdout_only() {
    let sandbox = llama();
    for flags in ["", "--temperature 0.8 --top-k 20 --top-p 0.9 --seed 3", "--cache int8", "--cache f16"] {
        let line = format!("generate llama-tied --prompt cat --max-tokens 12 {flags}");
        let (first, second) = (sandbox.run(&line), sandbox.run(&line));
        assert!(first.code == 0 && !first.stdout.trim().is_empty(), "{}", first.stderr);
        assert_eq!(first.stdout, second.stdout, "{flags}");
        assert!(
            first.stderr.starts_with("briquette: generated: 12 tokens, ") && first.stderr.lines().count() == 1,
            "{}",
            first.stderr
        );
        assert_eq!(sandbox.ok(&format!("{line} --quiet")).stdout, first.stdout);
        let document = sandbox.json(&line);
        let sequence = &document["after"]["sequences"][0];
        assert!(!sequence["text"].as_str().unwrap().is_empty());
        assert_eq!((sequence["tokens"].as_array().unwrap().len(), &sequence["ending"]), (12, &"max-tokens".into()));
        assert!(document["after"]["peak_bytes"].as_u64() >= document["after"]["weights_bytes"].as_u64());
    }
}

/// ONNX models cache no keys and values, so each step computes the whole text.
#[test]
fn an_exported_decoder_writes_the_same_text() {
    let sandbox = llama();
    sandbox.ok("export llama-tied --to onnx -o n");
    sandbox.write("prompts.txt", "the cat\na dog sat\n");
    let found = sandbox.json("generate n --prompts prompts.txt --against llama-tied --max-tokens 9");
    assert_eq!(found["equal_tokens"], serde_json::json!([9, 9]));
    // 7 and 9 prompt tokens, with 8 new ones that were read again, at 4 bytes a token.
    let n_tokens: u64 = found["after"]["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text["n_prompt_tokens"].as_u64().unwrap() + 8)
        .sum();
    assert_eq!(found["after"]["cache_bytes"], 4 * n_tokens);
    // Both stop at the last of the 64 positions that config.json names.
    let found = sandbox.json("generate n --prompt cat --against llama-tied --max-tokens 100");
    let ending = |side: &str| found[side]["sequences"][0]["ending"].clone();
    assert_eq!((ending("before"), ending("after")), ("positions".into(), "positions".into()));
    let text = repository().join("fixtures/models/text.txt");
    let found = sandbox.json(&format!("eval n --against llama-tied --data {} --max-length 16", text.display()));
    let continuation = &found["continuation"];
    assert!(continuation["before"].is_string() && continuation["before"] == continuation["after"], "{continuation}");
}

#[test]
fn a_compressed_model_generates_beside_its_original() {
    let sandbox = llama();
    sandbox.ok("compress llama-tied -o small --quantize int8-dynamic --device cpu");
    sandbox.write("prompts.txt", "the cat\n\na dog\n");
    let line = "generate small --prompts prompts.txt --against llama-tied --max-tokens 8";
    let found = sandbox.json(line);
    assert_eq!(found["after"]["sequences"].as_array().unwrap().len(), 2);
    assert!(found["after"]["weights_bytes"].as_u64() < found["before"]["weights_bytes"].as_u64());
    assert!(found["equal_tokens"].as_array().unwrap().iter().all(|n| n.as_u64().unwrap() <= 8));
    let shown = sandbox.run(line);
    let heads: Vec<&str> = shown.stdout.lines().filter(|line| line.starts_with("== ")).collect();
    assert_eq!(heads, ["== before, llama-tied", "== after, small"]);
    let same = sandbox.json("generate llama-tied --prompt cat --against llama-tied --max-tokens 8");
    assert_eq!(same["equal_tokens"][0], 8);
}

#[test]
fn impossible_settings_are_refused_in_one_line() {
    let sandbox = llama();
    sandbox.ok("compress llama-tied -o bare --quantize int8 --device cpu");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::remove_file(sandbox.path("bare").join(name)).ok();
    }
    crate::sandbox::copy(&crate::sandbox::repository().join("fixtures/models/bert-tiny"), &sandbox.path("bert"));
    sandbox.write("long.txt", "cat ".repeat(400));
    sandbox.write("blank.txt", "\n \n");
    let cases: [(&str, i32, &[&str]); 9] = [
        (
            "generate llama-tied --prompts long.txt",
            4,
            &["tokens, expected fewer than the model's 64 positions; shorten it"],
        ),
        ("generate llama-tied --prompt -", 4, &["the prompt is empty"]),
        ("generate llama-tied --prompts blank.txt", 4, &["--prompts: found no prompt"]),
        ("generate llama-tied --prompts gone.txt", 5, &["gone.txt"]),
        ("generate bare --prompt cat", 4, &["tokenizer"]),
        ("generate bert --prompt cat", 2, &["bert: it is bert, which generates no text"]),
        ("generate llama-tied --prompt cat --cache int4", 2, &["--cache", "int4", "f32, f16 or int8"]),
        ("generate llama-tied --prompt cat --temperature -1", 2, &["temperature"]),
        ("generate llama-tied --prompt cat --system x", 2, &["system", "no chat template"]),
    ];
    for (line, code, phrases) in cases {
        sandbox.run(line).assert_fails(code, phrases);
    }
}

#[test]
fn a_closed_pipe_ends_generation_silently() {
    let sandbox = endless();
    let line = "generate llama-tied --prompt cat --max-tokens 900000 --cache int8 --quiet";
    let mut child = sandbox.command(line).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0_u8; 8];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn an_interrupt_ends_the_line_and_exits_within_two_seconds() {
    let sandbox = endless();
    let mut command = sandbox.command("generate llama-tied --prompt - --max-tokens 900000 --quiet");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"the cat\n").unwrap();
    let mut first = [0_u8; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), Signal::INT).unwrap();
    let since = std::time::Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(since.elapsed().as_secs_f64() < 2.0);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(130), 1), "{stderr}");
    assert!(output.stdout.ends_with(b"\n"), "the last line has no end");
}

#[test]
fn a_hostile_template_or_tokenizer_gives_one_line_and_exit_code_4() {
    for template in [
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_string(),
        format!("{{{{ {}1 }}}}", "-".repeat(20_000)),
        "{{ 'a\nb'|indent(4611686018427387904) }}".into(),
        "{{ '{:>1000000000}'.format(1) }}".into(),
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".into(),
        // Each assignment doubles the list; the last step converts it to text.
        format!("{{% set a = ['x'] %}}{}{{{{ a ~ '' }}}}", "{% set a = [a, a] %}".repeat(40)),
    ] {
        let sandbox = llama();
        sandbox.write("llama-tied/chat_template.jinja", &template);
        let outcome = sandbox.run("generate llama-tied --prompt cat --max-tokens 2");
        outcome.assert_fails(4, &["chat_template.jinja: its chat template cannot be used"]);
    }
    for normalizer in [
        r#"{"type":"Replace","pattern":{"String":""},"content":"x"}"#,
        r#"{"type":"Precompiled","precompiled_charsmap":"CAAAAP////////8="}"#,
    ] {
        let sandbox = llama();
        let path = sandbox.path("llama-tied/tokenizer.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        document["normalizer"] = serde_json::from_str(normalizer).unwrap();
        std::fs::write(&path, document.to_string()).unwrap();
        let outcome = sandbox.run("generate llama-tied --prompt cat --max-tokens 2");
        outcome.assert_fails(4, &["tokenizer.json: it cannot be used as a tokenizer: normalizer: "]);
    }
}

#[test]
fn prompts_without_an_end_are_refused() {
    let sandbox = llama();
    let outcome = sandbox.run("generate llama-tied --prompts /dev/zero");
    outcome.assert_fails(4, &["/dev/zero: found more than 67108864 bytes"]);
    let long = "cat ".repeat(50_000);
    sandbox.write("long.txt", &long);
    let outcome = sandbox.run("generate llama-tied --prompts long.txt");
    outcome.assert_fails(4, &["the prompt has", "shorten it"]);
}
