//! What the report of a budget says of its time.

use crate::budget::model;
use crate::sandbox::Sandbox;
use crate::weights::safetensors_of;
use serde_json::Value;

#[test]
fn the_time_of_a_report_is_that_of_the_whole_process() {
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
    assert!(total >= of_phases && total <= wall && total > 0.5 * wall, "{total} of {wall}, phases {of_phases}");
    let written: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/report.json")).unwrap()).unwrap();
    assert_eq!(written["total_seconds"], report["total_seconds"]);
}
