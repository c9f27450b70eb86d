//! Batches over the digits fixture: which jobs run again, and that the outputs are identical.

use briquette_core::Error;
use briquette_pipeline::RunOptions;
use briquette_pipeline::batch::{self, BatchOptions, Document, Jobs, Shard};
use briquette_pipeline::report::{BatchReport, BatchStatus, JobStatus};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/digits");

const RECIPE: &str = "
[model]
path = \"model\"
[output]
path = \"out/unused\"
[[stage]]
kind = \"prune\"
sparsity = 0.4
[[stage]]
kind = \"quantize\"
scheme = \"int8\"
";

/// Four jobs of a matrix; five with an invalid one in front.
const MATRIX: &str = "
[base]
recipe = \"recipe.toml\"
set = { \"output.path\" = \"out/p{stage.0.sparsity}-{stage.1.scheme}\" }
[matrix]
\"stage.0.sparsity\" = [0.2, 0.5]
stage.1.scheme = [\"int8\", \"int4\"]
";

const BAD: &str = "
[[job]]
recipe = \"recipe.toml\"
set = { model.path = \"absent\", output.path = \"out/bad\" }
";

/// A directory with a model, a recipe and a jobs file.
struct Place(tempfile::TempDir);

impl Place {
    fn new(jobs: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.at("model")).unwrap();
        for name in ["model.safetensors", "config.json"] {
            std::fs::copy(Path::new(FIXTURE).join(name), place.at("model").join(name)).unwrap();
        }
        std::fs::write(place.at("recipe.toml"), RECIPE).unwrap();
        std::fs::write(place.at("jobs.toml"), jobs).unwrap();
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn jobs(&self) -> Jobs {
        Jobs::from_file(&self.at("jobs.toml")).unwrap()
    }

    fn run(&self, resume: bool) -> BatchReport {
        self.run_shard(resume, Shard::default())
    }

    fn run_shard(&self, resume: bool, shard: Shard) -> BatchReport {
        let options = RunOptions { threads: 2, ..RunOptions::default() };
        let mut heard = 0;
        let report = batch::run(&self.jobs(), &BatchOptions { resume, shard }, &options, &mut |_| heard += 1).unwrap();
        assert_eq!(heard, report.jobs.len(), "each job is reported once");
        report
    }

    /// Returns the error of a run without `--resume` after a finished run.
    fn refused(&self) -> Error {
        batch::run(&self.jobs(), &BatchOptions::default(), &RunOptions::default(), &mut |_| ()).unwrap_err()
    }

    fn edit(&self, path: &str, change: impl Fn(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.at(path)).unwrap();
        change(&mut bytes);
        std::fs::write(self.at(path), bytes).unwrap();
    }

    /// Returns every file of every output except the reports, which have times.
    fn outputs(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        for output in std::fs::read_dir(self.at("out")).unwrap().map(|entry| entry.unwrap().path()) {
            assert!(!output.to_string_lossy().contains("partial"), "{}", output.display());
            for file in std::fs::read_dir(&output).into_iter().flatten().map(|entry| entry.unwrap().path()) {
                if !file.file_name().unwrap().to_string_lossy().starts_with("report.") {
                    found.insert(file.strip_prefix(self.0.path()).unwrap().into(), std::fs::read(&file).unwrap());
                }
            }
        }
        found
    }
}

fn counts(report: &BatchReport) -> (usize, usize, usize) {
    (report.n_done, report.n_skipped, report.n_failed)
}

/// Returns the jobs that a resumed batch ran again, and the reasons.
fn redone(report: &BatchReport) -> Vec<(&str, &str)> {
    let done = report.jobs.iter().filter(|job| job.status == JobStatus::Done);
    done.map(|job| (job.job.as_str(), job.redone.as_deref().unwrap_or("new"))).collect()
}

#[test]
fn one_invalid_job_of_five_leaves_four_done() {
    let place = Place::new(&format!("{BAD}{MATRIX}"));
    let report = place.run(false);
    assert_eq!((counts(&report), report.status()), ((4, 0, 1), BatchStatus::Partly));
    assert_eq!(report.status().exit_code(), 3);
    let bad = &report.jobs[0];
    assert_eq!((bad.job.as_str(), bad.status, bad.exit_code), ("bad", JobStatus::Failed, Some(4)));
    assert!(bad.error.as_ref().unwrap().contains("absent: no such file"), "{bad:?}");
    let names: Vec<&str> = report.jobs[1..].iter().map(|job| job.job.as_str()).collect();
    assert_eq!(names, ["p0.2-int8", "p0.2-int4", "p0.5-int8", "p0.5-int4"]);
    assert!(report.jobs[1].after_bytes > report.jobs[4].after_bytes);

    std::fs::rename(place.at("model"), place.at("absent")).unwrap();
    std::os::unix::fs::symlink(place.at("absent"), place.at("model")).unwrap();
    assert_eq!(counts(&place.run(true)), (1, 4, 0), "the corrected job runs, the others are skipped");
}

#[test]
fn a_resumed_batch_runs_only_missing_jobs() {
    let place = Place::new(MATRIX);
    assert_eq!(counts(&place.run(false)), (4, 0, 0));
    let first = place.outputs();
    assert_eq!(counts(&place.run(true)), (0, 4, 0));

    std::fs::remove_dir_all(place.at("out/p0.2-int8")).unwrap();
    let files = ["briquette.json", "SHA256SUMS", "report.json", "config.json"];
    let weights = std::fs::read_dir(place.at("out/p0.5-int4")).unwrap().map(|entry| entry.unwrap().file_name());
    let weights = weights.filter_map(|name| name.into_string().ok()).find(|name| name.ends_with(".safetensors"));
    for file in files.into_iter().chain(weights.as_deref()) {
        place.edit(&format!("out/p0.5-int4/{file}"), |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        let report = place.run(true);
        let redone: Vec<&str> = redone(&report).into_iter().map(|(job, _)| job).collect();
        assert!(redone.contains(&"p0.5-int4") && report.n_failed == 0, "{file}: {report:?}");
        assert_eq!(redone.contains(&"p0.2-int8"), file == "briquette.json");
        assert!(place.outputs() == first, "{file}: other bytes");
    }
    std::fs::write(place.at("out/p0.5-int4/added"), "x").unwrap();
    let report = place.run(true);
    assert_eq!(
        (counts(&report), report.jobs[3].exit_code),
        ((0, 3, 1), Some(6)),
        "another directory at the output stays"
    );
    std::fs::remove_file(place.at("out/p0.5-int4/added")).unwrap();
    assert_eq!(counts(&place.run(true)).2, 0);
    assert!(place.outputs() == first);
}

#[test]
fn a_changed_recipe_or_input_runs_again() {
    let place = Place::new(MATRIX);
    place.run(false);
    std::fs::write(place.at("recipe.toml"), RECIPE.replace("scheme = \"int8\"", "scheme = \"int8\"\nrange = \"mse\""))
        .unwrap();
    let report = place.run(true);
    assert_eq!(counts(&report), (4, 0, 0));
    assert!(redone(&report).iter().all(|(_, why)| *why == "the recipe changed"), "{report:?}");

    place.edit("model/config.json", |bytes| bytes.push(b'\n'));
    let report = place.run(true);
    assert!(redone(&report).iter().all(|(_, why)| *why == "the content of model.path changed"), "{report:?}");
    place.edit("model/model.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1);
    assert_eq!(counts(&place.run(true)), (4, 0, 0));
    place.edit("model/model.safetensors", |_| ());
    assert_eq!(counts(&place.run(true)), (0, 4, 0), "the same bytes written again are the same input");
}

#[test]
fn jobs_with_a_new_gate_or_new_data_are_not_skipped() {
    let place = Place::new(MATRIX);
    place.run(false);
    std::fs::copy(Path::new(FIXTURE).join("../digits-data.safetensors"), place.at("data.safetensors")).unwrap();
    let evaluate = "[[stage]]\nkind = \"evaluate\"\n[data]\neval = \"data.safetensors\"\n";
    std::fs::write(place.at("recipe.toml"), format!("{RECIPE}{evaluate}")).unwrap();
    let report = place.run(true);
    assert_eq!(report.n_skipped, 0, "{report:?}");
    // A build without models must refuse the job, not skip it.
    assert_eq!((report.n_done, report.n_failed), if cfg!(feature = "model") { (4, 0) } else { (0, 4) }, "{report:?}");
    std::fs::write(place.at("recipe.toml"), RECIPE).unwrap();
    assert_eq!(place.run(true).n_failed, 0);
}

#[test]
fn a_torn_journal_reruns_only_the_torn_job() {
    let place = Place::new(MATRIX);
    let journal = place.run(false).journal;
    assert_eq!(journal, std::fs::canonicalize(place.at("out")).unwrap().join("jobs.journal.jsonl"));
    let (text, first) = (std::fs::read(&journal).unwrap(), place.outputs());
    std::fs::write(&journal, &text[..text.len() - 40]).unwrap();
    let report = place.run(true);
    assert_eq!(redone(&report), [("p0.5-int4", "the journal does not list it as done")]);
    assert_eq!(counts(&place.run(true)), (0, 4, 0));
    assert!(place.outputs() == first);
}

#[test]
fn outputs_of_other_jobs_are_not_replaced_without_force() {
    let place = Place::new(MATRIX);
    place.run(false);
    assert_eq!(place.refused().exit_code(), 6, "without resume, existing outputs are refused");
    let forced = RunOptions { force: true, ..RunOptions::default() };
    let report = batch::run(&place.jobs(), &BatchOptions::default(), &forced, &mut |_| ()).unwrap();
    assert_eq!(counts(&report), (4, 0, 0));

    std::fs::remove_file(report.journal).unwrap();
    std::fs::remove_dir_all(place.at("out/p0.2-int8")).unwrap();
    std::fs::rename(place.at("out/p0.5-int8"), place.at("out/p0.2-int8")).unwrap();
    let report = place.run(true);
    assert_eq!(report.jobs[0].exit_code, Some(6), "there is no journal, and another recipe made the output");
    assert_eq!(counts(&report), (3, 0, 1));
}

#[test]
fn a_stopped_batch_resumes_from_its_journal() {
    let place = Place::new(MATRIX);
    let whole = Place::new(MATRIX);
    whole.run(false);
    let options = RunOptions { threads: 1, ..RunOptions::default() };
    let stop = options.stop.clone();
    let error = batch::run(&place.jobs(), &BatchOptions::default(), &options, &mut |_| stop.request(15)).unwrap_err();
    assert_eq!(error.exit_code(), 143);
    assert!(error.to_string().contains("--resume"), "{error}");
    assert_eq!(counts(&place.run(true)), (3, 1, 0));
    let bytes = |place: &Place| place.outputs().into_iter().collect::<Vec<_>>();
    assert!(bytes(&place) == bytes(&whole), "a resumed batch writes the same output");
}

#[test]
fn shards_run_each_job_once_and_a_whole_run_skips_all() {
    let place = Place::new(MATRIX);
    let mut names: Vec<String> = Vec::new();
    for index in 0..3 {
        let report = place.run_shard(false, Shard::new(index, 3).unwrap());
        names.extend(report.jobs.into_iter().map(|job| job.job));
    }
    names.sort();
    assert_eq!(names, ["p0.2-int4", "p0.2-int8", "p0.5-int4", "p0.5-int8"]);
    assert_eq!(counts(&place.run(true)), (0, 4, 0));
    assert_eq!(counts(&place.run_shard(false, Shard::new(4, 5).unwrap())), (0, 0, 0), "more shards than jobs");
}

#[test]
fn a_moved_directory_is_still_done() {
    let place = Place::new(MATRIX);
    place.run(false);
    let moved = Place(tempfile::tempdir().unwrap());
    std::fs::remove_dir(moved.0.path()).unwrap();
    std::fs::rename(place.0.path(), moved.0.path()).unwrap();
    assert_eq!(counts(&moved.run(true)), (0, 4, 0));
}

#[test]
fn a_job_may_read_the_output_of_an_earlier_job() {
    let place = Place::new(
        "[[job]]\nrecipe = \"recipe.toml\"\nset = { output.path = \"out/small\" }\n\
         [[job]]\n[job.model]\npath = \"out/small\"\n[job.output]\npath = \"out/dense\"\nformat = \"dense\"\n",
    );
    let plans = batch::plan(&place.jobs(), "cpu").unwrap();
    assert!(plans[0].is_exact && plans[0].predicted_bytes.is_some(), "{plans:?}");
    assert_eq!(plans[1].waits_for.as_deref(), Some("small"));
    assert_eq!(counts(&place.run(false)), (2, 0, 0));
    assert_eq!(counts(&place.run(true)), (0, 2, 0));
}

#[test]
fn an_invalid_recipe_fails_only_its_job() {
    let gone = "[[job]]\nrecipe = \"gone.toml\"\n";
    let place = Place::new(&format!("{gone}{}", MATRIX.replace("int4", "int99")));
    let plans = batch::plan(&place.jobs(), "cpu").unwrap();
    assert_eq!(plans.iter().filter(|plan| plan.error.is_some()).count(), 3, "{plans:?}");
    let report = place.run(false);
    assert_eq!((counts(&report), report.status().exit_code()), ((2, 0, 3), 3));
    assert_eq!((report.jobs[0].job.as_str(), report.jobs[0].exit_code), ("job 1", Some(2)));
    assert!(report.jobs[0].error.as_ref().unwrap().contains("gone.toml: no such file"), "{report:?}");
    assert!(report.jobs[2].error.as_ref().unwrap().contains("unknown scheme \"int99\""), "{report:?}");
    assert_eq!(counts(&place.run(true)), (0, 2, 3));
}

#[test]
fn a_run_without_resume_keeps_finished_outputs() {
    let place = Place::new(MATRIX);
    place.run(false);
    assert!(place.refused().to_string().contains("4 outputs exist from an earlier run"));
    assert_eq!(counts(&place.run(true)), (0, 4, 0), "all jobs are skipped");
}

#[test]
fn mistakes_in_the_jobs_file_are_found_before_running() {
    let place = Place::new(MATRIX);
    let cases = [
        (MATRIX.replace("-{stage.1.scheme}", ""), "have the same output"),
        (MATRIX.replace("\"stage.0.sparsity\" =", "\"stage.0.sparsty\" ="), "did you mean \"sparsity\"?"),
        (MATRIX.replace("[matrix]", "[matrx]"), "did you mean \"matrix\"?"),
        (MATRIX.replace("recipe.toml", "absent.toml"), "absent.toml: no such file"),
    ];
    for (text, expected) in cases {
        std::fs::write(place.at("jobs.toml"), &text).unwrap();
        let error = Document::from_file(&place.at("jobs.toml")).unwrap_err();
        assert!(error.to_string().contains(expected) && error.exit_code() == 2, "{error} lacks {expected}");
    }
    assert!(!place.at("out").exists());
}

#[test]
fn the_shipped_configs_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Folders that git ignores: models that are downloaded or made, and outputs of other recipes. A recipe of a model that is not there
    // is read and not planned.
    let ignored = ["models", "out", "bench-out"];
    let may_miss = |model: &Path| model.components().any(|part| ignored.iter().any(|name| part.as_os_str() == *name));
    for entry in std::fs::read_dir(root.join("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let found = match Document::from_file(&path) {
            Err(error) if !cfg!(feature = "model") && error.to_string().contains("cannot train models") => continue,
            found => found.unwrap(),
        };
        match found {
            // The only file of jobs is about MiniLM.
            Document::Jobs(_) if !root.join("models/minilm").exists() => {}
            Document::Jobs(jobs) => {
                let plans = batch::plan(&jobs, "cpu").unwrap();
                assert!(plans.iter().all(|plan| plan.error.is_none()), "{}: {plans:?}", path.display());
            }
            Document::Recipe(recipe) if may_miss(&recipe.model) && !recipe.model.exists() => {}
            Document::Recipe(recipe) => {
                let checkpoint = briquette_formats::Checkpoint::open(&recipe.model).unwrap();
                briquette_pipeline::plan::plan(&recipe, &checkpoint, &Default::default()).unwrap();
            }
        }
    }
}
