//! Checks that all jobs have different names and outputs.

use super::job::Job;
use crate::parse::paths::one_spelling;
use briquette_core::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Refuses jobs that share a name or an output, or write inside another job's output.
///
/// Returns the normalized path of each output and the index of its job. Jobs with an invalid recipe may have no
/// known output.
///
/// # Errors
/// - Config: two jobs conflict; the message has both.
/// - Io: there is no current directory.
pub(super) fn check(jobs: &[Job]) -> Result<BTreeMap<PathBuf, usize>> {
    let mut outputs: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (index, job) in jobs.iter().enumerate() {
        let Some(output) = job.output() else { continue };
        let output = one_spelling(output)?;
        if let Some(other) = outputs.insert(output.clone(), index) {
            let message = format!(
                "jobs {:?} and {:?} have the same output, {}; give each its own output.path, in a matrix with {{axis}}",
                jobs[other].name,
                job.name,
                output.display()
            );
            return Err(Error::config(message));
        }
    }
    for (output, job) in &outputs {
        if let Some(outer) = output.ancestors().skip(1).find_map(|above| outputs.get(above)) {
            let (job, outer) = (&jobs[*job].name, &jobs[*outer].name);
            let message = format!("the output of job {job:?} is inside the output of job {outer:?}; choose another");
            return Err(Error::config(message).at(output.display()));
        }
    }
    check_names(jobs)?;
    Ok(outputs)
}

fn check_names(jobs: &[Job]) -> Result<()> {
    let mut named: BTreeMap<&str, &Job> = BTreeMap::new();
    for job in jobs {
        if let Some(other) = named.insert(&job.name, job) {
            let writes = |job: &Job| job.output().map_or("nothing".into(), |output| output.display().to_string());
            let (one, another) = (writes(other), writes(job));
            let message = format!("the jobs that write {one} and {another} are both named {:?}; rename one", job.name);
            return Err(Error::config(message));
        }
    }
    Ok(())
}

/// Returns the deepest directory that contains all outputs.
pub(super) fn common_directory<'a>(mut outputs: impl Iterator<Item = &'a PathBuf>) -> PathBuf {
    let parent = |path: &Path| path.parent().map(Path::to_path_buf).unwrap_or_default();
    let first = outputs.next().map(|path| parent(path)).unwrap_or_default();
    outputs.fold(first, |common, output| {
        let inner = parent(output);
        common.ancestors().find(|above| inner.starts_with(above)).map(Path::to_path_buf).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_directory_holds_every_output() {
        let common = |paths: &[&str]| common_directory(paths.iter().map(PathBuf::from).collect::<Vec<_>>().iter());
        assert_eq!(common(&["/o/a"]), Path::new("/o"));
        assert_eq!(common(&["/o/a", "/o/b"]), Path::new("/o"));
        assert_eq!(common(&["/o/s/a", "/o/t/b", "/o/s/c"]), Path::new("/o"));
        assert_eq!(common(&["/o/a", "/oo/a"]), Path::new("/"));
    }
}
