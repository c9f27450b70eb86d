//! Mixtures of experts whose tensors are stored one by one: Mixtral and Qwen3-MoE.

use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Operand, ValueId};
use crate::op::{Composite, ElementFunction, Routing};
use briquette_core::{Error, Result};

/// The router and the matrices of each expert, below a layer.
struct Paths {
    block: &'static str,
    /// Gate, up and down.
    matrices: [&'static str; 3],
}

const MIXTRAL: Paths = Paths { block: "block_sparse_moe", matrices: ["w1", "w3", "w2"] };
const QWEN: Paths = Paths { block: "mlp", matrices: ["gate_proj", "up_proj", "down_proj"] };

/// Adds a router and its experts; none if the layer has no experts.
pub(super) fn experts(
    to: &mut GraphBuilder,
    config: &Config,
    layer: &str,
    function: ElementFunction,
    x: ValueId,
) -> Result<Option<ValueId>> {
    let has = |paths: &&Paths| to.headers().has_prefix(&format!("{layer}.{}.experts.0.", paths.block));
    let Some(Paths { block, matrices }) = [&MIXTRAL, &QWEN].into_iter().find(has) else { return Ok(None) };
    let path = format!("{layer}.{block}");
    let n = to.headers().count(&format!("{path}.experts."));
    let top_k = config.needed("num_experts_per_tok")?;
    if top_k > n {
        let message = format!("num_experts_per_tok is {top_k}, but {path} has {n} experts; correct it");
        return Err(Error::input(message).at("config.json"));
    }
    // Mixtral always divides the shares of the chosen experts by their sum.
    let is_normalized = *block == MIXTRAL.block || config.flag("norm_topk_prob") == Some(true);
    let logits = to.linear(&format!("{path}.gate"), x)?;
    let mut inputs: Vec<Operand> = vec![x.into(), logits.into()];
    for expert in 0..n {
        for matrix in matrices {
            inputs.push(to.weight(&format!("{path}.experts.{expert}.{matrix}.weight"))?.into());
        }
    }
    let op = Composite::SeparateExperts { routing: Routing { top_k, is_normalized }, function };
    Ok(Some(to.node(&format!("{path}.experts"), op, &inputs)))
}
