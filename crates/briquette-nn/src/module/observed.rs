//! Layers that pass their inputs to a probe while a model runs.

use crate::module::{Layer, NameMap, PatchShape, Probe};
use briquette_core::Result;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::Tensor;
use std::collections::BTreeMap;

/// A marker on a weight whose layer passes its inputs to a [`Probe`]. It does not change the weight.
#[derive(Module, Debug)]
pub struct Observed {
    #[module(skip)]
    layer: String,
    #[module(skip)]
    probe: Probe,
}

impl Reparameterization for Observed {
    const NAME: &'static str = "observed";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base
    }
}

/// A module whose layers pass their inputs to a probe.
#[derive(Debug, Clone)]
#[must_use]
pub struct Observing<M> {
    /// The module; its outputs are unchanged.
    pub module: M,
    /// Observed layers, by their names in a file.
    pub seen: Vec<String>,
    /// Layers that cannot be observed: layers outside `crate::layers`, and layers whose weights are stored as
    /// codes.
    pub unseen: Vec<String>,
}

/// Makes the linear layers and convolutions of a module pass their inputs to `probe`.
///
/// The probe names layers by their weight's name in a file, without `.weight`. `materialize()` removes the
/// observation.
///
/// # Errors
/// Config: a role of the names matches no parameter.
pub fn observe<M: Module>(module: M, probe: &Probe, names: &NameMap) -> Result<Observing<M>> {
    observe_some(module, probe, names, &|_| true)
}

/// Like [`observe`], for the layers whose name satisfies `is_chosen`.
///
/// # Errors
/// See [`observe`].
pub fn observe_some<M: Module>(
    module: M,
    probe: &Probe,
    names: &NameMap,
    is_chosen: &dyn Fn(&str) -> bool,
) -> Result<Observing<M>> {
    let (layers, unseen) = observable(&module, names, is_chosen)?;
    let seen = layers.values().cloned().collect();
    Ok(Observing { module: module.apply_reparameterization(Observer { layers, probe: probe.clone() }), seen, unseen })
}

/// Returns the layers that can be observed, by the paths of their weights, and the names of the others.
///
/// # Errors
/// See [`observe`].
pub fn observable<M: Module>(
    module: &M,
    names: &NameMap,
    is_chosen: &dyn Fn(&str) -> bool,
) -> Result<(BTreeMap<String, String>, Vec<String>)> {
    let (mut layers, mut unseen) = (BTreeMap::new(), Vec::new());
    for parameter in names.parameters(module)? {
        if !matches!(parameter.layer, Some(Layer::Linear | Layer::Conv | Layer::ConvTranspose)) {
            continue;
        }
        let name = names.file_name(&parameter);
        let layer = name.strip_suffix(".weight").unwrap_or(&name).to_string();
        if !is_chosen(&layer) {
            continue;
        }
        match parameter.runs_on_codes && parameter.reparameterized.is_none() {
            true => drop(layers.insert(parameter.path, layer)),
            false => unseen.push(layer),
        }
    }
    Ok((layers, unseen))
}

struct Observer {
    layers: BTreeMap<String, String>,
    probe: Probe,
}

impl Reparameterizer for Observer {
    type Reparam = Observed;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Observed>) {
        let observed = self.layers.remove(path).map(|layer| Observed { layer, probe: self.probe.clone() });
        (param, observed)
    }
}

/// Passes inputs to the probe of a weight, if it has one.
pub fn show<const D: usize, const N: usize>(weight: &Param<Tensor<D>>, inputs: &Tensor<N>) {
    if let Some(Observed { layer, probe }) = weight.reparameterization::<Observed>() {
        probe.keep_error(probe.observe(layer, inputs));
    }
}

/// Passes image patches to the probe of a convolution's weight, if it has one.
pub fn show_patches(weight: &Param<Tensor<4>>, inputs: &Tensor<4>, patches: PatchShape) {
    if let Some(Observed { layer, probe }) = weight.reparameterization::<Observed>() {
        probe.keep_error(probe.observe_patches(layer, inputs, patches));
    }
}
