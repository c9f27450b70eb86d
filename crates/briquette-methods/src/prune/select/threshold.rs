//! The threshold between dropped and kept scores.

/// A threshold: drops all scores below `key`, and the first `n_ties` scores equal to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Threshold {
    /// The magnitude bits of the score at the threshold.
    pub key: u32,
    /// The number of scores equal to `key` that are dropped, in index order.
    pub n_ties: usize,
}

impl Threshold {
    /// Divides the ties of a shared threshold among its members, which have `equal` scores at the threshold each.
    ///
    /// Earlier members drop their ties first. Each result holds for one member, so members can be decided
    /// independently.
    pub fn shares(self, equal: impl Iterator<Item = usize>) -> impl Iterator<Item = Self> {
        equal.scan(self.n_ties, move |left, equal| {
            let n_ties = equal.min(*left);
            *left -= n_ties;
            Some(Self { n_ties, ..self })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_members_drop_their_ties_first() {
        let shares = Threshold { key: 9, n_ties: 5 }.shares([2, 0, 4, 3].into_iter());
        assert_eq!(shares.map(|share| (share.key, share.n_ties)).collect::<Vec<_>>(), [(9, 2), (9, 0), (9, 3), (9, 0)]);
    }
}
