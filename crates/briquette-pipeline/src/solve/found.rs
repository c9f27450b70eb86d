//! The results so far, block by block.

use super::job::layer_of;
use super::source::SolvedSource;
use super::unit::{self, SolvedUnit};
use crate::report::SolvedLayer;
use briquette_core::Result;
use briquette_formats::Checkpoint;
use briquette_formats::presence;
use briquette_recipe::plan::listed;
use briquette_writer::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The results so far.
pub(super) struct Found<'a> {
    pub(super) source: SolvedSource<'a>,
    pub(super) layers: BTreeMap<usize, SolvedLayer>,
}

impl<'a> Found<'a> {
    /// Adds a finished unit: its weights, and its input statistics.
    pub(super) fn take_in(&mut self, plan: &mut Plan, unit: Checkpoint, tensors: &[usize]) -> Result<()> {
        for &index in tensors {
            let tensor = &plan.tensors[index];
            if let Some(view) = unit::view(&unit, &tensor.info.name)? {
                plan.inputs.insert(index, view);
            }
        }
        for &index in tensors {
            if let Some(layer) = unit::figures(&unit, &plan.tensors[index].info.name)? {
                self.layers.insert(index, layer);
            }
        }
        self.source.add(unit, tensors.iter().map(|&index| (index, &plan.tensors[index])))
    }

    /// Adds remarks about layers with few inputs, and about layers whose method fell back to a simpler one.
    pub(super) fn remark(&self, plan: &mut Plan) {
        let of = |is_it: &dyn Fn(&SolvedLayer) -> bool| -> Vec<&str> {
            let found = self.layers.iter().filter(|(_, layer)| is_it(layer));
            found.map(|(&index, _)| layer_of(&plan.tensors[index].info.name)).collect()
        };
        let few = of(&|layer| layer.is_few);
        let damped = of(&|layer| layer.is_damped_more && layer.fell_back.is_none());
        let dead = of(&|layer| layer.n_dead > 0);
        let lines = [
            ("saw fewer than 512 vectors in the calibration, too few for reliable statistics", few),
            ("needed more damping, as their Hessians had no Cholesky factor", damped),
            (
                "have inputs that were 0 throughout the calibration; their weights were rounded to nearest or pruned first",
                dead,
            ),
        ];
        let said = lines.into_iter().filter(|(_, names)| !names.is_empty());
        let said: Vec<String> = said.map(|(what, names)| format!("{} {what}", listed(&names))).collect();
        plan.remarks.extend(said);
        let mut left: Vec<f64> = self.layers.values().filter_map(|layer| layer.block_left).collect();
        left.sort_by(f64::total_cmp);
        if let Some(median) = left.get(left.len() / 2) {
            let message = "SignRound learned the rounding of blocks; the squared error of their outputs fell to";
            plan.remarks.push(format!("{message} {median:.2} of the error before (median)."));
        }
        let reasons: BTreeSet<&str> = self.layers.values().filter_map(|layer| layer.fell_back.as_deref()).collect();
        let fallback = |reason: &str| {
            let layers = of(&|layer| layer.fell_back.as_deref() == Some(reason));
            format!("{}: weights were dropped by magnitude and rounded to nearest, because {reason}", listed(&layers))
        };
        plan.remarks.extend(reasons.into_iter().map(fallback).collect::<Vec<_>>());
    }
}

/// Opens the unit of an earlier run if it is intact. Otherwise makes and stores it.
pub(super) fn unit_at(path: &Path, make: impl FnOnce() -> Result<SolvedUnit>) -> Result<Checkpoint> {
    if presence::exists(path)?
        && let Ok(done) = SolvedUnit::open(path)
    {
        return Ok(done);
    }
    make()?.write(path)?;
    SolvedUnit::open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_cannot_be_examined_is_not_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unit");
        std::os::unix::fs::symlink(dir.path().join("gone"), &path).unwrap();
        let error = unit_at(&path, || panic!("it is made again")).err().unwrap();
        assert_eq!(error.exit_code(), 4, "{error}");
    }
}
