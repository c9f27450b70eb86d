//! Encodes a model as protobuf messages.

use super::message::{HoleContents, WireMessage};
use super::model::{CarriedModel, OnnxAttribute, OnnxData, OnnxDim, OnnxModel, OnnxNode, OnnxTensor, OnnxValue};
use briquette_core::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The key of the metadata with the SHA-256 of each streamed tensor, as JSON.
pub(super) const HASHES: &str = "briquette.sha256";

/// Where the bytes of a tensor are in the second file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExternalPlace {
    pub(super) offset: u64,
    pub(super) n_bytes: u64,
}

/// Encodes a model. `places` has the places of tensors in the file `data_file`; other tensors are in the message.
pub(super) fn encode(
    model: &OnnxModel,
    places: &[Option<ExternalPlace>],
    data_file: &str,
    n_hash_bytes: u64,
) -> Result<WireMessage> {
    let mut graph = WireMessage::default();
    model.nodes.iter().for_each(|node| graph.message(1, &of_node(node)));
    let (mut message, carried) = (WireMessage::default(), model.carried.clone().unwrap_or_default());
    graph.text(2, &model.name);
    for (index, tensor) in model.tensors.iter().enumerate() {
        match &tensor.data {
            OnnxData::Encoded(bytes) => graph.text(5, bytes),
            _ => graph.message(5, &of_tensor(index, tensor, places[index], data_file)?),
        }
    }
    model.inputs.iter().for_each(|input| graph.message(11, &of_value(input)));
    model.outputs.iter().for_each(|output| graph.message(12, &of_value(output)));
    values_of(model, &carried).for_each(|bytes| graph.text(13, bytes));
    graph.bytes.extend(&carried.graph_fields);

    message.int(1, ir_version(model.opset).max(carried.ir_version));
    if model.carried.is_none() {
        message.text(2, "briquette");
        message.text(3, env!("CARGO_PKG_VERSION"));
    }
    message.bytes.extend(&carried.fields);
    message.message(7, &graph);
    let mut domains: BTreeMap<&str, i64> =
        carried.domains.iter().map(|(domain, version)| (domain.as_str(), *version)).collect();
    domains.insert("", model.opset);
    if model.nodes.iter().any(|node| node.domain == "com.microsoft") {
        domains.entry("com.microsoft").or_insert(1);
    }
    for (domain, version) in domains {
        let mut import = WireMessage::default();
        import.text(1, domain);
        import.int(2, version);
        message.message(8, &import);
    }
    model.metadata.iter().for_each(|(key, value)| message.message(14, &of_pair(key, value)));
    if n_hash_bytes > 0 {
        let mut hashes = WireMessage::default();
        hashes.text(1, HASHES);
        hashes.hole(2, HoleContents::Hashes, n_hash_bytes);
        message.message(14, &hashes);
    }
    Ok(message)
}

/// Encodes a model without the elements of its streamed tensors: a network for [`crate::onnx::NETWORK_FILE`].
///
/// # Errors
/// Input: a tensor has more bytes than a file can have.
pub fn encode_network(model: &OnnxModel) -> Result<Vec<u8>> {
    let mut model = model.clone();
    for tensor in &mut model.tensors {
        if matches!(tensor.data, OnnxData::Streamed(_)) {
            let mut message = WireMessage::default();
            tensor.shape.iter().for_each(|extent| message.int(1, *extent as i64));
            message.int(2, tensor.dtype.number());
            message.text(8, &tensor.name);
            tensor.data = OnnxData::Encoded(message.bytes);
        }
    }
    let places = vec![None; model.tensors.len()];
    Ok(encode(&model, &places, "", 0)?.bytes)
}

/// The types and shapes of values of a file that the model still computes.
fn values_of<'a>(model: &'a OnnxModel, carried: &'a CarriedModel) -> impl Iterator<Item = &'a Vec<u8>> {
    let computed: BTreeSet<&String> = model.nodes.iter().flat_map(|node| &node.outputs).collect();
    carried.values.iter().filter(move |(name, _)| computed.contains(name)).map(|(_, bytes)| bytes)
}

/// Returns the oldest version of the format that knows these operators.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=14 => 7,
        15..=18 => 8,
        19..=20 => 9,
        _ => 10,
    }
}

fn of_node(node: &OnnxNode) -> WireMessage {
    let mut message = WireMessage::default();
    node.inputs.iter().for_each(|input| message.text(1, input));
    node.outputs.iter().for_each(|output| message.text(2, output));
    if let Some(carried) = &node.carried {
        message.bytes.extend(&carried.before);
        carried.attributes.iter().for_each(|(_, bytes)| message.text(5, bytes));
        message.bytes.extend(&carried.after);
        return message;
    }
    message.text(3, &node.name);
    message.text(4, &*node.op);
    node.attributes.iter().for_each(|(name, value)| message.message(5, &of_attribute(name, value)));
    if !node.domain.is_empty() {
        message.text(7, &*node.domain);
    }
    message
}

pub(super) fn of_attribute(name: &str, value: &OnnxAttribute) -> WireMessage {
    let mut message = WireMessage::default();
    message.text(1, name);
    let kind = match value {
        OnnxAttribute::Float(value) => {
            message.float(2, *value);
            1
        }
        OnnxAttribute::Int(value) => {
            message.int(3, *value);
            2
        }
        OnnxAttribute::Text(value) => {
            message.text(4, &**value);
            3
        }
        OnnxAttribute::Ints(values) => {
            values.iter().for_each(|value| message.int(8, *value));
            7
        }
        // Only nodes of a file have it, and they have its message.
        OnnxAttribute::Elements(_) => 0,
    };
    message.int(20, kind);
    message
}

fn of_value(value: &OnnxValue) -> WireMessage {
    if let Some(bytes) = &value.encoded {
        return WireMessage { bytes: bytes.clone(), holes: Vec::new() };
    }
    let mut shape = WireMessage::default();
    for dim in &value.shape {
        let mut extent = WireMessage::default();
        match dim {
            OnnxDim::Fixed(n) => extent.int(1, *n as i64),
            OnnxDim::Named(name) => extent.text(2, name),
        }
        shape.message(1, &extent);
    }
    let (mut tensor, mut kind, mut message) = (WireMessage::default(), WireMessage::default(), WireMessage::default());
    tensor.int(1, value.dtype.number());
    tensor.message(2, &shape);
    kind.message(1, &tensor);
    message.text(1, &value.name);
    message.message(2, &kind);
    message
}

fn of_tensor(index: usize, tensor: &OnnxTensor, place: Option<ExternalPlace>, data_file: &str) -> Result<WireMessage> {
    let mut message = WireMessage::default();
    tensor.shape.iter().for_each(|extent| message.int(1, *extent as i64));
    message.int(2, tensor.dtype.number());
    message.text(8, &tensor.name);
    match (place, &tensor.data) {
        (Some(ExternalPlace { offset, n_bytes }), _) => {
            message.message(13, &of_pair("location", data_file));
            message.message(13, &of_pair("offset", &offset.to_string()));
            message.message(13, &of_pair("length", &n_bytes.to_string()));
            message.int(14, 1);
        }
        (None, OnnxData::Inline(bytes) | OnnxData::Encoded(bytes)) => message.text(9, bytes),
        (None, OnnxData::Streamed(_)) => message.hole(9, HoleContents::Tensor(index), tensor.n_bytes()?),
    }
    Ok(message)
}

fn of_pair(key: &str, value: &str) -> WireMessage {
    let mut message = WireMessage::default();
    message.text(1, key);
    message.text(2, value);
    message
}
