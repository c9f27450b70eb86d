//! Adapts any module with a closure instead of a trait.

use crate::{Outputs, Traced, Wanted};
use burn::module::{Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;
use std::fmt;
use std::sync::Arc;

/// A user's module with a closure that returns its outputs. It is a student or teacher without a trait
/// implementation.
///
/// Visitors see only the module: the paths of parameters, records, masks and exports are those of `network`.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use briquette_distill::{Foreign, Outputs, Traced, Wanted};
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// let network = LinearConfig::new(4, 3).init(&Device::flex());
/// let student = Foreign::new(network, |net: &Linear, x: &Tensor<2>| Outputs::of_logits(net.forward(x.clone())));
/// let outputs = student.outputs(&Tensor::ones([2, 4], &Device::flex()), Wanted::default());
/// assert_eq!(outputs.logits.unwrap().dims(), [2, 3]);
/// assert_eq!(student.network.num_params(), student.num_params());
/// # }
/// ```
pub struct Foreign<N, I> {
    /// The module.
    pub network: N,
    forward: Arc<Forward<N, I>>,
}

/// The outputs of a network for an input.
type Forward<N, I> = dyn Fn(&N, &I) -> Outputs + Send + Sync;

impl<N, I> Foreign<N, I> {
    /// Wraps a module and its outputs. They are on the autodiff device during training, and on the inner device
    /// during evaluation.
    pub fn new(network: N, forward: impl Fn(&N, &I) -> Outputs + Send + Sync + 'static) -> Self {
        Self { network, forward: Arc::new(forward) }
    }

    fn with(&self, network: N) -> Self {
        Self { network, forward: self.forward.clone() }
    }

    fn map_network(self, map: impl FnOnce(N) -> N) -> Self {
        Self { network: map(self.network), forward: self.forward }
    }
}

impl<N: Module + ModuleDisplay, I: Clone> Traced for Foreign<N, I> {
    type Input = I;

    fn outputs(&self, input: &I, _wanted: Wanted) -> Outputs {
        (self.forward)(&self.network, input)
    }
}

impl<N: Clone, I> Clone for Foreign<N, I> {
    fn clone(&self) -> Self {
        self.with(self.network.clone())
    }
}

impl<N: fmt::Debug, I> fmt::Debug for Foreign<N, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("network", &self.network).finish_non_exhaustive()
    }
}

impl<N: ModuleDisplay, I> ModuleDisplayDefault for Foreign<N, I> {
    fn content(&self, content: Content) -> Option<Content> {
        self.network.content(content)
    }

    fn num_params(&self) -> usize {
        ModuleDisplayDefault::num_params(&self.network)
    }
}

impl<N: ModuleDisplay, I> ModuleDisplay for Foreign<N, I> {}

// `#[derive(Module)]` would put `network.` before every path, and does not accept a closure over a module.
impl<N: Module, I> Module for Foreign<N, I> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.network.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.map_network(|network| network.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.map_network(|network| network.to_device(device))
    }

    fn train(self) -> Self {
        self.map_network(Module::train)
    }

    fn valid(&self) -> Self {
        self.with(self.network.valid())
    }

    fn materialize(self) -> Self {
        self.map_network(Module::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.network.visit(visitor);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.map_network(|network| network.map(mapper))
    }
}
