//! Layers under the paths that a checkpoint gives them.

use super::layer::GraphLayer;
use burn::module::{Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;

/// Layers with their paths, such as `encoder.layer.0.output.dense`.
///
/// Visitors see every segment of a path as a field, so parameters have the names of the checkpoint.
#[derive(Debug, Clone, Default)]
pub(super) struct NamedLayers(pub(super) Vec<(String, GraphLayer)>);

/// The name of the struct that visitors see around layers.
pub(super) const CONTAINER: &str = briquette_nn::module::NAMED_LAYERS;

impl NamedLayers {
    fn each(self, mut map: impl FnMut(GraphLayer) -> GraphLayer) -> Self {
        Self(self.0.into_iter().map(|(path, layer)| (path, map(layer))).collect())
    }
}

impl Module for NamedLayers {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.0.iter().fold(devices, |devices, (_, layer)| layer.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|layer| layer.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(|layer| layer.to_device(device))
    }

    fn train(self) -> Self {
        self.each(Module::train)
    }

    fn valid(&self) -> Self {
        Self(self.0.iter().map(|(path, layer)| (path.clone(), layer.valid())).collect())
    }

    fn materialize(self) -> Self {
        self.each(Module::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for (path, layer) in &self.0 {
            path.split('.').for_each(|name| visitor.enter_module(name, CONTAINER));
            layer.visit(visitor);
            path.rsplit('.').for_each(|name| visitor.exit_module(name, CONTAINER));
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let one = |(path, layer): (String, GraphLayer)| {
            path.split('.').for_each(|name| mapper.enter_module(name, CONTAINER));
            let layer = layer.map(mapper);
            path.rsplit('.').for_each(|name| mapper.exit_module(name, CONTAINER));
            (path, layer)
        };
        Self(self.0.into_iter().map(one).collect())
    }
}
