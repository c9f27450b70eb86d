//! Networks with probes of their own, so that several batches can be seen at the same time.

use crate::lanes::{self, n_lanes};
use briquette_core::{Error, Result};
use briquette_models::Network;
use briquette_nn::{NameMap, Observing, Probe, observe_some};
use burn::tensor::{Bool, Device, Tensor};

/// A network, with layers that show their inputs to a probe of its own.
pub(super) struct ProbedNetwork {
    network: Network,
    probe: Option<Probe>,
}

impl ProbedNetwork {
    /// As many as there can be on this device: networks of the same weights, the layers whose inputs will be seen, and those that do not
    /// show them.
    ///
    /// # Errors
    /// Config where roles of the names match nothing.
    pub(super) fn several(
        network: Network,
        probe: Option<&Probe>,
        names: &NameMap,
        is_chosen: &dyn Fn(&str) -> bool,
        device: &Device,
    ) -> Result<(Vec<Self>, Vec<String>, Vec<String>)> {
        let (mut observers, mut watched, mut unseen) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..n_lanes(device) {
            let probe = probe.map(Probe::keeping);
            let observing = observed(network.clone(), probe.as_ref(), names, is_chosen)?;
            (watched, unseen) = (observing.seen, observing.unseen);
            observers.push(Self { network: observing.module, probe });
        }
        Ok((observers, watched, unseen))
    }

    /// Tells a probe what this one's has seen.
    ///
    /// # Errors
    /// Refused where an input is not finite.
    pub(super) fn tell(&self, probe: Option<&Probe>) -> Result<()> {
        self.probe.iter().zip(probe).try_for_each(|(own, probe)| probe.take_in(own))
    }
}

/// A network whose layers show their inputs to a probe, where there is one.
///
/// # Errors
/// Config where roles of the names match nothing.
pub(super) fn observed(
    network: Network,
    probe: Option<&Probe>,
    names: &NameMap,
    is_chosen: &dyn Fn(&str) -> bool,
) -> Result<Observing<Network>> {
    match probe {
        Some(probe) => observe_some(network, probe, names, is_chosen),
        None => Ok(Observing { module: network, seen: Vec::new(), unseen: Vec::new() }),
    }
}

/// What block `index` makes of states and their padding, each by an observer of its own; none where nothing but the inputs of its layers is
/// wanted.
///
/// # Errors
/// Bug where the network has no blocks.
pub(super) fn run_block(
    observers: &[ProbedNetwork],
    index: usize,
    is_wanted: bool,
    inputs: Vec<(Tensor<3>, Tensor<2, Bool>)>,
) -> Result<Vec<Option<Tensor<3>>>> {
    let run = |(observer, (state, padding)): (&ProbedNetwork, _)| {
        let blocks =
            observer.network.as_blocks().ok_or_else(|| Error::bug("a walk through a network without blocks"))?;
        if is_wanted {
            return Ok(Some(blocks.block(index, state, padding)));
        }
        blocks.only_show(index, state, padding);
        Ok(None)
    };
    lanes::run(observers.iter().zip(inputs).collect(), run)
}
