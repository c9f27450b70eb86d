//! The evaluate stage: its data, memory settings and bounds.

use crate::parse::kind::StageKind;
use crate::parse::memory::{BatchSize, Dtype, TrainMemory};
use crate::parse::ranges;
use crate::parse::raw::{RawData, RawRecipe, RawStage};
use briquette_core::{Error, Result};
use briquette_formats::Choice;
use std::collections::BTreeMap;

/// The settings of an evaluation, and the bounds of its metrics.
#[derive(Debug, Clone, Default)]
pub struct Evaluate {
    /// Which entry of a file is the model. The setting applies to the compressed or the original model. If it
    /// does not fit the other model, that model is opened without it.
    pub choice: Choice,
    /// The architecture, if the recipe sets it.
    pub arch: Option<String>,
    /// The data; paths are resolved.
    pub data: RawData,
    /// Number of items in a batch.
    pub batch_size: BatchSize,
    /// Memory limit in bytes.
    pub limit: Option<u64>,
    /// Whether only one block's weights are in memory at a time.
    pub offload: bool,
    /// The float type of computation.
    pub dtype: Dtype,
    /// The bounds of metrics, by name.
    pub bounds: Bounds,
}

/// The lower and upper bounds of metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bounds {
    /// Lower bounds.
    pub min: BTreeMap<String, f64>,
    /// Upper bounds.
    pub max: BTreeMap<String, f64>,
}

impl Bounds {
    /// Refuses metrics that are out of bounds.
    ///
    /// # Errors
    /// - Refused: a metric is out of bounds; the message has both values.
    /// - Config: a metric of a bound was not measured.
    pub fn check(&self, metrics: &BTreeMap<String, f64>) -> Result<()> {
        self.check_known(metrics).map_err(|error| error.at("gate"))?;
        for (name, bound, is_min) in self.all() {
            let found = metrics.get(name).copied().unwrap_or(f64::NAN);
            // NaN fails both comparisons, so it meets no bound.
            let is_met = if is_min { found >= bound } else { found <= bound };
            if !is_met {
                let word = if is_min { "at least" } else { "at most" };
                let message = format!("{name} is {found:.6}, expected {word} {bound}");
                return Err(Error::refused(message).at("gate"));
            }
        }
        Ok(())
    }

    /// Refuses bounds of metrics that were not measured.
    ///
    /// # Errors
    /// Config: `metrics` lacks the metric of a bound.
    pub fn check_known(&self, metrics: &BTreeMap<String, f64>) -> Result<()> {
        let Some((name, ..)) = self.all().find(|(name, ..)| !metrics.contains_key(*name)) else { return Ok(()) };
        let known: Vec<&str> = metrics.keys().map(String::as_str).collect();
        Err(Error::config(format!(
            "found the metric {name:?}, which is not measured, expected one of {}",
            known.join(", ")
        )))
    }

    /// Returns the metric, the bound, and whether it is a lower bound, of each bound.
    fn all(&self) -> impl Iterator<Item = (&str, f64, bool)> {
        let min = self.min.iter().map(|(name, bound)| (name.as_str(), *bound, true));
        min.chain(self.max.iter().map(|(name, bound)| (name.as_str(), *bound, false)))
    }
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = self.all().map(|(name, bound, is_min)| {
            let word = if is_min { "at least" } else { "at most" };
            format!("{name} {word} {bound}")
        });
        f.write_str(&each.collect::<Vec<_>>().join(", "))
    }
}

impl Evaluate {
    /// Reads the evaluation of a recipe with resolved paths; `None` if it has no evaluate stage.
    ///
    /// # Errors
    /// Config: a key is missing or invalid.
    pub fn from_raw(raw: &RawRecipe) -> Result<Option<Self>> {
        ranges::check(raw)?;
        Self::from_checked(raw)
    }

    /// Does the same as [`from_raw`](Self::from_raw), for numbers that are already checked against their
    /// ranges.
    pub(crate) fn from_checked(raw: &RawRecipe) -> Result<Option<Self>> {
        let memory = raw.memory.clone().unwrap_or_default();
        // In a recipe that trains, `memory.dtype` is the type of the training; its result is evaluated in f32.
        let trains = raw.has(StageKind::Distill);
        let dtype = Some(TrainMemory::from_raw(raw.memory.as_ref())?.dtype).filter(|_| !trains).unwrap_or_default();
        let limit = memory.limit_bytes()?;
        let batch_size = memory.batch_size.map(BatchSize::try_from).transpose()?.unwrap_or_default();
        let data = raw.data.clone().unwrap_or_default();
        let is_evaluate = |stage: &&RawStage| stage.kind() == Some(StageKind::Evaluate);
        let n_stages = raw.stage.iter().filter(is_evaluate).count();
        let is_last = raw.stage.last().as_ref().is_some_and(is_evaluate);
        match (n_stages, is_last) {
            (0, _) if raw.gate.is_some() => {
                return Err(Error::config("gate: there is no evaluate stage to measure metrics; add one"));
            }
            (0, _) => return Ok(None),
            (1, true) => {}
            _ => return Err(Error::config("evaluate: expected one evaluate stage, as the last stage")),
        }
        if data.eval.is_none() {
            return Err(Error::config("data.eval: missing; set the data to evaluate on"));
        }
        if memory.offload && dtype != Dtype::F32 {
            return Err(Error::config(
                "memory.dtype: found another type than f32 with memory.offload; remove one of the two",
            ));
        }
        if memory.offload && raw.has_static_activations() {
            let message = "memory.offload: an evaluation by block does not round static int8 activations; remove it, or the evaluate stage";
            return Err(Error::config(message));
        }
        let gate = raw.gate.clone().unwrap_or_default();
        Ok(Some(Self {
            choice: Choice { is_for_one_of_two: true, ..raw.model.choice() },
            arch: raw.model.arch.clone(),
            data,
            batch_size,
            limit,
            offload: memory.offload,
            dtype,
            bounds: Bounds { min: gate.min, max: gate.max },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_memory_are_checked_without_stages() {
        let cases = [
            ("[memory]\nlimit = \"4XB\"", "memory.limit: found \"4XB\""),
            ("[memory]\nbatch_size = 0", "memory.batch_size: found 0"),
            ("[data]\nworkers = 100000", "data.workers: found 100000"),
            ("[data]\nmax_length = 0", "data.max_length: found 0"),
            ("[data]\ncrop = [3, 0]", "data.crop.1: found 0"),
        ];
        for (text, expected) in cases {
            let raw = crate::parse::text::parse(text, "r.toml").unwrap();
            let error = Evaluate::from_raw(&raw).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn an_evaluation_by_block_of_static_activations_is_refused_before_any_work() {
        let text = "[memory]\noffload = true\n[data]\neval = \"d\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"SCHEME\"\n\
                    [[stage]]\nkind = \"evaluate\"\n";
        let of = |scheme: &str| {
            let raw = crate::parse::text::parse(&text.replace("SCHEME", scheme), "r.toml").unwrap();
            Evaluate::from_raw(&raw)
        };
        assert!(of("int8-dynamic").is_ok());
        assert!(of("int8-static").unwrap_err().to_string().starts_with("memory.offload: "));
    }

    #[test]
    fn gate_errors_have_the_metric_and_both_values() {
        let metrics = BTreeMap::from([("cosine".to_string(), 0.9), ("kl".to_string(), f64::NAN)]);
        let bounds = |min: &[(&str, f64)], max: &[(&str, f64)]| {
            let of = |pairs: &[(&str, f64)]| pairs.iter().map(|(name, value)| (name.to_string(), *value)).collect();
            Bounds { min: of(min), max: of(max) }
        };
        assert!(bounds(&[("cosine", 0.9)], &[]).check(&metrics).is_ok());
        let error = bounds(&[("cosine", 0.95)], &[]).check(&metrics).unwrap_err().to_string();
        assert!(error.contains("cosine is 0.900000, expected at least 0.95"), "{error}");
        assert!(bounds(&[], &[("kl", 1.0)]).check(&metrics).is_err(), "NaN is not within bounds");
        assert!(bounds(&[("accuracy", 0.5)], &[]).check(&metrics).unwrap_err().to_string().contains("not measured"));
    }
}
