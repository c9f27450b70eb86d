//! Models with very many small tensors: each tensor takes little memory and time.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of};
use std::io::Read;

/// A file of `n` different matrices; the first is larger than all others.
fn many(n: usize, [rows, cols]: [usize; 2]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for index in 0..n {
        let rows = if index == 0 { 64 * rows } else { rows };
        let start = data.len();
        let value = |i: usize| ((index * 7919 + i * 104_729) % 65_521) as f32 / 65_521.0 - 0.5;
        data.extend((0..rows * cols).flat_map(|i| value(i).to_le_bytes()));
        let (layer, kind) = (index / 2, ["fc1", "fc2"][index % 2]);
        let end = data.len();
        entries.push(format!(
            r#""layers.{layer}.mlp.{kind}.weight":{{"dtype":"F32","shape":[{rows},{cols}],"data_offsets":[{start},{end}]}}"#
        ));
    }
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// Returns the peak memory of a command until it prints its first byte.
///
/// The command then blocks, because nothing reads its output.
fn peak_bytes(sandbox: &Sandbox, line: &str) -> usize {
    let mut child = sandbox.command(line).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
    peak * 1024
}

#[test]
fn a_plan_takes_a_few_hundred_bytes_a_tensor() {
    let (few, more) = (2_000, 42_000);
    let sandbox = Sandbox::new();
    sandbox.write("few.safetensors", many(few, [2, 2]));
    sandbox.write("more.safetensors", many(more, [2, 2]));
    for line in ["inspect --all", "plan --prune 0.4 --quantize int8 --all", "plan --quantize int8 --json"] {
        let (command, flags) = line.split_once(' ').unwrap_or((line, ""));
        let [small, large] =
            ["few", "more"].map(|name| peak_bytes(&sandbox, &format!("{command} {name}.safetensors {flags}")));
        let each = large.saturating_sub(small) / (more - few);
        assert!(each < 500, "{line}: {each} bytes a tensor, {small} and {large}");
    }
}

/// Returns the largest peak of memory over the phases of a command.
fn traced_peak(sandbox: &Sandbox, line: &str) -> usize {
    sandbox.ok(&format!("{line} --quiet --trace trace.json"));
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(sandbox.path("trace.json")).unwrap()).unwrap();
    let peaks = trace["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["args"]["peak"].as_u64());
    peaks.max().unwrap() as usize
}

#[test]
fn compressing_and_verifying_take_a_bounded_number_of_bytes_a_tensor() {
    let (few, more) = (2_000, 42_000);
    let sandbox = Sandbox::new();
    sandbox.write("few.safetensors", many(few, [2, 2]));
    sandbox.write("more.safetensors", many(more, [2, 2]));
    let lines = [
        ("compress NAME.safetensors -o NAME --quantize int8", 350),
        ("verify NAME", 250),
        ("compress NAME.safetensors -o NAME --prune 0.5 --force", 350),
        ("verify NAME", 250),
    ];
    for (line, most) in lines {
        let [small, large] = ["few", "more"].map(|name| traced_peak(&sandbox, &line.replace("NAME", name)));
        let each = large.saturating_sub(small) / (more - few);
        assert!(each < most, "{line}: {each} bytes a tensor, {small} and {large}");
    }
}

#[test]
fn the_page_lists_the_largest_and_worst_tensors_and_the_json_all() {
    let (n, sandbox) = (5_000, Sandbox::new());
    sandbox.write("many.safetensors", many(n, [4, 8]));
    sandbox.ok("compress many.safetensors -o out --prune 0.5 --quantize int8 --quiet");
    let page = std::fs::read_to_string(sandbox.path("out/report.html")).unwrap();
    assert!(page.len() < 600_000, "{} bytes", page.len());
    assert!(page.contains("The largest and the worst of 5,000 tensors"));
    assert!(page.contains("are in <code>report.json</code>") && page.contains("layers.<wbr>0.<wbr>mlp.<wbr>fc1"));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("out/report.json")).unwrap()).unwrap();
    assert_eq!(report["tensors"].as_array().unwrap().len(), n);
    assert_eq!(report["predicted_bytes"], report["after"]["file_bytes"]);
    sandbox.ok("verify out --against many.safetensors");
}

#[test]
fn more_quantized_tensors_than_a_header_can_describe_are_written_and_read() {
    let (n, sandbox) = (66_000, Sandbox::new());
    sandbox.write("many.safetensors", many(n, [1, 4]));
    sandbox.ok("compress many.safetensors -o out --quantize int8 --quiet");
    let found = sandbox.json("verify out");
    assert_eq!(found["n_tensors"], n);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("out/report.json")).unwrap()).unwrap();
    assert_eq!(report["predicted_bytes"], report["after"]["file_bytes"]);
}

#[test]
fn bitmasks_of_many_small_tensors_do_not_exceed_the_prediction() {
    let sandbox = Sandbox::new();
    let sparse = |index: usize| {
        let values = (0..128).map(|at| if (at * 7 + index) % 5 < 3 { 0.0 } else { (at as f32 - 60.0) / 50.0 });
        Tensor::f32(&format!("layers.{index}.weight"), &[4, 32], values)
    };
    sandbox.write("m.safetensors", safetensors_of(&(0..300).map(sparse).collect::<Vec<_>>()));
    let plan = sandbox.json("plan m.safetensors --quantize int8");
    let report = sandbox.json("compress m.safetensors -o out --quantize int8");
    let [predicted, written] = [&plan["predicted_bytes"], &report["after"]["file_bytes"]];
    assert!(written.as_u64().unwrap() <= predicted.as_u64().unwrap(), "{written} {predicted}");
}
