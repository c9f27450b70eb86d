//! Layers that show their inputs to a probe while a model runs.

use crate::module::{Layer, NameMap, PatchShape, Probe};
use briquette_core::Result;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::Tensor;
use std::collections::BTreeMap;

/// Part of a weight whose layer shows its inputs to a [`Probe`]. It changes nothing.
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

/// A module whose layers show their inputs.
#[derive(Debug, Clone)]
#[must_use]
pub struct Observing<M> {
    /// The module: it computes what it did before.
    pub module: M,
    /// The layers that show them, by what a file calls them. Convolutions in groups do so only in name: their groups see different inputs.
    pub seen: Vec<String>,
    /// The layers that do not: those that are not of `crate::layers`, and those whose weights are held as codes.
    pub unseen: Vec<String>,
}

/// Has the linear layers and convolutions of a module show their inputs to `probe` whenever it runs, under the names that a file has for
/// them: the weight's name without `.weight`. `materialize()` takes it away again.
///
/// # Errors
/// Config, where roles of the names match nothing.
pub fn observe<M: Module>(module: M, probe: &Probe, names: &NameMap) -> Result<Observing<M>> {
    observe_some(module, probe, names, &|_| true)
}

/// As [`observe`], of the layers only whose name `is_chosen` takes.
///
/// # Errors
/// As [`observe`].
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

/// The layers that show their inputs, by the paths of their weights, and those that do not.
///
/// # Errors
/// As [`observe`].
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

/// Shows inputs to the probe of a weight, where it has one.
pub fn show<const D: usize, const N: usize>(weight: &Param<Tensor<D>>, inputs: &Tensor<N>) {
    if let Some(Observed { layer, probe }) = weight.reparameterization::<Observed>() {
        probe.keep_error(probe.observe(layer, inputs));
    }
}

/// Shows the patches of images to the probe of a convolution's filters, where they have one.
pub fn show_patches(weight: &Param<Tensor<4>>, inputs: &Tensor<4>, patches: PatchShape) {
    if let Some(Observed { layer, probe }) = weight.reparameterization::<Observed>().filter(|_| patches.groups == 1) {
        probe.keep_error(probe.observe_patches(layer, inputs, patches));
    }
}
