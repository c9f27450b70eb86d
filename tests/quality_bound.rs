//! Budgets that bound the quality: the smallest output within the bound, in few attempts.

use crate::sandbox::{Sandbox, copy, repository};

#[test]
fn the_smallest_output_within_the_quality_bound_is_found() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    let line = "compress bert-tiny --data text.txt --eval text.txt --max-length 16 --device cpu --quiet";
    let report = sandbox.json(&format!("{line} -o out --min cosine=0.99"));
    let cosine = report["evaluation"]["metrics"]["cosine"].as_f64().unwrap();
    assert!((0.99..0.997).contains(&cosine), "{cosine}");
    let phases = report["seconds"].as_array().unwrap().iter().filter_map(|phase| phase[0].as_str());
    let others = phases.filter_map(|phase| phase.split_once(" other attempt")?.0.parse::<usize>().ok());
    assert!(others.sum::<usize>() <= 2, "{report}");
    let smaller = report["after"]["file_bytes"].as_u64().unwrap() * 98 / 100;
    let report = sandbox.json(&format!("{line} -o smaller --bytes {smaller}"));
    assert!(report["evaluation"]["metrics"]["cosine"].as_f64().unwrap() < 0.99, "{report}");
    let plan =
        sandbox.ok(&format!("{} --min cosine=0.99", line.replace("compress", "plan").replace(" --quiet", ""))).stdout;
    assert!(plan.contains("cosine at least 0.99 in the fewest bytes"), "{plan}");
    let cases = [
        ("--min cosine=1", 6, "even the finest step sizes miss cosine at least 1"),
        ("--min cosine=1.1", 2, "expected cosine as a number from -1 to 1"),
        ("--min kosine=0.9", 2, "is not measured, expected one of"),
        ("--min cosine", 2, "expected a metric and a number"),
        ("--min cosine=0.9 --bytes 1MB", 2, "cannot be used with"),
    ];
    for (flags, code, phrase) in cases {
        sandbox.run(&format!("{line} -o none {flags}")).assert_fails(code, &[phrase]);
        assert!(!sandbox.path("none").exists());
    }
    sandbox.run("compress bert-tiny -o none --data text.txt --min cosine=0.9").assert_fails(2, &["--eval"]);
}

#[test]
fn a_metric_has_one_bound_of_a_kind() {
    let sandbox = Sandbox::with("digits");
    let line = "compress digits -o out --min accuracy=0.98 --min accuracy=0.5 --eval digits";
    sandbox.run(line).assert_fails(2, &["--min", "found 0.98 and 0.5 for accuracy"]);
}
