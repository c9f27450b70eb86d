//! A size sweep: a jobs file that runs one recipe at several size budgets.

use crate::parse::memory::bytes_of;
use crate::parse::raw::RawRecipe;
use briquette_core::{Error, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The recipe key of the sizes.
const KEY: &str = "budget.bytes";
/// Largest number of sizes of a sweep.
const MAX_SIZES: usize = 1000;
/// Number of digits that represent every file size exactly.
const MAX_DIGITS: i32 = 20;

/// Returns the sizes of a sweep.
///
/// `6MB..23MB` gives `n` sizes with about equal ratios; `6MB,9MB` gives these two. Sizes within a range have
/// three significant digits, or more if they would be equal otherwise.
///
/// # Errors
/// Config: `text` is neither a range nor a list of sizes.
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
    let points = |n_digits: i32| -> Vec<u64> {
        let is_end = |place: usize| place == 0 || place == n - 1;
        (0..n)
            .map(|place| if is_end(place) { at(place).round() } else { rounded(at(place), n_digits) } as u64)
            .collect()
    };
    let differ = |sizes: &Vec<u64>| sizes.is_sorted_by(|a, b| a < b);
    Ok((3..MAX_DIGITS).map(points).find(differ).unwrap_or_else(|| points(MAX_DIGITS)))
}

/// Rounds a size to `n_digits` significant digits.
fn rounded(size: f64, n_digits: i32) -> f64 {
    let unit = 10_f64.powi(size.log10().floor() as i32 + 1 - n_digits).max(1.0);
    (size / unit).round() * unit
}

fn many(n: usize) -> Error {
    Error::config(format!("{KEY}: found {n} sizes, expected at most {MAX_SIZES}"))
}

/// Returns the text of a jobs file that runs a recipe at these sizes.
///
/// The recipe has absolute paths. Each size is written to its own directory below `output`. The batch report
/// also shows the outputs `also`.
///
/// # Errors
/// Bug: the jobs cannot be written as TOML.
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
    Ok(format!("# A sweep: one recipe at several sizes. You can add sizes and run it with `briquette run`.\n\n{text}"))
}

/// Returns a size in the largest unit that represents it exactly.
fn words(size: u64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")].into_iter().filter(|(unit, _)| size as f64 >= *unit);
    let mut texts = units.map(|(unit, name)| format!("{}{name}", size as f64 / unit));
    let is_exact = |text: &String| bytes_of(KEY, text).is_ok_and(|found| found == size);
    texts.find(is_exact).unwrap_or_else(|| format!("{size}B"))
}

/// Removes nulls, which TOML does not have.
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
    use crate::parse::jobs::Jobs;
    use crate::parse::text::parse;

    #[test]
    fn ranges_have_equal_ratios_and_lists_are_unchanged() {
        assert_eq!(sizes("6MB..24MB", 3).unwrap(), [6_000_000, 12_000_000, 24_000_000]);
        assert_eq!(sizes("9kB, 1MiB", 7).unwrap(), [9000, 1 << 20]);
        assert_eq!(sizes("1kB..2kB", 1).unwrap(), [1000]);
        for bad in ["2MB..1MB", "..2MB", "a..b", "", "1MB..1MB"] {
            assert!(sizes(bad, 3).unwrap_err().to_string().starts_with("budget.bytes: found"), "{bad}");
        }
        assert!(sizes("1MB..2MB", 1001).is_err());
        let between: Vec<String> = sizes("6MB..23MB", 6).unwrap().into_iter().map(words).collect();
        assert_eq!(between, ["6MB", "7.85MB", "10.3MB", "13.4MB", "17.6MB", "23MB"]);
        let near = sizes("9.41MB..9.42MB", 4).unwrap();
        assert_eq!(near, [9_410_000, 9_413_000, 9_417_000, 9_420_000], "as many digits as tell them apart");
        for (size, expected) in [(9_400_000, "9.4MB"), (8_123_457, "8.123457MB"), (999, "999B"), (3_000_000_000, "3GB")]
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
        assert_eq!(recipe.budget.unwrap().target, crate::parse::Target::Bytes(1_500_000));
        assert_eq!(recipe.stages.len(), 2);
    }
}
