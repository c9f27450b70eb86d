//! The shapes of a graph's inputs: static extents, given ones, and defaults.

use crate::families::Extents;
use briquette_core::{Error, Result};
use briquette_formats::onnx::{Dim, OnnxGraph, ValueInfo};
use std::collections::{BTreeMap, BTreeSet};

/// The extents of inputs that an ONNX file leaves open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputDims {
    /// Extents by name, such as `batch`.
    pub named: BTreeMap<String, usize>,
    /// Extents of axes without a given name: the first axis counts items, axes of images after the second are height and width,
    /// and other axes count tokens.
    pub extents: Extents,
}

impl From<Extents> for InputDims {
    fn from(extents: Extents) -> Self {
        Self { extents, ..Self::default() }
    }
}

impl InputDims {
    /// Returns the shape of an input.
    ///
    /// # Errors
    /// Input: the rank is not known, or the input is no tensor.
    pub(super) fn shape(&self, input: &ValueInfo) -> Result<Vec<usize>> {
        let Some(dims) = &input.shape else {
            let message = "has no known rank; export the model with shapes of its inputs";
            return Err(Error::input(message).at(format_args!("input {:?}", input.name)));
        };
        let extent = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Extent(extent) => *extent,
            Dim::Named(name) => self.named.get(name).copied().unwrap_or_else(|| self.usual(axis, dims.len())),
            Dim::Unknown => self.usual(axis, dims.len()),
        };
        Ok(dims.iter().enumerate().map(extent).collect())
    }

    fn usual(&self, axis: usize, rank: usize) -> usize {
        let Extents { batch, tokens, image } = self.extents;
        match (rank, axis) {
            (_, 0) => batch,
            (4, 1) => 3,
            (4, axis) => image.get(axis - 2).copied().unwrap_or(1),
            _ => tokens,
        }
    }

    /// Refuses a name that no input has.
    ///
    /// # Errors
    /// Config: see above. The error lists the names.
    pub(super) fn check(&self, graph: &OnnxGraph) -> Result<()> {
        let dims = graph.inputs.iter().filter_map(|input| input.shape.as_ref()).flatten();
        let names: BTreeSet<&str> =
            dims.filter_map(|dim| if let Dim::Named(name) = dim { Some(name.as_str()) } else { None }).collect();
        let Some(other) = self.named.keys().find(|name| !names.contains(name.as_str())) else { return Ok(()) };
        let known: Vec<&str> = names.into_iter().collect();
        let known = if known.is_empty() { "static extents only".to_string() } else { known.join(", ") };
        Err(Error::config(format!("--dim {other}: no input has an extent of this name; the inputs have {known}")))
    }
}
