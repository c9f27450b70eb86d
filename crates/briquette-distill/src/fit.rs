//! The number of items that fit in memory at once.

use crate::items::Items;
use crate::traced::{DynTeacher, DynTrainingData};
use crate::{Distiller, Traced, Trained};
use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, Result};
use burn::module::Module;

/// The number of items that fit, and the predicted memory of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// The number of items in memory at once.
    pub at_once: usize,
    /// The predicted peak of a step with this number of items in bytes.
    pub predicted_bytes: u64,
    /// The predicted peak of a step with a whole batch in bytes.
    pub predicted_bytes_of_batch: u64,
}

impl Distiller {
    /// Halves the number of items in memory at once until a step stays below `limit` bytes.
    ///
    /// `peak(n) = a + b n` is measured with 1 and 2 of the largest items, on a meter that counts from here. The
    /// optimizer state is allocated later and is added; it is measured for the given optimizer, one parameter
    /// at a time. On the CPU, a process that runs out of memory is killed, so the prediction is the only safe
    /// way.
    ///
    /// # Errors
    /// - Refused: a single item does not fit.
    /// - Config: the meter has no peak.
    /// - See [`Distiller::step`].
    pub fn fit<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        limit: u64,
        meter: &dyn MemoryMeter,
    ) -> Result<(Trained<N>, Fit)> {
        // The forward passes of the measurement change the running statistics of batch norms; this record
        // restores them.
        let record = model.clone().into_record();
        let moments = self.bytes_of_moments(&model)?;
        let mut peak = |n: usize| {
            let rows = data.largest(n);
            let at_once = std::mem::replace(&mut self.at_once, n);
            meter.reset_peak();
            let found = self.gradients(&model, teacher, Items::Rows(data, &rows));
            self.at_once = at_once;
            let bytes =
                meter.peak_bytes().ok_or_else(|| Error::config("memory.limit: the memory meter has no peak"))?;
            found.map(|_| bytes + moments)
        };
        peak(1)?; // The first run also fills caches, which would count as its own memory.
        let (one, two) = (peak(1)?, peak(2.min(data.len()))?);
        let of = |n: usize| one + two.saturating_sub(one) * (n as u64 - 1);
        let mut at_once = self.at_once;
        while at_once > 1 && of(at_once) > limit {
            at_once = at_once.div_ceil(2);
        }
        if of(at_once) > limit {
            let message =
                format!("training takes {one} bytes for one item, expected at most {limit}; raise memory.limit");
            return Err(Error::refused(message));
        }
        let fit = Fit { at_once, predicted_bytes: of(at_once), predicted_bytes_of_batch: of(self.at_once) };
        self.at_once = at_once;
        // burn applies the last update of running statistics only when they are next read: after loading, it
        // would overwrite them.
        drop(model.valid());
        let model = model.try_load_record(record);
        Ok((model.map_err(|error| Error::bug(format!("the student's own record: {error:?}")))?, fit))
    }
}
