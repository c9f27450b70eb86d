//! OWL: the sparsity of each block from the outliers of its weights.

use super::inputs::layers_of_original;
use super::job::{layer_of, stats_of};
use super::one::rows_of;
use briquette_core::{InputStats, InputView, Result, Rows};
use briquette_formats::Checkpoint;
use briquette_methods::prune::SparsityPattern;
use briquette_methods::prune::budget::{outlier_ratio, owl};
use briquette_methods::prune::score::WeightSlice;
use briquette_recipe::Recipe;
use briquette_writer::context::Workers;
use briquette_writer::{Cut, Plan};
use std::collections::BTreeMap;
use std::path::Path;

/// The threshold of outliers, as a multiple of the block's mean score.
const TIMES_MEAN: f64 = 5.0;
/// Half of the maximum difference between the sparsities of blocks.
const LAMBDA: f64 = 0.08;

/// Sets the open sparsities of a plan by OWL, from the layer inputs of the original model.
///
/// # Errors
/// Input: the inputs of a layer are unknown. Input and Io: a tensor cannot be read.
pub(crate) fn shares(
    recipe: &Recipe,
    plan: &mut Plan,
    checkpoint: &Checkpoint,
    scratch: Option<&Path>,
    workers: &Workers,
) -> Result<()> {
    if plan.outlier_pools.is_empty() {
        return Ok(());
    }
    let layers = layers_of_original(recipe, checkpoint, scratch)?;
    for pool in std::mem::take(&mut plan.outlier_pools) {
        let mut blocks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        // A tensor that did not run has no outliers: it keeps the pool's sparsity from the plan.
        let is_known = |index: &&usize| {
            let tensor = &plan.tensors[**index];
            tensor.tied_to().is_none() && layers.contains_key(layer_of(&tensor.info.name))
        };
        for &index in pool.tensors.iter().filter(is_known) {
            blocks.entry(block_of(&plan.tensors[index].info.name)).or_default().push(index);
        }
        let blocks: Vec<Vec<usize>> = blocks.into_values().collect();
        let outliers =
            workers.map(&blocks, || (), |(), block| outliers_of(plan, block, checkpoint, &layers, workers))?;
        let n_elements = |block: &Vec<usize>| block.iter().map(|&index| plan.tensors[index].info.n_elements()).sum();
        let sizes: Vec<usize> = blocks.iter().map(n_elements).collect();
        for (block, share) in blocks.iter().zip(owl(&outliers, &sizes, pool.ratio, LAMBDA)) {
            for &index in block {
                let tensor = &mut plan.tensors[index];
                let Rows { n_rows, n_cols, .. } = tensor.output_rows;
                if let Some(prune) = &mut tensor.prune {
                    let pattern = match prune.cut {
                        Cut::Pattern(SparsityPattern::PerRow(_)) => SparsityPattern::PerRow(share),
                        _ => SparsityPattern::Unstructured(share),
                    };
                    prune.cut = Cut::Pattern(pattern.of(n_rows, n_cols));
                }
            }
        }
    }
    Ok(())
}

/// Returns the block of a tensor: its name up to the first number, or the layer name if there is none.
fn block_of(name: &str) -> &str {
    let mut end = 0;
    for segment in name.split('.') {
        end += segment.len() + 1;
        if !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end - 1];
        }
    }
    layer_of(name)
}

/// Returns the share of outliers among the weights of a block.
fn outliers_of(
    plan: &Plan,
    block: &[usize],
    checkpoint: &Checkpoint,
    layers: &BTreeMap<String, InputStats>,
    workers: &Workers,
) -> Result<f64> {
    let read = |&index: &usize| -> Result<(Vec<f32>, InputView, Rows)> {
        let tensor = &plan.tensors[index];
        Ok((rows_of(tensor, checkpoint, workers.stop())?, stats_of(tensor, layers, false)?.view(), tensor.rows()))
    };
    let tensors = block.iter().map(read).collect::<Result<Vec<_>>>()?;
    let slices: Vec<WeightSlice> = tensors
        .iter()
        .map(|(values, view, Rows { n_rows, n_cols, .. })| WeightSlice {
            values,
            first: 0,
            n_rows: *n_rows,
            n_cols: *n_cols,
            inputs: Some(view),
        })
        .collect();
    Ok(outlier_ratio(&slices, TIMES_MEAN))
}

#[cfg(test)]
mod tests {
    use super::block_of;

    #[test]
    fn a_block_is_the_name_up_to_its_number() {
        assert_eq!(block_of("model.layers.12.mlp.up_proj.weight"), "model.layers.12");
        assert_eq!(block_of("encoder.layer.0.output.dense.weight"), "encoder.layer.0");
        assert_eq!(block_of("lm_head.weight"), "lm_head");
        assert_eq!(block_of("conv1.weight"), "conv1");
    }
}
