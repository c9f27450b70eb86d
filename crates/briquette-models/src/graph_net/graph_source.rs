//! The source of the graphs of a family: its headers and config.json.

use briquette_core::Result;
use briquette_graph::{Config, Extents, Family, Graph, GraphHeaders};

/// A family with the headers and the config.json of a model.
#[derive(Debug)]
pub(super) struct GraphSource {
    pub(super) family: &'static Family,
    pub(super) headers: GraphHeaders<'static>,
    pub(super) config: Config,
}

impl GraphSource {
    /// Builds the graph of a batch of these extents.
    ///
    /// # Errors
    /// See [`Family::graph`].
    pub(super) fn graph(&self, extents: Extents) -> Result<Graph> {
        self.family.graph(&self.headers.headers(), &self.config, extents)
    }
}
