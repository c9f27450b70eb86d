//! The latency of a smaller network on this machine.

#[cfg(feature = "model")]
use crate::transform::random_inputs::random_inputs;
use briquette_core::{Error, Result};
use briquette_graph::Graph;

/// Runs of each network.
#[cfg(feature = "model")]
const N_RUNS: usize = 9;

/// Measures the latency of a smaller graph as a share of another's: the median over runs in turn, in f32 on the CPU.
///
/// # Errors
/// - Config: the network cannot be run, or this build has no device.
/// - Refused: the weights of both networks exceed the memory limit.
#[cfg(feature = "model")]
pub(super) fn share(before: &Graph, after: &Graph, limit: Option<u64>) -> Result<f64> {
    use std::time::Instant;
    let device = briquette_models::device("cpu")?;
    let n_bytes = 4 * (before.n_parameters() + after.n_parameters()) as u64;
    if let Some(limit) = limit.filter(|limit| n_bytes > *limit) {
        let message = format!("both networks take {n_bytes} bytes, and the limit is {limit}; use multiply_adds");
        return Err(Error::refused(message).at("latency"));
    }
    briquette_models::guarded(&device, || {
        let runs = [runnable(before, &device)?, runnable(after, &device)?];
        let time = |which: usize| {
            let start = Instant::now();
            runs[which]().map(|()| start.elapsed().as_secs_f64())
        };
        // Untimed: the first run prepares weights.
        (0..2).try_for_each(|which| time(which).map(drop))?;
        let shares = (0..N_RUNS).map(|_| {
            let before = time(0)?;
            Ok(time(1)? / before.max(f64::MIN_POSITIVE))
        });
        let mut shares = shares.collect::<Result<Vec<f64>>>()?;
        shares.sort_by(f64::total_cmp);
        Ok(shares[N_RUNS / 2])
    })
}

/// Returns a run of a network with unfilled weights on random inputs.
#[cfg(feature = "model")]
fn runnable(graph: &Graph, device: &burn::tensor::Device) -> Result<impl Fn() -> Result<()> + use<>> {
    use briquette_graph::InputSource;
    use briquette_models::graph_net::GraphNet;
    let (network, _) = GraphNet::of_graph(graph.clone(), device)?;
    let sources = [InputSource::TokenIds, InputSource::Images, InputSource::SoundFeatures];
    let inputs = sources.into_iter().find_map(|given| random_inputs(graph, given, usize::MAX, device));
    let inputs = inputs.ok_or_else(|| {
        Error::config("its inputs are no texts, images or sounds; use multiply_adds instead").at("latency")
    })?;
    Ok(move || network.forward(&inputs).to_f32("an output").map(drop))
}

/// Returns an error: this build cannot run models.
///
/// # Errors
/// Config: always.
#[cfg(not(feature = "model"))]
pub(super) fn share(_before: &Graph, _after: &Graph, _limit: Option<u64>) -> Result<f64> {
    Err(Error::lacks_feature("model", "measure the latency"))
}

#[cfg(all(test, feature = "model"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use briquette_formats::Checkpoint;
    use briquette_graph::{Extents, graph_of};
    use std::path::Path;

    fn graph(tokens: usize) -> Graph {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/bert-tiny");
        let checkpoint = Checkpoint::open(&path).unwrap();
        graph_of(&checkpoint, Extents { tokens, ..Extents::default() }).unwrap().unwrap()
    }

    #[test]
    fn two_networks_are_measured_within_the_limit() {
        let (small, large) = (graph(4), graph(64));
        let share = share(&large, &small, None).unwrap();
        assert!(share > 0.0 && share.is_finite(), "{share}");
        let error = super::share(&large, &small, Some(1000)).unwrap_err();
        assert!(error.to_string().contains("the limit is 1000; use multiply_adds"), "{error}");
    }
}
