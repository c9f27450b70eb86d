//! A recipe with a budget at several sizes, as a jobs file.

use crate::memory::bytes_of;
use crate::raw::RawRecipe;
use briquette_core::{Error, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The key of sizes.
const KEY: &str = "budget.bytes";
/// Most sizes of a sweep.
const MAX_SIZES: usize = 1000;

/// The sizes of a sweep: of `6MB..23MB`, `n` from the first to the last with equal ratios; of `6MB,9MB`, those.
///
/// # Errors
/// Config, where it is neither.
pub fn sizes(text: &str, n: usize) -> Result<Vec<u64>> {
    let Some((first, last)) = text.split_once("..") else {
        let sizes = text.split(',').map(|size| bytes_of(KEY, size.trim())).collect::<Result<Vec<u64>>>()?;
        return if sizes.len() <= MAX_SIZES { Ok(sizes) } else { Err(many(sizes.len())) };
    };
    let (first, last) = (bytes_of(KEY, first.trim())? as f64, bytes_of(KEY, last.trim())? as f64);
    if first >= last {
        return Err(Error::config(format!("{KEY}: found {text:?}, expected the smaller size first")));
    }
    if n > MAX_SIZES {
        return Err(many(n));
    }
    let at = |place: usize| first * (last / first).powf(place as f64 / (n - 1).max(1) as f64);
    Ok((0..n).map(|place| at(place).round() as u64).collect())
}

fn many(n: usize) -> Error {
    Error::config(format!("{KEY}: found {n} sizes, expected at most {MAX_SIZES}"))
}

/// The text of a jobs file that runs a recipe with absolute paths at these sizes, each into a directory below `output`, and shows other outputs
/// beside them.
///
/// # Errors
/// Bug, where it cannot be written as TOML.
pub fn sweep(recipe: &RawRecipe, output: &Path, sizes: &[u64], also: &[PathBuf]) -> Result<String> {
    let bug = |what: String| Error::bug(format!("the jobs of a sweep: {what}"));
    let mut base = serde_json::to_value(recipe).map_err(|error| bug(error.to_string()))?;
    if let Some(budget) = base.get_mut("budget").and_then(Value::as_object_mut) {
        budget.remove("bytes");
    }
    base["output"]["path"] = json!(output.join(format!("{{{KEY}}}")));
    let named: Vec<String> = sizes.iter().map(|&size| words(size)).collect();
    let mut jobs = json!({ "base": base, "matrix": { KEY: named }, "also": also });
    without_nulls(&mut jobs);
    let text = toml::to_string_pretty(&jobs).map_err(|error| bug(error.to_string()))?;
    Ok(format!(
        "# A sweep: one recipe at several sizes. `briquette run` takes it too; add sizes as you like.\n\n{text}"
    ))
}

/// A size that reads back as it is, in the largest unit that does.
fn words(size: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let found = units.iter().find(|(unit, _)| size >= *unit && size.is_multiple_of(unit / 1000));
    found.map_or(format!("{size}B"), |(unit, name)| format!("{}{name}", size as f64 / *unit as f64))
}

/// TOML knows none.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(table) => {
            table.retain(|_, value| !value.is_null());
            table.values_mut().for_each(without_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Jobs;
    use crate::text::parse;

    #[test]
    fn sizes_have_equal_ratios_and_lists_are_taken_as_they_are() {
        assert_eq!(sizes("6MB..24MB", 3).unwrap(), [6_000_000, 12_000_000, 24_000_000]);
        assert_eq!(sizes("9kB, 1MiB", 7).unwrap(), [9000, 1 << 20]);
        assert_eq!(sizes("1kB..2kB", 1).unwrap(), [1000]);
        for bad in ["2MB..1MB", "..2MB", "a..b", "", "1MB..1MB"] {
            assert!(sizes(bad, 3).unwrap_err().to_string().starts_with("budget.bytes: found"), "{bad}");
        }
        assert!(sizes("1MB..2MB", 1001).is_err());
        for (size, expected) in [(9_400_000, "9.4MB"), (8_123_457, "8123.457kB"), (999, "999B"), (3_000_000_000, "3GB")]
        {
            assert_eq!(words(size), expected);
            assert_eq!(bytes_of("k", &words(size)).unwrap(), size);
        }
    }

    #[test]
    fn a_sweep_reads_back_as_a_job_for_each_size() {
        let text = "[model]\npath = \"/m\"\n[output]\npath = \"/x\"\n[budget]\nbytes = \"1MB..2MB\"\nsensitivity = \"relative\"\n\
                    [[stage]]\nkind = \"quantize\"\nscheme = \"step\"\nexclude = [\"a.*\"]\n[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n";
        let text =
            sweep(&parse(text, "r").unwrap(), Path::new("/out"), &[1_000_000, 1_500_000], &["/other".into()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sweep.toml");
        std::fs::write(&path, text).unwrap();
        let jobs = Jobs::from_file(&path).unwrap();
        let outputs: Vec<_> = jobs.jobs.iter().map(|job| job.recipe().unwrap().output).collect();
        assert_eq!(outputs, [Path::new("/out/1MB"), Path::new("/out/1.5MB")]);
        assert_eq!(jobs.also, [Path::new("/other")]);
        let recipe = jobs.jobs[1].recipe().unwrap();
        assert_eq!(recipe.budget.unwrap().target, crate::Target::Bytes(1_500_000));
        assert_eq!(recipe.stages.len(), 2);
    }
}
