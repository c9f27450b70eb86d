//! The tensors that a training drops: their bytes are in the file before it, but do not count.

use crate::sensitivity::OpenTensor;
use briquette_core::Result;
use briquette_methods::quant::Candidate;
use briquette_writer::{Plan, TensorPlan};
use std::collections::BTreeSet;

/// The predicted sizes of a file with dropped tensors.
pub(super) struct DroppedBytes {
    /// Whether each tensor with an open step size is dropped.
    is_dropped: Vec<bool>,
    /// The bytes of what is not dropped, beside tensors with open step sizes.
    pub(super) fixed: f64,
    /// The bytes of dropped tensors without an open step size, with the headers of all dropped ones.
    others: u64,
}

impl DroppedBytes {
    /// Predicts the sizes of a plan, of which `open` has the tensors with open step sizes.
    ///
    /// # Errors
    /// See [`Plan::predict`].
    pub(super) fn of(plan: &Plan, open: &[OpenTensor], dropped: &BTreeSet<String>) -> Result<Self> {
        let is_dropped: Vec<bool> = open.iter().map(|(_, curve)| dropped.contains(&curve.name)).collect();
        let [kept_codes, dropped_codes] = [false, true].map(|wanted| -> Result<u64> {
            let those = open.iter().zip(&is_dropped).filter(|(_, is_dropped)| **is_dropped == wanted);
            those.map(|((tensor, _), _)| Ok(plan.predict_tensor(tensor)?.0)).sum()
        });
        let all = plan.predict()?.n_bytes;
        let kept = if dropped.is_empty() { all } else { without(plan, dropped).predict()?.n_bytes };
        let others = (all - kept).saturating_sub(dropped_codes?);
        Ok(Self { is_dropped, fixed: kept as f64 - kept_codes? as f64, others })
    }

    /// Returns the number of weights of the tensors with open step sizes that are not dropped.
    pub(super) fn n_weights(&self, open: &[OpenTensor]) -> usize {
        let counted = open.iter().zip(&self.is_dropped).filter(|(_, is_dropped)| !**is_dropped);
        counted.map(|((_, curve), _)| curve.n_weights).sum()
    }

    /// Leaves the smallest choices of dropped tensors, and counts none of their bytes. Returns these bytes with those of the others.
    pub(super) fn leave_smallest(&self, choices: &mut [Vec<Candidate>]) -> u64 {
        let mut codes = 0.0;
        for (choices, _) in choices.iter_mut().zip(&self.is_dropped).filter(|(_, is_dropped)| **is_dropped) {
            let smallest = choices.iter().map(|choice| choice.bytes).fold(f64::INFINITY, f64::min);
            codes += smallest;
            for choice in choices {
                let loss = if choice.bytes <= smallest { 0.0 } else { f64::MAX };
                *choice = Candidate { bytes: 0.0, loss, ..*choice };
            }
        }
        self.others + codes as u64
    }
}

/// Returns a plan without some tensors.
fn without<'a>(plan: &Plan<'a>, dropped: &BTreeSet<String>) -> Plan<'a> {
    let is_kept = |tensor: &&TensorPlan| !dropped.contains(&*tensor.info.name);
    Plan { tensors: plan.tensors.iter().filter(is_kept).cloned().collect(), ..plan.clone() }
}
