//! A teacher on every device that asks for it.

use crate::{Frozen, Outputs, Teacher, Traced, TrainingBatch, Wanted};
use briquette_core::Result;
use burn::tensor::Device;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A teacher of which each device has a copy, made when the first batch gets there: a network of any type, or whatever else answers
/// batches of a student's inputs. Clones share their copies.
pub struct SharedTeacher<I>(Arc<Mutex<Copies<I>>>);

/// Makes a teacher for a device.
type Make<I> = dyn FnMut(&Device) -> Result<OneTeacher<I>> + Send;

/// The teacher of one device, which one thread asks at a time.
type OneTeacher<I> = Arc<Mutex<dyn Teacher<I> + Send>>;

struct Copies<I> {
    make: Box<Make<I>>,
    made: Vec<(Device, OneTeacher<I>)>,
}

impl<I> SharedTeacher<I> {
    /// A network, frozen as it is now.
    pub fn of<N: Traced<Input = I> + 'static>(network: &N) -> Self {
        let frozen = Frozen::new(network);
        Self::made_by(move |device| Ok(frozen.to(device)))
    }

    /// What `make` makes for a device, which comes without autodiff: a network of another library, a table of remembered outputs.
    pub fn made_by<T: Teacher<I> + Send + 'static>(
        mut make: impl FnMut(&Device) -> Result<T> + Send + 'static,
    ) -> Self {
        let make = move |device: &Device| -> Result<OneTeacher<I>> { Ok(Arc::new(Mutex::new(make(device)?))) };
        Self(Arc::new(Mutex::new(Copies { make: Box::new(make), made: Vec::new() })))
    }

    /// The outputs of the copy on a device for a batch there.
    ///
    /// # Errors
    /// Those of making the copy, and of [`Teacher::outputs`].
    pub fn outputs_on(&self, device: &Device, batch: &TrainingBatch<I>, wanted: Wanted) -> Result<Outputs> {
        // The list is not held while a network runs: other devices go on.
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
