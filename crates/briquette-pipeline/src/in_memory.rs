//! Applies a recipe to a burn module in memory.

use briquette_core::{InputStats, Result};
use briquette_nn::{CompressionReport, NameMap, compress_by};
use briquette_recipe::Recipe;
use briquette_recipe::plan::in_memory::{InMemory, plan_in_memory};
use burn::module::Module;
use std::collections::BTreeMap;

/// Names and statistics of a module.
#[derive(Debug, Clone)]
pub struct AboutModule {
    /// The names and layouts of its parameters in files, which the recipe's patterns match.
    pub names: NameMap,
    /// Input statistics of layers, by their paths in those names, for stages whose score needs them.
    ///
    /// They come from a [`Probe`](briquette_nn::Probe).
    pub inputs: BTreeMap<String, InputStats>,
}

impl Default for AboutModule {
    /// Returns PyTorch's names and layouts, without statistics.
    fn default() -> Self {
        Self { names: NameMap::torch(), inputs: BTreeMap::new() }
    }
}

/// Prunes and quantizes a burn module as a recipe says, in memory.
///
/// The returned module computes with pruned and fake-quantized weights. Masks and grids stay attached: further
/// training keeps zeros at zero and weights on their grids. [`Export`](briquette_nn::Export) writes codes and
/// masks, of the size in the report, and `materialize` returns an ordinary float module.
///
/// The result equals that of `run` on an exported module, because the same functions decide. Roles come from
/// the recipe's `roles`, then from burn's own layers. Patterns match the names that a file would have. A
/// dynamic scheme quantizes activations only if a module runs on codes, as after
/// [`load_compressed`](briquette_nn::load_compressed); here they stay floats.
///
/// # Errors
/// - Config: the recipe has no stages or a stage other than prune and quantize, or patterns, groups, N:M or
///   statistics do not match.
/// - Refused: weights are not finite, or a parameter already has an attachment.
/// - Io: a device fails.
///
/// An error drops the module: clone it first, which copies nothing, to keep it.
pub fn compress<M: Module>(module: M, recipe: &Recipe) -> Result<(M, CompressionReport)> {
    compress_as(module, recipe, &AboutModule::default())
}

/// Implements [`compress`] for a module with other names, or with input statistics.
///
/// # Errors
/// See [`compress`].
pub fn compress_as<M: Module>(module: M, recipe: &Recipe, about: &AboutModule) -> Result<(M, CompressionReport)> {
    compress_by(module, &about.names, |tensors| {
        let (source, layout, inputs) = (tensors.source, tensors.layout, &about.inputs);
        plan_in_memory(recipe, source, &InMemory { layout, shown: &tensors.shown, inputs })
    })
}
