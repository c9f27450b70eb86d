//! How many units of a group are removed.

/// The number of units to remove from each group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UnitAmount {
    /// A share of the units, rounded to the nearest number.
    Ratio(f64),
    /// This many units.
    Count(usize),
}

/// The amount to remove, and limits of what is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnitBudget {
    /// The amount to remove.
    pub amount: UnitAmount,
    /// The smallest share of the units that is left.
    pub floor: f64,
    /// The number of units that are left is rounded up to a multiple of this, at most to all units.
    pub multiple: usize,
}

impl UnitBudget {
    /// Returns the number of units to remove from a group of `n`.
    ///
    /// At least one unit is left. A count of `n` or more returns none.
    pub fn n_removed(&self, n: usize) -> Option<usize> {
        let n_removed = match self.amount {
            UnitAmount::Count(count) if count >= n => return None,
            UnitAmount::Count(count) => count,
            UnitAmount::Ratio(ratio) => (n as f64 * ratio).round() as usize,
        };
        Some(self.limited(n, n_removed))
    }

    /// Returns the largest number of units that may be removed from a group of `n`.
    pub fn most(&self, n: usize) -> usize {
        n.saturating_sub(((n as f64 * self.floor).ceil() as usize).max(1))
    }

    /// Returns a number of removed units within the floor, so that a multiple is left.
    pub fn limited(&self, n: usize, n_removed: usize) -> usize {
        let left = n - n_removed.min(self.most(n));
        n - left.next_multiple_of(self.multiple.max(1)).min(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_and_multiples_leave_more() {
        let budget = |amount, floor, multiple| UnitBudget { amount, floor, multiple };
        let ratio = |ratio, floor, multiple, n| budget(UnitAmount::Ratio(ratio), floor, multiple).n_removed(n);
        assert_eq!(ratio(0.25, 0.0, 1, 1536), Some(384));
        assert_eq!(ratio(0.25, 0.0, 1, 10), Some(3), "2.5 is rounded up");
        assert_eq!(ratio(0.25, 0.0, 8, 30), Some(6), "22 left become 24");
        assert_eq!(ratio(0.25, 0.0, 64, 30), Some(0), "there is no multiple");
        assert_eq!(ratio(0.9, 0.5, 1, 12), Some(6));
        assert_eq!(ratio(0.99, 0.0, 1, 2), Some(1), "one is left");
        assert_eq!(ratio(0.0, 0.0, 1, 7), Some(0));
        let count = |count, n| budget(UnitAmount::Count(count), 0.0, 1).n_removed(n);
        assert_eq!((count(3, 12), count(12, 12), count(13, 12)), (Some(3), None, None));
    }
}
