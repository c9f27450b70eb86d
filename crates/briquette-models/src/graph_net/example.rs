//! The example that graphs are built for.

use briquette_core::Result;
use briquette_graph::{Config, Extents, Family, Headers, InputSource};

/// The example that programs are planned for.
pub(super) const EXAMPLE: Extents = Extents::EXAMPLE;

/// Returns the longest text, or the longest target of an encoder-decoder: an example with more tokens is cut to it.
pub(super) fn max_tokens(family: &Family, headers: &Headers, config: &Config) -> Result<Option<usize>> {
    const MANY: usize = 1 << 20;
    let graph = family.graph(headers, config, Extents { batch: 1, tokens: MANY, ..EXAMPLE })?;
    // The target of an encoder-decoder has a limit of its own.
    let ids = |source| graph.inputs.iter().find(|input| input.source == source);
    let ids = ids(InputSource::TargetIds).or_else(|| ids(InputSource::TokenIds));
    Ok(ids.and_then(|ids| ids.shape.get(1).copied()).filter(|tokens| *tokens < MANY))
}
