//! Networks with separate probes, so that several batches can be observed concurrently.

use crate::lanes;
use briquette_core::Result;
use briquette_models::graph_net::RunInputs;
use briquette_models::{BlockState, GraphNet};
use briquette_nn::{NameMap, Observing, Probe, observe_some};

/// A network whose layers are observed by its own probe.
pub(super) struct ProbedNetwork {
    network: GraphNet,
    probe: Option<Probe>,
}

impl ProbedNetwork {
    /// Creates networks with the same weights, one for each batch that runs concurrently.
    ///
    /// Also returns the observed layers, and the layers that cannot be observed.
    ///
    /// # Errors
    /// Config: roles of the name map match no parameter.
    pub(super) fn several(
        network: GraphNet,
        probe: Option<&Probe>,
        names: &NameMap,
        is_chosen: &dyn Fn(&str) -> bool,
        n_lanes: usize,
    ) -> Result<(Vec<Self>, Vec<String>, Vec<String>)> {
        let (mut observers, mut watched, mut unseen) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..n_lanes {
            let probe = probe.map(Probe::keeping);
            let observing = observed(network.clone(), probe.as_ref(), names, is_chosen)?;
            (watched, unseen) = (observing.seen, observing.unseen);
            observers.push(Self { network: observing.module, probe });
        }
        Ok((observers, watched, unseen))
    }

    /// Adds the statistics of this network's probe to another probe.
    ///
    /// # Errors
    /// Refused: an input is not finite.
    pub(super) fn tell(&self, probe: Option<&Probe>) -> Result<()> {
        self.probe.iter().zip(probe).try_for_each(|(own, probe)| probe.take_in(own))
    }
}

/// Observes the layers of a network with a probe, if there is one.
///
/// # Errors
/// Config: roles of the name map match no parameter.
pub(super) fn observed(
    network: GraphNet,
    probe: Option<&Probe>,
    names: &NameMap,
    is_chosen: &dyn Fn(&str) -> bool,
) -> Result<Observing<GraphNet>> {
    match probe {
        Some(probe) => observe_some(network, probe, names, is_chosen),
        None => Ok(Observing { module: network, seen: Vec::new(), unseen: Vec::new() }),
    }
}

/// Returns the output of block `index` for each input, with one observer each.
///
/// With `is_wanted` false, the block only runs as far as its layers' inputs require, and returns `None`.
pub(super) fn run_block(
    observers: &[ProbedNetwork],
    index: usize,
    is_wanted: bool,
    inputs: Vec<(BlockState, RunInputs)>,
) -> Result<Vec<Option<BlockState>>> {
    let run = |(observer, (state, inputs)): (&ProbedNetwork, _)| {
        if is_wanted {
            return Ok(Some(observer.network.block(index, state, &inputs)));
        }
        observer.network.observe_block(index, state, &inputs);
        Ok(None)
    };
    lanes::run(observers.iter().zip(inputs).collect(), run)
}
