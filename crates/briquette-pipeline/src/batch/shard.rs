//! Shards: this process runs every n-th job.

use briquette_core::{Error, Result};

/// Every `count`-th job, starting with `index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

/// A function that reads an environment variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Shard {
    /// Creates shard `index` (from 0) of `count`.
    ///
    /// # Errors
    /// Config: the index is not below the count.
    pub fn new(index: usize, count: usize) -> Result<Self> {
        if index < count {
            return Ok(Self { index, count });
        }
        Err(Error::config(format!("found shard {index} of {count}, expected an index from 0 and below the count")))
    }

    /// Parses `i/n`, `auto` (a Slurm array or torchrun), or `auto/n` (a Kubernetes indexed Job).
    ///
    /// `lookup` reads an environment variable.
    ///
    /// # Errors
    /// Config: a variable is missing or has an invalid value; the message has its name.
    pub fn parse(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let lookup: Lookup = &|name| lookup(name).filter(|value| !value.trim().is_empty());
        Self::ask(text, lookup).map_err(|error| error.at("--shard"))
    }

    fn ask(text: &str, lookup: Lookup) -> Result<Self> {
        match text.split_once('/') {
            None if text == "auto" => Self::of_launcher(lookup),
            Some(("auto", count)) => Self::new(number(lookup, "JOB_COMPLETION_INDEX")?, parse_number("n", count)?),
            Some((index, count)) => Self::new(parse_number("i", index)?, parse_number("n", count)?),
            None => Err(Error::config(format!("found {text:?}, expected i/n such as 0/4, auto, or auto/n"))),
        }
    }

    fn of_launcher(lookup: Lookup) -> Result<Self> {
        if lookup("SLURM_ARRAY_TASK_ID").is_some() {
            return Self::of_slurm(lookup);
        }
        if lookup("RANK").is_some() || lookup("WORLD_SIZE").is_some() {
            return Self::new(number(lookup, "RANK")?, number(lookup, "WORLD_SIZE")?);
        }
        Err(Error::config(
            "auto: neither SLURM_ARRAY_TASK_ID nor RANK is set; start in a Slurm array or with torchrun, or give i/n",
        ))
    }

    /// Returns the shard of a Slurm task. The IDs of an array may start at any number and have any distance.
    fn of_slurm(lookup: Lookup) -> Result<Self> {
        let id = number(lookup, "SLURM_ARRAY_TASK_ID")?;
        let count = number(lookup, "SLURM_ARRAY_TASK_COUNT")?;
        let or = |name: &str, default| if lookup(name).is_some() { number(lookup, name) } else { Ok(default) };
        let (first, step) = (or("SLURM_ARRAY_TASK_MIN", 0)?, or("SLURM_ARRAY_TASK_STEP", 1)?.max(1));
        let index = id.checked_sub(first).filter(|offset| offset.is_multiple_of(step)).map(|offset| offset / step);
        index.filter(|index| *index < count).map(|index| Self { index, count }).ok_or_else(|| {
            Error::config(format!(
                "SLURM_ARRAY_TASK_ID: found {id}, expected one of {count} ids from {first}; use an array without gaps, such as --array=0-3"
            ))
        })
    }

    /// Returns whether there is only one shard.
    pub fn is_whole(self) -> bool {
        self.count == 1
    }

    /// Returns the items of this shard, in order.
    pub fn pick<T>(self, items: &[T]) -> impl Iterator<Item = &T> {
        items.iter().skip(self.index).step_by(self.count)
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-of-{}", self.index, self.count)
    }
}

fn number(lookup: Lookup, name: &str) -> Result<usize> {
    let value =
        lookup(name).ok_or_else(|| Error::config("is not set, expected a number; give i/n instead").at(name))?;
    parse_number(name, &value)
}

fn parse_number(name: &str, text: &str) -> Result<usize> {
    text.trim().parse().map_err(|_| Error::config(format!("found {text:?}, expected a whole number")).at(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables are passed as `NAME=value NAME=value`.
    fn parse(text: &str, variables: &str) -> Result<(usize, usize)> {
        let lookup = |name: &str| {
            let pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(known, _)| *known == name).map(|(_, value)| value.to_string()).next()
        };
        Shard::parse(text, lookup).map(|shard| (shard.index, shard.count))
    }

    #[test]
    fn shards_take_every_job_once() {
        for (n, count) in [(0, 1), (1, 3), (7, 3), (12, 4)] {
            let jobs: Vec<usize> = (0..n).collect();
            let shards = (0..count).map(|index| Shard::new(index, count).unwrap());
            let mut taken: Vec<usize> =
                shards.flat_map(|shard| shard.pick(&jobs).copied().collect::<Vec<_>>()).collect();
            taken.sort_unstable();
            assert_eq!(taken, jobs);
        }
    }

    #[test]
    fn launchers_set_the_shard() {
        let slurm = "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_MIN=5";
        assert_eq!(parse("auto", slurm).unwrap(), (2, 3));
        assert_eq!(parse("auto", &format!("{slurm} SLURM_ARRAY_TASK_STEP=2 RANK=9")).unwrap(), (1, 3));
        assert_eq!(parse("auto", "RANK=1 WORLD_SIZE=2").unwrap(), (1, 2));
        assert_eq!(parse("auto/4", "JOB_COMPLETION_INDEX=3").unwrap(), (3, 4));
        assert_eq!(parse("0/1", "").unwrap(), (0, 1));
    }

    #[test]
    fn missing_or_invalid_values_are_reported() {
        let cases = [
            ("4/4", "", "found shard 4 of 4"),
            ("0/0", "", "found shard 0 of 0"),
            ("x/4", "", "i: found \"x\""),
            ("1", "", "expected i/n"),
            ("auto", "", "neither SLURM_ARRAY_TASK_ID nor RANK"),
            ("auto", "RANK=0", "WORLD_SIZE: is not set"),
            ("auto", "WORLD_SIZE=2 RANK=", "RANK: is not set"),
            ("auto", "SLURM_ARRAY_TASK_ID=1", "SLURM_ARRAY_TASK_COUNT: is not set"),
            ("auto", "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_COUNT=3", "without gaps"),
            ("auto/4", "JOB_COMPLETION_INDEX=-1", "JOB_COMPLETION_INDEX: found \"-1\""),
        ];
        for (text, variables, expected) in cases {
            let error = parse(text, variables).unwrap_err().to_string();
            assert!(error.starts_with("--shard: ") && error.contains(expected), "{text}: {error}");
        }
    }
}
