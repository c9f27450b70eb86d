//! A recipe applied to a burn module, without a file.

use briquette_core::{InputStats, Result};
use briquette_nn::{CompressionReport, NameMap, compress_by};
use briquette_recipe::Recipe;
use briquette_recipe::plan::in_memory::{InMemory, plan_in_memory};
use burn::module::Module;
use std::collections::BTreeMap;

/// What is known of a module beside its weights.
#[derive(Debug, Clone)]
pub struct AboutModule {
    /// The names and layouts of its parameters in files, which the recipe's patterns are about.
    pub names: NameMap,
    /// Statistics of the inputs of layers, by their paths in those names, where a stage scores by them: those of a
    /// [`Probe`](briquette_nn::Probe).
    pub inputs: BTreeMap<String, InputStats>,
}

impl Default for AboutModule {
    /// PyTorch's names and layouts, and no statistics.
    fn default() -> Self {
        Self { names: NameMap::torch(), inputs: BTreeMap::new() }
    }
}

/// Prunes and quantizes a burn module as a recipe says, without touching the disk.
///
/// What it gives computes with pruned and rounded weights. They are attached: training on keeps zeros at zero and weights on their
/// grids, [`Export`](briquette_nn::Export) writes codes and masks, of the bytes that the report says, and `materialize` makes an
/// ordinary module of floats. Decisions are those of `run` on an exported module, made by the same functions; what a tensor is, burn's
/// own layers show, and the recipe's `roles` before them. Patterns match the names that a file would have. A dynamic scheme rounds
/// activations where a module runs on codes, as after [`load_compressed`](briquette_nn::load_compressed); here they stay floats.
///
/// # Errors
/// Config for a recipe without stages, for a stage other than prune and quantize, and for patterns, groups, N:M and statistics that do not fit; Refused for weights
/// that are not finite, and where something is attached to a parameter already; Io where a device fails. The module is gone with an
/// error: clone it before, which copies nothing, to keep it.
pub fn compress<M: Module>(module: M, recipe: &Recipe) -> Result<(M, CompressionReport)> {
    compress_as(module, recipe, &AboutModule::default())
}

/// As [`compress`], of a module with other names, or with statistics of inputs.
///
/// # Errors
/// As [`compress`].
pub fn compress_as<M: Module>(module: M, recipe: &Recipe, about: &AboutModule) -> Result<(M, CompressionReport)> {
    compress_by(module, &about.names, |tensors| {
        let (source, layout, inputs) = (tensors.source, tensors.layout, &about.inputs);
        plan_in_memory(recipe, source, &InMemory { layout, shown: &tensors.shown, inputs })
    })
}
