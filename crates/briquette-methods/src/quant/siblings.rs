//! Groups of tensors that share a kernel, as one tensor with joint candidates.

use crate::quant::candidate::{Candidate, KernelKind};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// A unit of allocation: a tensor, or a group of tensors.
pub(crate) enum Allotted<'a> {
    /// A tensor index, and the tensor's candidates.
    Alone(usize, &'a [Candidate]),
    /// The tensor indices, and joint candidates with the candidate index of each tensor.
    Group(&'a [usize], Vec<(Candidate, Vec<usize>)>),
}

impl Allotted<'_> {
    pub(crate) fn candidates(&self) -> Cow<'_, [Candidate]> {
        match self {
            Self::Alone(_, candidates) => Cow::Borrowed(*candidates),
            Self::Group(_, joint) => joint.iter().map(|(candidate, _)| *candidate).collect(),
        }
    }

    /// Returns each tensor of the unit with the index of its candidate.
    pub(crate) fn places(&self, at: usize) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        match self {
            Self::Alone(tensor, _) => Box::new(std::iter::once((*tensor, at))),
            Self::Group(tensors, joint) => Box::new(tensors.iter().copied().zip(joint[at].1.iter().copied())),
        }
    }
}

/// Returns every tensor, alone or in its group.
///
/// A group is split into single tensors if all candidates have one kernel, or if the tensors have no kernel in
/// common.
pub(crate) fn allotted<'a>(tensors: &'a [Vec<Candidate>], groups: &'a [Vec<usize>]) -> Vec<Allotted<'a>> {
    let mut is_alone = vec![true; tensors.len()];
    let mut found = Vec::with_capacity(tensors.len());
    for group in groups {
        let joint = joint(tensors, group);
        if !joint.is_empty() {
            group.iter().for_each(|&tensor| is_alone[tensor] = false);
            found.push(Allotted::Group(group, joint));
        }
    }
    let alone = tensors.iter().enumerate().filter(|(tensor, _)| is_alone[*tensor]);
    found.extend(alone.map(|(tensor, choices)| Allotted::Alone(tensor, choices)));
    found
}

/// Returns the joint candidates of a group: for each kernel, the optima over the multiplier.
///
/// Empty if the group need not or cannot share a kernel.
fn joint(tensors: &[Vec<Candidate>], group: &[usize]) -> Vec<(Candidate, Vec<usize>)> {
    let kernels =
        |&tensor: &usize| tensors[tensor].iter().map(|choice| choice.kernel).collect::<BTreeSet<KernelKind>>();
    let all: BTreeSet<KernelKind> = group.iter().flat_map(kernels).collect();
    if all.len() < 2 {
        return Vec::new();
    }
    let common = all.into_iter().filter(|kernel| group.iter().all(|tensor| kernels(tensor).contains(kernel)));
    common.flat_map(|kernel| with_kernel(tensors, group, kernel)).collect()
}

/// Returns the joint candidates of one kernel: from the smallest, each adds the upgrade that saves the most
/// loss per byte.
fn with_kernel(tensors: &[Vec<Candidate>], group: &[usize], kernel: KernelKind) -> Vec<(Candidate, Vec<usize>)> {
    let hulls: Vec<Vec<usize>> = group.iter().map(|&tensor| hull(&tensors[tensor], kernel)).collect();
    let mut steps: Vec<(f64, usize)> = Vec::new();
    for (member, hull) in hulls.iter().enumerate() {
        let choices = &tensors[group[member]];
        steps.extend(hull.windows(2).map(|pair| (worth(&choices[pair[0]], &choices[pair[1]]), member)));
    }
    // The savings per byte fall along a tensor's hull, so its upgrades stay in order.
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let sum = |at: &[usize]| {
        let chosen = || at.iter().enumerate().map(|(member, &at)| &tensors[group[member]][hulls[member][at]]);
        let (bytes, loss) = (chosen().map(|choice| choice.bytes).sum(), chosen().map(|choice| choice.loss).sum());
        (Candidate { bytes, loss, kernel }, at.iter().zip(&hulls).map(|(&at, hull)| hull[at]).collect())
    };
    let mut at = vec![0; group.len()];
    let mut found = vec![sum(&at)];
    for (_, member) in steps {
        at[member] += 1;
        found.push(sum(&at));
    }
    found
}

/// Returns the loss saved per additional byte.
fn worth(smaller: &Candidate, larger: &Candidate) -> f64 {
    (smaller.loss - larger.loss) / (larger.bytes - smaller.bytes)
}

/// Returns the lower convex hull of a kernel's candidates, from the smallest to the one with the least loss.
fn hull(choices: &[Candidate], kernel: KernelKind) -> Vec<usize> {
    let mut places: Vec<usize> = (0..choices.len()).filter(|&at| choices[at].kernel == kernel).collect();
    let key = |&at: &usize| (choices[at].bytes, choices[at].loss);
    places.sort_by(|a, b| key(a).0.total_cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1)));
    let mut hull: Vec<usize> = Vec::new();
    for at in places {
        if hull.last().is_some_and(|&last| choices[at].loss >= choices[last].loss) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            if worth(&choices[before], &choices[last]) > worth(&choices[last], &choices[at]) {
                break;
            }
            hull.pop();
        }
        hull.push(at);
    }
    hull
}
