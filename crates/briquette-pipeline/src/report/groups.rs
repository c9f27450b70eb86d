//! Groups of similar tensors: names that differ only in layer numbers share a row of a table or a plot.

use crate::report::columns::is_number;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Up to this number of tensors, each has its own row.
pub(crate) const MAX_SINGLES: usize = 24;

/// The tensors of a model in groups, by index. A tensor takes 8 bytes.
#[derive(Debug)]
pub struct TensorGroups {
    /// Indices, group by group.
    members: Vec<u32>,
    /// The end of each group in `members`.
    ends: Vec<u32>,
}

/// The properties that tensors of one group share.
pub trait Likeness {
    /// Returns the tensor's name.
    fn name(&self, place: usize) -> &str;
    /// Returns the other shared properties, as text.
    fn traits(&self, place: usize) -> String;
}

impl TensorGroups {
    /// Returns `n` groups of one tensor each.
    pub fn singles(n: usize) -> Self {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        Self { members: (0..n).collect(), ends: (1..=n).collect() }
    }

    /// Groups `n` tensors whose names differ only in layer numbers and whose traits are equal.
    ///
    /// Groups are in the order of their first members. A small model has one group per tensor.
    pub fn of(n: usize, likeness: &impl Likeness) -> Self {
        if n <= MAX_SINGLES {
            return Self::singles(n);
        }
        let (mut firsts, mut sizes) = (Vec::<u32>::new(), Vec::<u32>::new());
        let mut by_hash: HashMap<u64, u32> = HashMap::new();
        let mut group_of = Vec::<u32>::with_capacity(n);
        for place in 0..n {
            let key = key_of(likeness, place);
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            let next = firsts.len() as u32;
            let found = *by_hash.entry(hasher.finish()).or_insert(next);
            // Names are too long to store one per group, and equal hashes do not prove equal keys.
            let is_known = found < next && key_of(likeness, firsts[found as usize] as usize) == key;
            let group = if is_known { found } else { next };
            if group == next {
                firsts.push(place as u32);
                sizes.push(0);
            }
            sizes[group as usize] += 1;
            group_of.push(group);
        }
        Self::sorted(&group_of, &sizes)
    }

    /// Sorts indices by group, from the group of each index and the sizes of groups.
    fn sorted(group_of: &[u32], sizes: &[u32]) -> Self {
        let starts = sizes.iter().scan(0, |next, size| {
            *next += size;
            Some(*next - size)
        });
        let mut ends: Vec<u32> = starts.collect();
        let mut members = vec![0; group_of.len()];
        for (place, group) in group_of.iter().enumerate() {
            // During the loop, this is the position of the group's next member; at the end, it is the group's
            // end.
            let end = &mut ends[*group as usize];
            members[*end as usize] = place as u32;
            *end += 1;
        }
        Self { members, ends }
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns whether a group has several members.
    pub fn has_several(&self) -> bool {
        self.members.len() > self.ends.len()
    }

    /// Returns the indices of a group's members, at least one, in the order of the model.
    ///
    /// # Panics
    /// There is no group with this number.
    pub fn members(&self, group: usize) -> impl ExactSizeIterator<Item = usize> + Clone + '_ {
        let start = if group == 0 { 0 } else { self.ends[group - 1] };
        self.members[start as usize..self.ends[group] as usize].iter().map(|place| *place as usize)
    }
}

fn key_of(likeness: &impl Likeness, place: usize) -> String {
    let mut key = String::new();
    without_numbers(likeness.name(place), &mut key);
    key.push('\0');
    key + &likeness.traits(place)
}

/// Returns the name of a group: the name of its members, with `*` for numbers that differ.
pub fn label<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let Some(first) = names.next() else { return String::new() };
    let mut parts: Vec<&str> = first.split('.').collect();
    for name in names {
        for (part, other) in parts.iter_mut().zip(name.split('.')) {
            *part = if *part == other { *part } else { "*" };
        }
    }
    parts.join(".")
}

/// Writes `layers.3.up.weight` as `layers.*.up.weight` to `out`.
pub(crate) fn without_numbers<'a>(name: &str, out: &'a mut String) -> &'a str {
    out.clear();
    for (place, part) in name.split('.').enumerate() {
        out.push_str(if place == 0 { "" } else { "." });
        out.push_str(if is_number(part) { "*" } else { part });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and shapes.
    struct Named(Vec<(String, usize)>);

    impl Likeness for Named {
        fn name(&self, place: usize) -> &str {
            &self.0[place].0
        }

        fn traits(&self, place: usize) -> String {
            self.0[place].1.to_string()
        }
    }

    #[test]
    fn similar_layers_are_one_group_without_those_of_another_shape() {
        let mut tensors: Vec<(String, usize)> =
            (0..20).flat_map(|i| ["up", "down"].map(|kind| (format!("layers.{i}.0.{kind}"), 8))).collect();
        tensors[4].1 = 9;
        let named = Named(tensors);
        let groups = TensorGroups::of(40, &named);
        let found: Vec<Vec<usize>> = (0..groups.len()).map(|group| groups.members(group).collect()).collect();
        assert_eq!((found.len(), &found[2]), (3, &vec![4]));
        assert_eq!(found[1], (0..20).map(|i| 2 * i + 1).collect::<Vec<_>>());
        assert_eq!((found[0].len(), found[0].contains(&4)), (19, false));
        assert_eq!(label(groups.members(0).map(|place| named.name(place))), "layers.*.0.up");
        assert_eq!(label(groups.members(2).map(|place| named.name(place))), "layers.2.0.up");
        assert!(groups.has_several() && !TensorGroups::singles(40).has_several());
    }

    #[test]
    fn every_tensor_is_in_one_group_and_few_tensors_are_single() {
        for n in [0, 1, MAX_SINGLES, MAX_SINGLES + 1, 500] {
            let named = Named((0..n).map(|i| (format!("a.{}.b{}", i / 3, i % 3), i % 2)).collect());
            let groups = TensorGroups::of(n, &named);
            let mut all: Vec<usize> = (0..groups.len()).flat_map(|group| groups.members(group)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
            assert_eq!((groups.len() == n, groups.is_empty()), (n <= MAX_SINGLES, n == 0), "{n}");
        }
    }
}
