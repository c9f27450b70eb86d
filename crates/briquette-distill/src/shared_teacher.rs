//! A teacher with a copy on every device.

use crate::{Frozen, Outputs, Teacher, Traced, TrainingBatch, Wanted};
use briquette_core::Result;
use burn::tensor::Device;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A teacher with one copy per device, created when the first batch arrives there.
///
/// It is a network of any type, or anything else that returns outputs for batches of a student's inputs. Clones
/// share their copies.
pub struct SharedTeacher<I>(Arc<Mutex<Copies<I>>>);

/// A function that creates a teacher for a device.
type Make<I> = dyn FnMut(&Device) -> Result<OneTeacher<I>> + Send;

/// The teacher of one device, used by one thread at a time.
type OneTeacher<I> = Arc<Mutex<dyn Teacher<I> + Send>>;

struct Copies<I> {
    make: Box<Make<I>>,
    made: Vec<(Device, OneTeacher<I>)>,
}

impl<I> SharedTeacher<I> {
    /// Shares a network, frozen in its current state.
    pub fn of<N: Traced<Input = I> + 'static>(network: &N) -> Self {
        let frozen = Frozen::new(network);
        Self::made_by(move |device| Ok(frozen.to(device)))
    }

    /// Shares a teacher that `make` creates for a device without autodiff.
    ///
    /// Examples are a network of another library, and a table of cached outputs.
    pub fn made_by<T: Teacher<I> + Send + 'static>(
        mut make: impl FnMut(&Device) -> Result<T> + Send + 'static,
    ) -> Self {
        let make = move |device: &Device| -> Result<OneTeacher<I>> { Ok(Arc::new(Mutex::new(make(device)?))) };
        Self(Arc::new(Mutex::new(Copies { make: Box::new(make), made: Vec::new() })))
    }

    /// Returns the outputs for a batch, from the copy on its device.
    ///
    /// # Errors
    /// - The first error of creating the copy.
    /// - See [`Teacher::outputs`].
    pub fn outputs_on(&self, device: &Device, batch: &TrainingBatch<I>, wanted: Wanted) -> Result<Outputs> {
        // The list is not locked while a network runs, so other devices continue.
        let one = self.on(&device.clone().without_autodiff())?;
        locked(&one).outputs(batch, wanted)
    }

    fn on(&self, device: &Device) -> Result<OneTeacher<I>> {
        let mut copies = locked(&self.0);
        if let Some((_, one)) = copies.made.iter().find(|(known, _)| known == device) {
            return Ok(one.clone());
        }
        let one = (copies.make)(device)?;
        copies.made.push((device.clone(), one.clone()));
        Ok(one)
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I> Clone for SharedTeacher<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I> fmt::Debug for SharedTeacher<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedTeacher")
    }
}
