//! Traces: phases in order, each with its memory.

use crate::sandbox::Sandbox;
use serde_json::Value;

/// Returns the events of a trace.
fn events(sandbox: &Sandbox, path: &str) -> Vec<Value> {
    let trace: Value = serde_json::from_slice(&std::fs::read(sandbox.path(path)).unwrap()).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// Returns the names of the phases in order; checks times and memory.
fn phases(events: &[Value]) -> Vec<String> {
    let mut end = 0;
    let mut names = Vec::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let number = |key: &str| event[key].as_u64().unwrap();
        assert!(number("ts") >= end, "{event}");
        end = number("ts") + number("dur");
        let (live, peak) = (&event["args"]["live_bytes"], &event["args"]["peak_bytes"]);
        assert!(live.as_u64().unwrap() > 0 && peak.as_u64() >= live.as_u64(), "{event}");
        names.push(event["name"].as_str().unwrap().to_string());
    }
    names
}

#[test]
fn a_run_records_its_phases_and_counters() {
    let sandbox = Sandbox::with("digits");
    sandbox.ok("compress digits -o out --quantize int8 --trace trace.json");
    let found = events(&sandbox, "trace.json");
    assert_eq!(phases(&found), ["start", "survey", "encode", "verify"]);
    let counters: Vec<&Value> = found.iter().filter(|event| event["ph"] == "C").collect();
    assert!(counters.len() >= 8, "{counters:?}");
    for counter in counters {
        let (live, peak) = (counter["args"]["live"].as_u64().unwrap(), counter["args"]["peak"].as_u64().unwrap());
        assert!(counter["name"] == "memory" && live > 0 && peak > 0);
    }
    sandbox.ok("verify out --against digits");
    let jobs = "[base]\nmodel.path = \"digits\"\noutput.path = \"jobs/{stage.0.scheme}\"\n[[base.stage]]\nkind = \"quantize\"\n\
        scheme = \"int8\"\n[matrix]\n\"stage.0.scheme\" = [\"int8\", \"int4\"]\n";
    sandbox.write("jobs.toml", jobs);
    sandbox.ok("run jobs.toml --trace jobs.json");
    assert_eq!(phases(&events(&sandbox, "jobs.json")).iter().filter(|name| *name == "encode").count(), 2);
}

#[test]
fn a_failed_run_writes_a_trace() {
    let sandbox = Sandbox::with("digits");
    sandbox.run("compress digits -o out --nm 2:4 --trace trace.json").assert_fails(2, &["columns"]);
    assert_eq!(phases(&events(&sandbox, "trace.json")), ["start"]);
    sandbox.write("file", "x");
    sandbox.run("inspect digits --trace file/trace.json").assert_fails(5, &["file", "--trace"]);
}

#[test]
fn a_trace_overwrites_no_file() {
    let sandbox = Sandbox::with("digits");
    sandbox.write("notes.json", "{}");
    sandbox.ok("compress digits -o out --quantize int8");
    std::os::unix::fs::symlink(sandbox.path("out"), sandbox.path("link")).unwrap();
    sandbox.write("recipe.toml", "[model]\npath = \"digits\"\n[output]\npath = \"made\"\n");
    let before = sandbox.files("");
    let compress = "compress digits -o out --quantize int8 --force --trace";
    let cases = [
        format!("{compress} digits/model.safetensors"),
        format!("{compress} digits/trace.json"),
        format!("{compress} out/trace.json"),
        format!("{compress} link/trace.json"),
        format!("{compress} digits/../out/absent/../trace.json"),
        format!("{compress} out"),
        format!("{compress} notes.json"),
        "compress digits -o new --quantize int8 --trace new".into(),
        "run recipe.toml --trace digits/trace.json".into(),
        "run recipe.toml --trace recipe.toml".into(),
        "run recipe.toml --trace made".into(),
        "verify out --trace out/trace.json".into(),
        "diff digits out --trace out/SHA256SUMS".into(),
    ];
    for line in cases {
        sandbox.run(&line).assert_fails(6, &["--trace", "choose another file"]);
    }
    assert_eq!(sandbox.files(""), before);
    sandbox.ok(&format!("{compress} trace.json"));
    sandbox.ok(&format!("{compress} trace.json"));
    sandbox.ok("verify out");
}

#[test]
#[cfg(target_os = "linux")]
fn an_unwritable_trace_is_refused_before_any_work() {
    let sandbox = Sandbox::with("digits");
    let before = sandbox.files("");
    let line = "compress digits -o out --quantize int8 --trace";
    sandbox
        .run(&format!("{line} /proc/trace.json"))
        .assert_fails(5, &["--trace", "/proc/trace.json", "a writable directory"]);
    std::fs::create_dir(sandbox.path("there")).unwrap();
    sandbox.run(&format!("{line} there")).assert_fails(6, &["--trace", "found a directory", "choose another file"]);
    std::fs::remove_dir(sandbox.path("there")).unwrap();
    assert_eq!(sandbox.files(""), before);
}

#[cfg(feature = "model")]
#[test]
fn a_training_trace_has_loading_and_training_phases() {
    let sandbox = crate::distill::digits(crate::distill::RECIPE);
    sandbox.ok("distill recipe.toml --threads 1 --device cpu --quiet --trace trace.json");
    let found = events(&sandbox, "trace.json");
    let names = phases(&found);
    let places = ["load student", "load teacher", "read data", "run teacher", "train", "write student", "load", "run"]
        .map(|phase| {
            names.iter().position(|name| name.starts_with(phase)).unwrap_or_else(|| panic!("{phase}: {names:?}"))
        });
    assert!(places[..6].is_sorted(), "{names:?}");
    let train = found.iter().find(|event| event["name"] == "train").unwrap();
    let [start, length] = ["ts", "dur"].map(|key| train[key].as_u64().unwrap());
    let within = |event: &&Value| (start..start + length).contains(&event["ts"].as_u64().unwrap());
    let n_counted = found.iter().filter(|event| event["ph"] == "C").filter(within).count();
    assert!(n_counted > 5, "{n_counted} memory counters during training");
}

#[cfg(feature = "model")]
#[test]
fn an_evaluation_trace_has_loading_and_running_phases() {
    let sandbox = Sandbox::with("digits");
    crate::sandbox::copy(
        &crate::sandbox::repository().join("fixtures/digits-data.safetensors"),
        &sandbox.path("data.safetensors"),
    );
    sandbox.ok("compress digits -o out --quantize int8");
    sandbox.ok("eval out --data data.safetensors --against digits --device cpu --trace trace.json");
    let expected = ["start", "evaluate", "load digits", "run digits", "drop digits", "load out", "run out", "drop out"];
    assert_eq!(phases(&events(&sandbox, "trace.json")), expected);
}
