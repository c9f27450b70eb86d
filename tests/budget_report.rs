//! The report of a budget: its time, its predicted size, and why bytes are unused.

#[cfg(feature = "model")]
use crate::budget::file_bytes;
use crate::budget::model;
use crate::sandbox::Sandbox;
#[cfg(feature = "model")]
use crate::sandbox::{copy, repository};
use crate::weights::safetensors_of;
use serde_json::Value;

#[test]
fn a_report_has_the_time_of_the_whole_process() {
    let sandbox = Sandbox::new();
    sandbox.write("model/model.safetensors", safetensors_of(&model()));
    let since = std::time::Instant::now();
    let report = sandbox.json("compress model -o out --quiet --bytes 150kB");
    let wall = since.elapsed().as_secs_f64();
    let phases: Vec<(String, f64)> = serde_json::from_value(report["seconds"].clone()).unwrap();
    let (total, of_phases) =
        (report["total_seconds"].as_f64().unwrap(), phases.iter().map(|(_, seconds)| seconds).sum::<f64>());
    assert_eq!(phases[0].0, "sensitivity", "{phases:?}");
    assert!(phases[1].0.contains("other attempt"), "a budget is met at the second attempt or later: {phases:?}");
    assert!(total >= of_phases && total <= wall, "{total} of {wall}, phases {of_phases}");
    let written: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/report.json")).unwrap()).unwrap();
    assert_eq!(written["total_seconds"], report["total_seconds"]);
}

#[test]
#[cfg(feature = "model")]
fn a_search_for_the_smallest_output_reports_the_time_of_all_attempts() {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures/digits-data.safetensors"), &sandbox.path("data.safetensors"));
    let since = std::time::Instant::now();
    let report =
        sandbox.json("compress digits -o out --min agreement=0.9 --eval data.safetensors --device cpu --quiet");
    let wall = since.elapsed().as_secs_f64();
    let total = report["total_seconds"].as_f64().unwrap();
    let phases: Vec<(String, f64)> = serde_json::from_value(report["seconds"].clone()).unwrap();
    let of_phases = phases.iter().map(|(_, seconds)| seconds).sum::<f64>();
    assert!(total >= of_phases && total <= wall, "{total} of {wall}, phases {of_phases}");
    let seconds = report["seconds"].to_string();
    assert!(seconds.contains("sensitivity") && seconds.contains("other attempts"), "{seconds}");
    // The bound of the plan does not predict the size that a search finds.
    let (estimated, found) = (report["estimated_bytes"].as_f64().unwrap(), file_bytes(&sandbox, "out") as f64);
    assert!((estimated - found).abs() < 0.05 * found, "{estimated} estimated, {found} found");
    let text = sandbox.ok("report out").stdout;
    assert!(text.contains("predicted about ") && text.lines().nth(1).unwrap().contains("accuracy 0."), "{text}");
}

#[test]
fn the_report_says_why_bytes_of_a_budget_are_unused() {
    let sandbox = Sandbox::new();
    sandbox.write("model/model.safetensors", safetensors_of(&model()));
    let report = sandbox.json("compress model -o out --quiet --bytes 2MB");
    let text = report["notes"].to_string();
    assert!(text.contains("of 2.00 MB, with the finest choices"), "{text}");
    let used = sandbox.json("compress model -o used --quiet --bytes 150kB");
    assert!(!used["notes"].to_string().contains("finest"), "{}", used["notes"]);
}
