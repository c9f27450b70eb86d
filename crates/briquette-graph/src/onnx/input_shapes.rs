//! The shapes of a graph's inputs: static extents, given ones, and defaults.

use crate::families::Extents;
use briquette_core::{Error, Result};
use briquette_formats::onnx::{Dim, OnnxGraph, ValueInfo};
use std::collections::{BTreeMap, BTreeSet};

/// The extents of inputs that an ONNX file leaves open.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputDims {
    /// Extents by name, such as `batch`.
    pub named: BTreeMap<String, usize>,
    /// Extents of axes without a given name: the first axis counts items, axes of images after the second are height and width,
    /// and other axes count tokens.
    pub extents: Extents,
    /// Whole shapes of inputs by name, in place of the rules above.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Values of inputs that are single numbers, by name. The branches of an `If` that they choose are then known.
    pub numbers: BTreeMap<String, f64>,
    /// Numbers that the model computes and its graph depends on, such as iterations of loops, in the order of the questions for them
    /// ([`ImportedGraph::question`](super::ImportedGraph::question)). `None`: nothing is asked, and such a loop has one iteration.
    pub answers: Option<Vec<f64>>,
}

/// Returns extents as `[batch, 3, 224, 224]`.
fn shown(dims: &[Dim]) -> String {
    let one = |dim: &Dim| match dim {
        Dim::Extent(extent) => extent.to_string(),
        Dim::Named(name) => name.clone(),
        Dim::Unknown => "?".into(),
    };
    format!("[{}]", dims.iter().map(one).collect::<Vec<_>>().join(", "))
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
        if let Some(shape) = self.shapes.get(&input.name) {
            // A number may be given as a list of one.
            if dims.is_empty() && shape == &[1] {
                return Ok(Vec::new());
            }
            let fits = |(dim, extent): (&Dim, &usize)| !matches!(dim, Dim::Extent(fixed) if fixed != extent);
            if shape.len() != dims.len() || !dims.iter().zip(shape).all(fits) {
                let message = format!("found the shape {shape:?}, expected {}", shown(dims));
                return Err(Error::input(message).at(format_args!("input {:?}", input.name)));
            }
            return Ok(shape.clone());
        }
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
