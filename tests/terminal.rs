//! Tables fit a terminal of 80 columns; a pipe gets all columns.

use crate::pty::{Shown, on_terminal};
use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of};

/// A transformer with long names: 14 layers of four tensors.
fn transformer(n_changed: usize) -> Vec<u8> {
    let layer = |index: usize| {
        let seed = |kind: u64| 100 * index as u64 + kind + if index < n_changed { 1000 } else { 1 };
        let named = |kind: &str| format!("bert.encoder.layer.{index}.{kind}");
        [
            Tensor::random(&named("attention.self.query.weight"), &[32, 32], seed(1)),
            Tensor::random(&named("attention.output.dense.weight"), &[32, 32], seed(2)),
            Tensor::random(&named("output.dense.weight"), &[32, 64], seed(3)),
            Tensor::random(&named("output.dense.bias"), &[32], 7),
        ]
    };
    safetensors_of(&(0..14).flat_map(layer).collect::<Vec<_>>())
}

fn with_transformers() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("a_model_with_a_long_name/model.safetensors", transformer(0));
    sandbox.write("b/model.safetensors", transformer(3));
    sandbox
}

const QUERY: &str = "bert.encoder.layer.11.attention.self.query.weight";

#[test]
fn nothing_wraps_at_eighty_columns_and_no_progress_bar_stays() {
    let sandbox = with_transformers();
    let lines = [
        "inspect a_model_with_a_long_name --zeros",
        "inspect a_model_with_a_long_name --all",
        "plan a_model_with_a_long_name --prune 0.5 --quantize int8",
        "plan a_model_with_a_long_name --bytes 60kB --all",
        "compress a_model_with_a_long_name -o a_model_with_a_long_name_made_smaller --prune 0.4 --quantize int8",
        "compress a_model_with_a_long_name -o out/budget --bytes 60kB",
        "verify a_model_with_a_long_name_made_smaller --against a_model_with_a_long_name",
        "diff a_model_with_a_long_name b --all",
    ];
    for line in lines {
        let (code, written) = on_terminal(&sandbox, line, [40, 80], "");
        assert_eq!(code, Some(0), "{line}: {written}");
        let shown = Shown::of(&written, 80);
        assert!(shown.wrapped.is_empty(), "{line}: {:#?}", shown.wrapped);
        let is_bar = |text: &&String| text.contains(['█', '░']) || text.trim_end().ends_with("...");
        assert_eq!(shown.lines.iter().find(is_bar), None, "{line}: {:#?}", shown.lines);
    }
}

#[test]
fn a_narrow_column_keeps_the_layer_of_each_name() {
    let sandbox = with_transformers();
    let (_, written) = on_terminal(&sandbox, "compress b -o out --bytes 60kB", [40, 80], "");
    let shown = Shown::of(&written, 80);
    let first = shown.lines.iter().position(|line| line.starts_with("worst tensors")).unwrap();
    let names: Vec<&str> =
        shown.lines[first + 1..].iter().take(12).map(|line| line.split_whitespace().next().unwrap()).collect();
    let has_layer =
        |name: &&str| name.split(['…', '.']).any(|part| part.parse::<usize>().is_ok_and(|layer| layer < 14));
    assert!(names.iter().all(has_layer), "{names:?}");
    let distinct: std::collections::BTreeSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
}

#[test]
fn a_pipe_gets_whole_names_whatever_the_width_of_the_terminal() {
    let sandbox = Sandbox::new();
    let name = format!("{}.weight", "a_part_of_a_long_name.".repeat(9).trim_end_matches('.'));
    sandbox.write("m.safetensors", safetensors_of(&[Tensor::random(&name, &[64, 64], 1)]));
    for line in ["compress m.safetensors -o out --quantize int8 --force", "inspect m.safetensors", "report out"] {
        let output = sandbox.command(line).env("COLUMNS", "40").output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(stdout.contains(&name), "{line}: {stdout}");
    }
}

#[test]
fn equal_layers_share_a_row_and_totals_come_last() {
    let sandbox = with_transformers();
    let row = "bert.encoder.layer.*.attention.self.query.weight";
    for (command, totals) in [
        ("inspect a_model_with_a_long_name", "56 tensors"),
        ("plan a_model_with_a_long_name --quantize int8", "predicted weight files"),
    ] {
        let short = sandbox.ok(command).stdout;
        let lines: Vec<&str> = short.lines().collect();
        assert!(lines.len() < 12 && lines.last().unwrap().contains(totals), "{command}: {short}");
        let grouped = lines.iter().find(|line| line.starts_with(row)).unwrap();
        assert_eq!(grouped.split_whitespace().nth(1), Some("14"), "{command}: {short}");
        assert!(!short.contains(QUERY) && short.contains("--all"), "{command}: {short}");
        let all = sandbox.ok(&format!("{command} --all")).stdout;
        assert!(all.contains(QUERY) && !all.contains(row) && all.lines().count() > 56, "{command}: {all}");
        assert!(all.lines().last().unwrap().contains(totals), "{command}: {all}");
        let json = sandbox.json(command);
        assert_eq!(json["tensors"].as_array().unwrap().len(), 56, "{command}");
        assert_eq!(json, sandbox.json(&format!("{command} --all")), "{command}");
    }
}

#[test]
fn a_layer_that_differs_has_a_row_of_its_own() {
    let sandbox = with_transformers();
    let plan = "plan b --quantize int8 --exclude bert.encoder.layer.5.output.dense.weight";
    let text = sandbox.ok(plan).stdout;
    assert!(text.contains("bert.encoder.layer.5.output.dense.weight"), "{text}");
    let others = text.lines().find(|line| line.starts_with("bert.encoder.layer.*.output.dense.weight")).unwrap();
    assert_eq!(others.split_whitespace().nth(1), Some("13"), "{text}");
}

#[test]
fn a_diff_lists_changed_tensors_and_all_on_request() {
    let sandbox = with_transformers();
    let text = sandbox.ok("diff a_model_with_a_long_name b").stdout;
    assert!(text.lines().last().unwrap().contains("56 tensors compared, 47 equal"), "{text}");
    assert!(text.contains("bert.encoder.layer.0.") && !text.contains("layer.11") && !text.contains("bias"), "{text}");
    let all = sandbox.ok("diff a_model_with_a_long_name b --all").stdout;
    assert!(all.contains(QUERY) && all.contains("bias"), "{all}");
    assert_eq!(sandbox.ok("diff b b").stdout, "56 tensors compared, 56 equal\n");
    assert_eq!(sandbox.json("diff a_model_with_a_long_name b")["tensors"].as_array().unwrap().len(), 56);
}

#[test]
fn the_help_of_compress_has_its_flags_under_headings() {
    let help = Sandbox::new().ok("compress --help").stdout;
    for heading in ["Input:", "Pruning:", "Data:", "Quantization:", "Budget:", "Tensors:", "Output:", "Common:"] {
        assert!(help.lines().any(|line| line == heading), "{heading}: {help}");
    }
    let rest = help.split("\nOptions:").nth(1).map_or("", |rest| rest.split("\n\n").next().unwrap());
    assert!(rest.matches("--").count() < 4, "flags without a heading: {rest}");
}
