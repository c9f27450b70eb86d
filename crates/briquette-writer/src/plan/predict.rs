//! Predicts the size of an output before any weights are read.

use super::{Plan, TensorPlan};
use crate::layout::FileLayouts;
use crate::treatment::{Cut, Pruning};
use briquette_core::{Result, Storage};
use briquette_formats::OutputFormat;

/// The predicted size of the weight files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// Bytes of all weight files.
    pub n_bytes: u64,
    /// Whether the size is exact; otherwise it is an upper bound.
    pub is_exact: bool,
}

impl TensorPlan<'_> {
    /// Returns the number of kept elements, and whether it is exact.
    pub fn predicted_kept(&self) -> (usize, bool) {
        let n = self.info.n_elements();
        match self.prune.map(|prune| prune.cut) {
            Some(Cut::Pattern(pattern)) => (n - pattern.n_dropped(self.rows().n_rows, self.rows().n_cols), true),
            // Zeros in the source may make the tensor sparse, and so smaller.
            None => (n, !self.is_recoded()),
            Some(Cut::Pool(_) | Cut::Given) => (n, false),
        }
    }

    /// Returns whether the size of its parts is known before encoding.
    fn has_known_size(&self, profile: OutputFormat) -> bool {
        let (n_kept, is_exact) = self.predicted_kept();
        match self.coding(profile, n_kept).storage {
            Storage::Entropy { .. } => false,
            Storage::Dense | Storage::Bitmask => is_exact,
        }
    }

    /// Returns the most bytes by which a header grows if a tensor predicted as dense becomes sparse.
    ///
    /// The bytes are names, offsets and codings of parts.
    fn more_of_header(&self, profile: OutputFormat) -> u64 {
        let is_predicted_dense = self.was_sparse && self.prune.is_none()
            || matches!(self.prune, Some(Pruning { cut: Cut::Pool(_) | Cut::Given, .. }));
        let may_grow = is_predicted_dense && profile.holds_sparse() && self.tied_to().is_none();
        if may_grow { self.header_bytes_of_bitmask() } else { 0 }
    }

    /// Returns the most bytes by which a bitmask lengthens the header of a file.
    pub(super) fn header_bytes_of_bitmask(&self) -> u64 {
        400 + 3 * self.info.name.len() as u64
    }
}

impl Plan<'_> {
    /// Returns the predicted bytes of a tensor's parts, and whether they are exact; 0 for a tied tensor.
    ///
    /// # Errors
    /// See [`FileLayouts::new`](crate::layout::FileLayouts::new).
    pub fn predict_tensor(&self, tensor: &TensorPlan) -> Result<(u64, bool)> {
        if tensor.tied_to().is_some() {
            return Ok((0, true));
        }
        let (n_kept, _) = tensor.predicted_kept();
        let parts = tensor.file_parts(self.profile, tensor.coding(self.profile, n_kept), n_kept)?;
        let n_bytes = parts.iter().map(|part| part.info.n_bytes() as u64).sum();
        Ok((n_bytes, tensor.has_known_size(self.profile)))
    }

    /// Predicts the bytes of the weight files.
    ///
    /// They are exact unless there are global thresholds, zeros in the source, or entropy-coded codes.
    ///
    /// # Errors
    /// See [`FileLayouts::new`](crate::layout::FileLayouts::new).
    pub fn predict(&self) -> Result<Prediction> {
        let n_bytes = FileLayouts::n_bytes_of(self, &|index| self.tensors[index].predicted_kept().0)?;
        let is_open = |tensor: &TensorPlan| !tensor.has_known_size(self.profile) && tensor.tied_to().is_none();
        let is_exact = !self.tensors.iter().any(is_open);
        let header: u64 = self.tensors.iter().map(|tensor| tensor.more_of_header(self.profile)).sum();
        Ok(Prediction { n_bytes: n_bytes + header, is_exact })
    }
}
