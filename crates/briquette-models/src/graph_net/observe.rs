//! Passes values of a run to an observer, one after the other.

use super::program::GraphProgram;
use super::{GraphNet, RunInputs, ValueObserver};
use briquette_core::{Error, Result};
use briquette_graph::ValueId;

impl GraphNet {
    /// Runs the network, and passes each of these values to `each` as soon as it is computed.
    ///
    /// Unlike with [`tap`](Self::tap), a value is freed after its last use. Inputs of the graph are passed first.
    ///
    /// # Errors
    /// - Config: the network is an ONNX model, or lacks the layers of a value.
    /// - Errors of `each`.
    ///
    /// # Panics
    /// See [`forward`](Self::forward).
    pub fn observe_values(&self, inputs: &RunInputs, values: &[ValueId], each: &mut ValueObserver) -> Result<()> {
        if let Some(onnx) = &self.outline.onnx {
            return self.observe_onnx_values(onnx, inputs.values(self.graph()), values, each);
        }
        if let Some(value) = values.iter().find(|value| !self.outline.has_layers_of(**value)) {
            let name = &self.graph().values[value.0];
            return Err(Error::config(format!("{name} needs weights of an output that this network does not compute")));
        }
        let given = inputs.values(self.graph());
        for (value, tensor) in given.iter().filter(|(value, _)| values.contains(value)) {
            each(*value, tensor)?;
        }
        let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
        let outline = &self.outline;
        let program =
            GraphProgram::observed(&outline.graph, &outline.shapes, &outline.index, &outline.dropped, [&names, values]);
        self.begin(given, inputs.attention()).finish_observing(&program, values, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph_net::AnyTensor;
    use burn::tensor::{Device, Distribution, Tensor};
    use std::collections::BTreeMap;
    use std::path::Path;

    #[test]
    fn observed_values_are_those_of_a_tap() {
        let device = Device::flex();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/resnet18-tiny.pth");
        let network = GraphNet::from_checkpoint(&path, &device).unwrap();
        let images = Tensor::random([2, 3, 64, 64], Distribution::Uniform(-1.0, 1.0), &device);
        let inputs = RunInputs::images(images);
        let names = ["images", "relu", "layer1.0.relu1", "layer1.0.residual", "layer4.1.relu", "flatten"];
        let ids: Vec<ValueId> = names.map(|name| network.outline.value_named(name).unwrap()).to_vec();
        let mut found = BTreeMap::new();
        let mut each = |id: ValueId, value: &AnyTensor| {
            let is_first = found.insert(id, value.to_f32("a value")?).is_none();
            assert!(is_first, "each value is passed once");
            Ok(())
        };
        network.observe_values(&inputs, &ids, &mut each).unwrap();
        let tapped = network.tap(&inputs, &names).unwrap();
        assert_eq!(found.len(), names.len());
        for (id, value) in ids.iter().zip(tapped) {
            assert_eq!(found[id], value.to_f32("a value").unwrap());
        }
    }
}
