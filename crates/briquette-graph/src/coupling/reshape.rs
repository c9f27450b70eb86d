//! The rule of reshapes. Which axis carries the ids follows from how later operations use the axes.

use super::axes::{Axes, AxisIds};
use super::segments::segments;
use super::uses::{Fate, Uses};
use crate::graph::ValueId;
use crate::union_find::FIXED;

/// Applies the rule: axes that are joined or cut are matched by their products.
///
/// - One axis to one: the ids pass.
/// - `(A, B) → C`: the axis that is not fixed carries its ids; of two such axes the inner one is fixed.
/// - `C → (A, B)`: the factor that suits best carries the ids, and elements of `C` at one position of this factor are united. The other
///   factors are fixed. A factor over which heads are batched is best, then a factor that is joined again as the outermost.
pub(super) fn apply(axes: &mut Axes, uses: &Uses, from: &[usize], to: &[usize], ids: &AxisIds, output: ValueId) {
    let mut found: AxisIds = to.iter().map(|&extent| vec![FIXED; extent]).collect();
    for (inputs, outputs) in segments(from, to) {
        let flat = merge(axes, &inputs.iter().map(|&axis| ids[axis].as_slice()).collect::<Vec<_>>());
        match outputs.as_slice() {
            [] => axes.sets.fix(&flat),
            [only] => found[*only] = flat,
            several => split(axes, uses, &flat, several, to, output, &mut found),
        }
    }
    axes.set(output, found);
}

/// The ids of joined axes, outermost first.
fn merge(axes: &mut Axes, parts: &[&[u32]]) -> Vec<u32> {
    if let [only] = parts {
        return only.to_vec();
    }
    let free: Vec<usize> = (0..parts.len()).filter(|&part| !axes.sets.is_fixed(parts[part])).collect();
    for &part in free.iter().skip(1) {
        axes.sets.fix(parts[part]);
    }
    let n = parts.iter().map(|part| part.len()).product();
    let Some(&carrier) = free.first() else { return vec![FIXED; n] };
    let inner: usize = parts[carrier + 1..].iter().map(|part| part.len()).product();
    let own = parts[carrier];
    (0..n).map(|at| own[at / inner % own.len()]).collect()
}

/// Cuts an axis into factors.
fn split(
    axes: &mut Axes,
    uses: &Uses,
    flat: &[u32],
    factors: &[usize],
    to: &[usize],
    output: ValueId,
    found: &mut AxisIds,
) {
    if axes.sets.is_fixed(flat) {
        return;
    }
    let inner = |place: usize| -> usize { factors[place + 1..].iter().map(|&axis| to[axis]).product() };
    let Some(carrier) = carrier(axes, uses, flat, factors, to, output) else {
        axes.sets.fix(flat);
        return;
    };
    let (n, inner) = (to[factors[carrier]], inner(carrier));
    let mut ids = vec![None; n];
    for (at, &id) in flat.iter().enumerate() {
        match ids[at / inner % n] {
            None => ids[at / inner % n] = Some(id),
            Some(first) => axes.sets.unite(first, id),
        }
    }
    found[factors[carrier]] = ids.into_iter().map(|id| id.unwrap_or(FIXED)).collect();
}

/// The factor that carries the ids; none if all elements of every factor are needed.
fn carrier(
    axes: &mut Axes,
    uses: &Uses,
    flat: &[u32],
    factors: &[usize],
    to: &[usize],
    output: ValueId,
) -> Option<usize> {
    let mut best: Option<(Fate, usize)> = None;
    for (place, &axis) in factors.iter().enumerate() {
        let inner: usize = factors[place + 1..].iter().map(|&axis| to[axis]).product();
        if is_tied(axes, flat, to[axis], inner) {
            return Some(place);
        }
        let fate = uses.fate(output, axis);
        if fate != Fate::Needed && best.is_none_or(|(other, _)| fate < other) {
            best = Some((fate, place));
        }
    }
    best.map(|(_, place)| place)
}

/// Whether elements at one position of a factor have one id already, so that cutting ties nothing more.
fn is_tied(axes: &mut Axes, flat: &[u32], n: usize, inner: usize) -> bool {
    let mut roots = vec![None; n];
    flat.iter().enumerate().all(|(at, &id)| {
        let root = axes.sets.root(id);
        *roots[at / inner % n].get_or_insert(root) == root
    })
}
