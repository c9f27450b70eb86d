//! Chooses the units with the smallest scores.

use super::budget::{UnitAmount, UnitBudget};

/// Returns the `n` units with the smallest scores, ascending by index; ties go to the lower index.
pub fn smallest(scores: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    order.truncate(n);
    order.sort_unstable();
    order
}

/// Returns the units to remove from each group, with one threshold for all groups.
///
/// Scores are divided by the mean of their group. The share of a ratio is taken of all units together; each group keeps its floor,
/// and its best removed units where a multiple asks for more. A count removes that many from each group.
pub fn among_groups(groups: &[Vec<f64>], budget: &UnitBudget) -> Vec<Vec<usize>> {
    let UnitAmount::Ratio(ratio) = budget.amount else {
        return groups.iter().map(|scores| smallest(scores, budget.n_removed(scores.len()).unwrap_or(0))).collect();
    };
    let n: usize = groups.iter().map(Vec::len).sum();
    let mut all: Vec<(f64, usize)> = Vec::with_capacity(n);
    for (group, scores) in groups.iter().enumerate() {
        let mean = scores.iter().sum::<f64>() / scores.len().max(1) as f64;
        let mut own = scores.clone();
        own.sort_by(f64::total_cmp);
        own.truncate(budget.most(scores.len()));
        all.extend(own.into_iter().map(|score| (if mean > 0.0 { score / mean } else { 0.0 }, group)));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    all.truncate((n as f64 * ratio).round() as usize);
    let mut counts = vec![0; groups.len()];
    all.iter().for_each(|(_, group)| counts[*group] += 1);
    let chosen = |(scores, n): (&Vec<f64>, usize)| smallest(scores, budget.limited(scores.len(), n));
    groups.iter().zip(counts).map(chosen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(ratio: f64, floor: f64, multiple: usize) -> UnitBudget {
        UnitBudget { amount: UnitAmount::Ratio(ratio), floor, multiple }
    }

    #[test]
    fn the_smallest_go_first_and_ties_to_the_lower_index() {
        assert_eq!(smallest(&[3.0, 1.0, 2.0, 1.0], 2), [1, 3]);
        assert_eq!(smallest(&[1.0, 1.0, 1.0], 2), [0, 1]);
        assert_eq!(smallest(&[], 0), [0; 0]);
    }

    #[test]
    fn one_threshold_takes_more_from_flat_groups_and_respects_floors() {
        // Relative to their means: (0.2, 0.4, 1.6, 1.8) and (0.8, 1.0, 1.0, 1.2).
        let groups = [vec![1.0, 2.0, 8.0, 9.0], vec![80.0, 100.0, 100.0, 120.0]];
        assert_eq!(among_groups(&groups, &budget(0.25, 0.0, 1)), [vec![0, 1], vec![]]);
        assert_eq!(among_groups(&groups, &budget(0.5, 0.0, 1)), [vec![0, 1], vec![0, 1]]);
        assert_eq!(among_groups(&groups, &budget(0.5, 0.75, 1)), [vec![0], vec![0]]);
        assert_eq!(among_groups(&groups, &budget(0.99, 0.0, 1)), [vec![0, 1, 2], vec![0, 1, 2]]);
        assert_eq!(among_groups(&groups, &budget(0.4, 0.0, 4)), [vec![0; 0], vec![]]);
        let two = UnitBudget { amount: UnitAmount::Count(2), ..budget(0.0, 0.0, 1) };
        assert_eq!(among_groups(&groups, &two), [vec![0, 1], vec![0, 1]]);
    }
}
