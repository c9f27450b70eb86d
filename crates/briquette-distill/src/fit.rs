//! How many items fit into memory at once.

use crate::items::Items;
use crate::traced::{DynTeacher, DynTrainingData};
use crate::{Distiller, Traced, Trained};
use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, Result};
use burn::module::Module;

/// How many items fit, and the memory that a step is predicted to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Items in memory at once.
    pub at_once: usize,
    /// The most that a step with them is predicted to take.
    pub predicted_bytes: u64,
    /// The most that a step with all of a batch is predicted to take.
    pub predicted_bytes_of_batch: u64,
}

impl Distiller {
    /// Takes no more items at once than stay below `limit` bytes, halving from the batch down. `peak(n) = a + b n` is
    /// measured at 1 and 2 of the items that take the most, on a meter that counts from here. What the optimizer remembers
    /// of a step is allocated later and is added: it is asked for that, whichever it is, one parameter at a time.
    ///
    /// The CPU ends a process that runs out of memory: there, asking first is the only way.
    ///
    /// # Errors
    /// Refused where one item does not fit; Config where the meter cannot tell a peak; those of a step.
    pub fn fit<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        limit: u64,
        meter: &dyn MemoryMeter,
    ) -> Result<(Trained<N>, Fit)> {
        // The forward passes that measure memory move the running statistics of batch norms; this record brings them back.
        let record = model.clone().into_record();
        let moments = self.bytes_of_moments(&model)?;
        let mut peak = |n: usize| {
            let rows = data.largest(n);
            let at_once = std::mem::replace(&mut self.at_once, n);
            meter.reset_peak();
            let found = self.gradients(&model, teacher, Items::Rows(data, &rows));
            self.at_once = at_once;
            let bytes = meter.peak_bytes().ok_or_else(|| Error::config("memory.limit: nothing tells the peak here"))?;
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
        // burn applies the last update of running statistics only when they are next read: after loading, it would overwrite them.
        drop(model.valid());
        let model = model.try_load_record(record);
        Ok((model.map_err(|error| Error::bug(format!("the student's own record: {error:?}")))?, fit))
    }
}
