//! Fuzzes the journal of a batch that is resumed. Its only job has no model and always fails.
//!
//! A file that is not a journal is refused.
#![no_main]

use briquette::RunOptions;
use briquette::pipeline::batch::{BatchOptions, Document, run};
use briquette_fuzz::file;

const JOBS: &[u8] =
    b"[[job]]\nname = 'one'\n[job.model]\npath = 'missing.safetensors'\n[job.output]\npath = 'outputs/one'\n\
    [[job.stage]]\nkind = 'quantize'\nscheme = 'int8'\n";

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let jobs = file("jobs.toml", JOBS);
    // The deepest common directory of all outputs.
    std::fs::create_dir_all(briquette_fuzz::place("outputs")).expect("can create the directory");
    for name in [
        "jobs.toml.journal.jsonl",
        "outputs/jobs.toml.journal.jsonl",
        "jobs.journal.jsonl",
        "outputs/jobs.journal.jsonl",
    ] {
        file(name, input);
    }
    let Ok(Document::Jobs(jobs)) = Document::from_file(&jobs) else { panic!("the jobs file is valid") };
    let how = BatchOptions { resume: true, ..BatchOptions::default() };
    let options = RunOptions { threads: 1, ..RunOptions::default() };
    match run(&jobs, &how, &options, &mut |_| {}) {
        Ok(report) => assert_eq!(report.n_failed, 1, "a journal cannot make a job succeed"),
        Err(error) => assert!(error.exit_code() == 6 && error.to_string().lines().count() == 1, "{error}"),
    }
});
