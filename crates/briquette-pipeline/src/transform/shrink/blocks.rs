//! The blocks that a shrink stage drops: given ones, or those with the least influence.

use briquette_core::{Error, Result};
use briquette_formats::input_stats::StatisticsFile;
use briquette_recipe::ShrinkStage;

/// Returns the blocks to drop of a network with `n_blocks`, in their order.
///
/// # Errors
/// - Config: as many blocks as the network has, or more.
/// - Input: the statistics have no influence of blocks, or of another number of them.
/// - Io: the file of statistics cannot be read.
pub(super) fn dropped(stage: &ShrinkStage, n_blocks: usize) -> Result<Vec<usize>> {
    let Some((n, path)) = stage.drop_n_blocks.zip(stage.statistics.as_ref()) else {
        return Ok(stage.drop_blocks.clone());
    };
    if n >= n_blocks {
        let message = format!("found {n}, expected fewer than the {n_blocks} blocks of the network");
        return Err(Error::config(message).at("drop_n_blocks"));
    }
    let influence = StatisticsFile::read_block_influence(path)?;
    if influence.len() != n_blocks {
        let found = influence.len();
        let message = format!(
            "found the influence of {found} blocks, expected that of {n_blocks}; gather it again with `briquette calibrate`, \
             or name the blocks in drop_blocks"
        );
        return Err(Error::input(message).at(path.display()));
    }
    Ok(least(&influence, n))
}

/// Returns the places of the `n` smallest numbers, in order. Among equal ones, the later are taken.
fn least(influence: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..influence.len()).rev().collect();
    order.sort_by(|&a, &b| influence[a].total_cmp(&influence[b]));
    order.truncate(n);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::least;

    #[test]
    fn blocks_with_the_least_influence_are_dropped() {
        assert_eq!(least(&[0.5, 0.1, 0.3, 0.1, 0.2], 3), [1, 3, 4]);
        assert_eq!(least(&[0.1, 0.1, 0.1], 1), [2]);
    }
}
