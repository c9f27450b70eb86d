//! Tensors that are multiplied by together, as one whose choices are those of all of them.

use crate::quant::candidate::{Candidate, KernelKind};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// What gets a choice of its own: a tensor, or a group of them.
pub(crate) enum Allotted<'a> {
    /// A tensor, and its choices.
    Alone(usize, &'a [Candidate]),
    /// Tensors, and some choices with the place of each tensor's.
    Group(&'a [usize], Vec<(Candidate, Vec<usize>)>),
}

impl Allotted<'_> {
    pub(crate) fn candidates(&self) -> Cow<'_, [Candidate]> {
        match self {
            Self::Alone(_, candidates) => Cow::Borrowed(*candidates),
            Self::Group(_, joint) => joint.iter().map(|(candidate, _)| *candidate).collect(),
        }
    }

    /// The tensors, and the place of the choice of each.
    pub(crate) fn places(&self, at: usize) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        match self {
            Self::Alone(tensor, _) => Box::new(std::iter::once((*tensor, at))),
            Self::Group(tensors, joint) => Box::new(tensors.iter().copied().zip(joint[at].1.iter().copied())),
        }
    }
}

/// Every tensor, alone or in its group. A group whose choices are all of one kernel, or of none that all have, is no group.
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

/// Choices of a group, for each kernel those that some multiplier leads to; none where there is nothing to be kept together.
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

/// Of one kernel: from the smallest choice of each tensor on, always the better choice that saves the most loss for a byte.
fn with_kernel(tensors: &[Vec<Candidate>], group: &[usize], kernel: KernelKind) -> Vec<(Candidate, Vec<usize>)> {
    let hulls: Vec<Vec<usize>> = group.iter().map(|&tensor| hull(&tensors[tensor], kernel)).collect();
    let mut steps: Vec<(f64, usize)> = Vec::new();
    for (member, hull) in hulls.iter().enumerate() {
        let choices = &tensors[group[member]];
        steps.extend(hull.windows(2).map(|pair| (worth(&choices[pair[0]], &choices[pair[1]]), member)));
    }
    // Those of one tensor are worth less and less, so that they stay in order.
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

/// Loss that is saved for each byte more.
fn worth(smaller: &Candidate, larger: &Candidate) -> f64 {
    (smaller.loss - larger.loss) / (larger.bytes - smaller.bytes)
}

/// The choices of a kernel that are best for some multiplier, from the smallest to the best.
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
