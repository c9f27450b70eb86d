//! Finding thresholds one after the other in the same memory.

use super::{Histogram, Threshold};

/// Finds the threshold of one tensor after another, keeping its histograms.
#[derive(Debug, Default)]
pub struct Selector {
    histogram: Option<Histogram>,
}

impl Selector {
    /// The threshold that drops exactly the `n_drop` smallest scores, ties to the lower index.
    ///
    /// `scan` is called up to twice and must show the histogram every score each time.
    ///
    /// # Errors
    /// Those of `scan`.
    pub fn threshold<E>(
        &mut self,
        n_drop: usize,
        mut scan: impl FnMut(&mut Histogram) -> Result<(), E>,
    ) -> Result<Threshold, E> {
        let histogram = self.histogram.get_or_insert_with(Histogram::coarse);
        histogram.reset(None);
        scan(histogram)?;
        let Some(n_in_bucket) = histogram.refine(n_drop) else { return Ok(Threshold::default()) };
        scan(histogram)?;
        Ok(histogram.threshold(n_in_bucket))
    }
}
