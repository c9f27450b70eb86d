//! The network of an ONNX model with smaller tensors.

use briquette_core::{Error, Result};
use briquette_formats::draft::ScratchFile;
use briquette_formats::onnx::{MAX_NETWORK_BYTES, StreamedWeight, carried_model};
use briquette_formats::onnx_write::encode_network;
use briquette_formats::{InputFile, TensorInfo};
use briquette_graph::onnx::{InputDims, import};
use briquette_graph::op::{Op, Primitive};
use briquette_graph::to_onnx::with_extents;
use briquette_graph::{Extents, Graph, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Returns the graph of a network.
///
/// # Errors
/// See [`import`].
pub(super) fn graph_of(network: &[u8]) -> Result<Graph> {
    import(&opened(network)?, &InputDims::default())
}

/// Returns the graph of a network for other inputs.
///
/// # Errors
/// See [`import`].
pub(super) fn other_graph_of(network: &[u8]) -> Result<Graph> {
    import(&opened(network)?, &Extents::EXAMPLE.into())
}

/// Returns the first operator without a rule that another graph has a rule for.
pub(super) fn first_unknown<'a>(graph: &'a Graph, other: &Graph) -> Option<&'a str> {
    fn names(graph: &Graph) -> impl Iterator<Item = &str> {
        let is_unknown = |node: &&Node| matches!(node.op, Op::Primitive(Primitive::Unknown { .. }));
        graph.nodes.iter().filter(is_unknown).map(|node| node.name.as_str())
    }
    let known: BTreeSet<&str> = names(other).collect();
    names(graph).find(|name| !known.contains(name))
}

/// Returns a network with the tensors `after` and the extents of the graph `smaller`.
///
/// `before` are its tensors, and `graph` its graph. `other` as in [`with_extents`]. The caller compares the graph of the result with `smaller`.
///
/// # Errors
/// - Config: a tensor has a type that is not written.
/// - Io: a temporary file cannot be written.
pub(super) fn with_tensors(
    network: &[u8],
    [graph, smaller]: [&Graph; 2],
    [before, after]: [&[TensorInfo]; 2],
    other: Option<&Graph>,
) -> Result<Vec<u8>> {
    let is_changed = |(old, new): &(&TensorInfo, &TensorInfo)| old.shape != new.shape;
    let mut weights: BTreeMap<String, StreamedWeight> = BTreeMap::new();
    for (index, (_, info)) in before.iter().zip(after).filter(is_changed).enumerate() {
        weights.insert(info.name.to_string(), (index, (*info.shape).clone()));
    }
    let mut model = carried_model(&opened(network)?, &weights)?;
    // The file may declare shapes that values no longer have.
    if let Some(carried) = &mut model.carried {
        carried.values.clear();
    }
    with_extents(&mut model, [graph, smaller], other)?;
    let found = encode_network(&model)?;
    match found.len() as u64 > MAX_NETWORK_BYTES {
        true => Err(Error::input("the network is too large")),
        false => Ok(found),
    }
}

/// Opens the bytes of a network as a file.
fn opened(network: &[u8]) -> Result<InputFile> {
    let file = ScratchFile::create_in(&std::env::temp_dir())?;
    file.write_at(network, 0)?;
    file.into_input(Path::new("network.onnx"))
}
