//! Disjoint sets of element ids. Id 0 is the set of fixed elements.

/// Disjoint sets with path halving; the root of a set is its smallest id, so that fixed sets have root 0.
#[derive(Debug)]
pub(crate) struct UnionFind {
    parents: Vec<u32>,
}

/// The id of elements that cannot be removed.
pub(crate) const FIXED: u32 = 0;

impl UnionFind {
    /// Only the fixed id.
    pub(crate) fn new() -> Self {
        Self { parents: vec![FIXED] }
    }

    /// Makes `n` new ids; none where there would be more than 2²⁸.
    pub(crate) fn fresh(&mut self, n: usize) -> Option<Vec<u32>> {
        let first = self.parents.len();
        let end = first.checked_add(n).filter(|&end| end <= 1 << 28)?;
        let ids: Vec<u32> = (first as u32..end as u32).collect();
        self.parents.extend_from_slice(&ids);
        Some(ids)
    }

    /// The smallest id of an element's set.
    pub(crate) fn root(&mut self, mut id: u32) -> u32 {
        while self.parents[id as usize] != id {
            let above = self.parents[self.parents[id as usize] as usize];
            self.parents[id as usize] = above;
            id = above;
        }
        id
    }

    /// Unites the sets of two elements.
    pub(crate) fn unite(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a.max(b) as usize] = a.min(b);
    }

    /// Unites two axes position by position.
    pub(crate) fn unite_all(&mut self, a: &[u32], b: &[u32]) {
        for (&a, &b) in a.iter().zip(b) {
            self.unite(a, b);
        }
    }

    /// Fixes elements.
    pub(crate) fn fix(&mut self, ids: &[u32]) {
        for &id in ids {
            self.unite(id, FIXED);
        }
    }

    /// Whether all elements are fixed.
    pub(crate) fn is_fixed(&mut self, ids: &[u32]) -> bool {
        ids.iter().all(|&id| self.root(id) == FIXED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_united_with_a_fixed_element_is_fixed() {
        let mut sets = UnionFind::new();
        let ids = sets.fresh(4).unwrap();
        sets.unite_all(&ids[..2], &ids[2..]);
        assert_eq!(sets.root(ids[2]), sets.root(ids[0]));
        assert!(!sets.is_fixed(&ids[..1]));
        sets.fix(&ids[2..3]);
        assert!(sets.is_fixed(&ids[..1]) && !sets.is_fixed(&ids[1..2]));
        assert_eq!(sets.fresh(usize::MAX), None);
    }
}
