//! Chooses the units to remove.

use super::groups::{ChosenGroup, at_group};
use super::inputs::{InputAxis, Needed, Reader};
use briquette_core::{Error, Result, random};
use briquette_graph::coupling::{CouplingGroup, Couplings, GroupKind, UnitId};
use briquette_methods::prune::units::{
    UnitAmount, UnitScore, add_input_energies, add_magnitudes, among_groups, smallest,
};
use briquette_methods::reconstruct::{Consumer, osscar};
use briquette_recipe::{ShrinkStage, ShrinkTarget};
use briquette_writer::context::Workers;
use std::collections::BTreeSet;

/// The damping of refits, relative to the mean diagonal of the Gram matrix.
pub(super) const DAMPING: f64 = 0.01;

/// Returns the units that a stage removes.
///
/// # Errors
/// - Input: a layer observed no inputs.
/// - Refused: a weight is not finite.
/// - Io and Interrupted.
pub(super) fn removed(
    stage: &ShrinkStage,
    reader: &Reader,
    couplings: &Couplings,
    chosen: &[ChosenGroup],
    workers: &Workers,
) -> Result<BTreeSet<UnitId>> {
    let n_bytes = |chosen: &ChosenGroup| n_bytes(reader, &couplings.groups[chosen.group]);
    workers.begin("shrink", chosen.iter().map(n_bytes).sum());
    let of_group = |chosen: &ChosenGroup| {
        let found = match stage.score {
            UnitScore::Osscar => by_osscar(reader, couplings, chosen, workers).map(UnitChoice::Units),
            score => scores(score, reader, couplings, chosen.group).map(UnitChoice::Scores),
        };
        workers.advance(n_bytes(chosen));
        found
    };
    let found = workers.map(chosen, || (), |(), chosen| of_group(chosen))?;
    let mut removed = BTreeSet::new();
    let mut add =
        |group: usize, units: Vec<usize>| removed.extend(units.into_iter().map(|unit| UnitId { group, unit }));
    if let (true, Some(ShrinkTarget::Units(amount))) = (stage.is_global, stage.target) {
        for kind in GroupKind::ALL {
            let (groups, scores) = of_kind(couplings, chosen, &found, kind);
            let units = globally(stage, amount, kind, &scores);
            groups.into_iter().zip(units).for_each(|(group, units)| add(group, units));
        }
        return Ok(removed);
    }
    for (chosen, found) in chosen.iter().zip(found) {
        match found {
            UnitChoice::Units(units) => add(chosen.group, units),
            UnitChoice::Scores(scores) => add(chosen.group, smallest(&scores, chosen.n_removed)),
        }
    }
    Ok(removed)
}

/// Returns the bytes of the weights of a group.
fn n_bytes(reader: &Reader, group: &CouplingGroup) -> usize {
    let bytes = group.places.iter().map(|place| reader.model.graph.weights[place.weight.0].n_bytes());
    bytes.sum::<u64>() as usize
}

/// The decision of a method about the units of a group.
enum UnitChoice {
    /// The units to remove.
    Units(Vec<usize>),
    /// The score of each unit.
    Scores(Vec<f64>),
}

fn globally(stage: &ShrinkStage, amount: UnitAmount, kind: GroupKind, scores: &[Vec<f64>]) -> Vec<Vec<usize>> {
    among_groups(scores, &stage.budget(amount, kind))
}

/// Returns the chosen groups of a kind, and their scores.
fn of_kind(
    couplings: &Couplings,
    chosen: &[ChosenGroup],
    found: &[UnitChoice],
    kind: GroupKind,
) -> (Vec<usize>, Vec<Vec<f64>>) {
    let own = chosen.iter().zip(found).filter(|(chosen, _)| couplings.kinds[chosen.group] == kind);
    let scores = own.filter_map(|(chosen, found)| match found {
        UnitChoice::Scores(scores) => Some((chosen.group, scores.clone())),
        UnitChoice::Units(_) => None,
    });
    scores.unzip()
}

/// Returns the columns of each unit in the rows of a weight.
fn columns(group: &CouplingGroup, axis: &InputAxis) -> Vec<Vec<usize>> {
    let of_element = |&element: &u32| {
        let first = element as usize * axis.inner;
        first..first + axis.inner
    };
    group.units.iter().map(|unit| unit[axis.place].iter().flat_map(of_element).collect()).collect()
}

fn by_osscar(reader: &Reader, couplings: &Couplings, chosen: &ChosenGroup, workers: &Workers) -> Result<Vec<usize>> {
    let group = &couplings.groups[chosen.group];
    let axes = reader.input_axes(couplings, chosen.group)?;
    if axes.is_empty() {
        let scores = scores(UnitScore::L2, reader, couplings, chosen.group)?;
        return Ok(smallest(&scores, chosen.n_removed));
    }
    let rows: Vec<Vec<f32>> = axes.iter().map(|axis| reader.rows(axis)).collect::<Result<_>>()?;
    let stats = axes.iter().map(|axis| reader.stats(axis, Needed::Gram)).collect::<Result<Vec<_>>>()?;
    let mut consumers = Vec::with_capacity(axes.len());
    for ((axis, weights), stats) in axes.iter().zip(&rows).zip(&stats) {
        let gram = stats.gram.as_deref().map_or(&[][..], Vec::as_slice);
        consumers.push(Consumer { gram, weights, n: reader.n_columns(axis), damping: DAMPING });
    }
    let units: Vec<Vec<Vec<usize>>> = axes.iter().map(|axis| columns(group, axis)).collect();
    match osscar(&consumers, &units, chosen.n_removed, &|| workers.check_stop())? {
        Some(units) => Ok(units),
        None => {
            let message =
                "its calibration observed no inputs, or inputs beyond f64; exclude the tensor, or set method = \"l2\"";
            Err(at_group(Error::input(message), &reader.model.graph, couplings, chosen.group))
        }
    }
}

/// Returns the score of each unit of a group.
fn scores(score: UnitScore, reader: &Reader, couplings: &Couplings, index: usize) -> Result<Vec<f64>> {
    let group = &couplings.groups[index];
    if let UnitScore::Random(seed) = score {
        let number = |unit: usize| f64::from(random::uniform(index as u64, seed.wrapping_add(unit as u64)));
        return Ok((0..group.units.len()).map(number).collect());
    }
    let mut sums = vec![0.0; group.units.len()];
    let mut add = |place: usize, of_elements: &[f64]| {
        for (sum, unit) in sums.iter_mut().zip(&group.units) {
            *sum += unit[place].iter().map(|&element| of_elements[element as usize]).sum::<f64>();
        }
    };
    let axes = if score.needs_inputs() { reader.input_axes(couplings, index)? } else { Vec::new() };
    for axis in &axes {
        let sum_of =
            |columns: &[f64]| columns.chunks(axis.inner.max(1)).map(|part| part.iter().sum()).collect::<Vec<f64>>();
        if score == UnitScore::Taylor {
            add(axis.place, &sum_of(&reader.stats(axis, Needed::Importance)?.importance));
            continue;
        }
        let mut of_columns = vec![0.0; reader.n_columns(axis)];
        let stats = reader.stats(axis, Needed::Sums)?;
        let energies = if score == UnitScore::Flap { stats.variances() } else { stats.view().mean_square };
        add_input_energies(&reader.rows(axis)?, &energies, &mut of_columns);
        add(axis.place, &sum_of(&of_columns));
    }
    if axes.is_empty() {
        for (place, at) in group.places.iter().enumerate() {
            let weight = &reader.model.graph.weights[at.weight.0];
            if weight.is_buffer {
                continue;
            }
            let mut of_elements = vec![0.0; weight.shape.0[at.axis]];
            let inner: usize = weight.shape.0[at.axis + 1..].iter().product();
            let power = if score == UnitScore::L1 { f64::abs } else { |value: f64| value * value };
            add_magnitudes(&reader.values(at.weight)?, inner, power, &mut of_elements);
            add(place, &of_elements);
        }
    }
    let is_root = score != UnitScore::L1;
    Ok(sums.into_iter().map(|sum| if is_root { sum.sqrt() } else { sum }).collect())
}
