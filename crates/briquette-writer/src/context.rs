//! The environment of a run: threads, progress, and stop requests.

use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_core::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Receives the progress of a run.
pub trait Progress: Send + Sync {
    /// Begins a phase of `total` bytes.
    fn begin(&self, phase: &str, total: u64);
    /// Reports `n_bytes` more bytes as done.
    fn advance(&self, n_bytes: u64);
    /// Ends the phase.
    fn end(&self);
    /// Shows a line of text, such as the state of a training.
    fn line(&self, _text: &str) {}
    /// Reports `done` of `total` items, in a phase that runs a model on items.
    fn items(&self, _done: usize, _total: usize) {}
    /// Reports that models now run on a device with these meters.
    fn runs_on(&self, _meters: Vec<Box<dyn MemoryMeter>>) {}
}

/// A [`Progress`] that shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _phase: &str, _total: u64) {}
    fn advance(&self, _n_bytes: u64) {}
    fn end(&self) {}
}

/// A request to stop, which a signal handler can make at any time.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicI32>);

impl Stop {
    /// Requests a stop because of a signal.
    pub fn request(&self, signal: i32) {
        self.0.store(signal, Ordering::SeqCst);
    }

    /// Fails if a stop was requested.
    ///
    /// # Errors
    /// Interrupted: a stop was requested.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::interrupted(signal)),
        }
    }
}

/// Options of running a job, separate from the job itself.
#[derive(Clone)]
pub struct RunOptions {
    /// Worker threads; 0 means one per core.
    pub threads: usize,
    /// Whether to replace an existing output of Briquette.
    pub force: bool,
    /// Receives the progress.
    pub progress: Arc<dyn Progress>,
    /// Whether a training may use the whole terminal instead of single lines.
    pub screen: bool,
    /// Receives stop requests.
    pub stop: Stop,
    /// The device that models run on: `auto`, `cpu`, `cuda`, `cuda:1`.
    pub device: String,
    /// The devices to train on, if there are several.
    pub devices: Vec<String>,
    /// The meter of host memory.
    pub meter: Arc<dyn MemoryMeter>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            force: false,
            progress: Arc::new(Silent),
            screen: false,
            stop: Stop::default(),
            device: "auto".into(),
            devices: Vec::new(),
            meter: Arc::new(ResidentSet),
        }
    }
}

impl std::fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions").field("threads", &self.threads).field("force", &self.force).finish_non_exhaustive()
    }
}

pub use briquette_core::threads::MAX_THREADS;

/// Refuses more threads than [`MAX_THREADS`].
///
/// # Errors
/// Config: the number is too large. The error names the key.
pub fn check_threads(key: &str, n: usize) -> Result<()> {
    if n <= MAX_THREADS {
        return Ok(());
    }
    Err(Error::config(format!("{key}: found {n}, expected at most {MAX_THREADS}; 0 means one per core")))
}

/// Limits the process-wide threads on which models compute. Only the first call has an effect.
///
/// # Errors
/// Config: `n` is larger than [`MAX_THREADS`].
pub fn limit_threads(n: usize) -> Result<()> {
    check_threads("threads", n)?;
    // This fails if the threads already run, because only the first call counts.
    rayon::ThreadPoolBuilder::new().num_threads(n).build_global().ok();
    Ok(())
}

/// The worker threads of a run. Each thread has buffers that it reuses for all of its items.
pub struct Workers {
    pool: rayon::ThreadPool,
    progress: Arc<dyn Progress>,
    stop: Stop,
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// - Config: the number is larger than [`MAX_THREADS`].
    /// - Io: the system cannot start threads.
    /// - Interrupted: a stop was requested.
    pub fn new(options: &RunOptions) -> Result<Self> {
        check_threads("threads", options.threads)?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
        let pool = pool.map_err(|error| {
            Error::io("cannot start threads", "this process".as_ref(), std::io::Error::other(error))
        })?;
        options.stop.check()?;
        Ok(Self { pool, progress: options.progress.clone(), stop: options.stop.clone() })
    }

    /// Returns the number of threads.
    pub fn n_threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Reports this many more bytes as done.
    pub fn advance(&self, n_bytes: usize) {
        self.progress.advance(n_bytes as u64);
    }

    /// Begins a phase of this many bytes.
    pub fn begin(&self, phase: &str, n_bytes: usize) {
        self.progress.begin(phase, n_bytes as u64);
    }

    /// Fails if a stop was requested.
    ///
    /// # Errors
    /// Interrupted: a stop was requested.
    pub fn check_stop(&self) -> Result<()> {
        self.stop.check()
    }

    /// Runs two closures on these threads. `first` starts immediately on one of them.
    pub fn join<A: Send, B: Send>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        self.pool.install(|| rayon::join(first, second))
    }

    /// Runs a closure on these threads, so that its rayon calls use them.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// Returns the stop requests, for work that checks them itself.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Distributes items over the threads, and returns the result of each thread.
    ///
    /// # Errors
    /// The error of the first failed item in order. Later items may not have been processed.
    pub fn fold<T, S>(
        &self,
        items: &[T],
        start: impl Fn() -> S + Sync,
        each: impl Fn(&mut S, &T) -> Result<()> + Sync,
    ) -> Result<Vec<S>>
    where
        T: Sync,
        S: Send,
    {
        let next = AtomicUsize::new(0);
        let failed = AtomicUsize::new(usize::MAX);
        let shares = self.pool.broadcast(|_| {
            let (mut share, mut error) = (start(), None);
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= items.len() || failed.load(Ordering::Relaxed) < index {
                    return (share, error);
                }
                if let Err(found) = self.stop.check().and_then(|()| each(&mut share, &items[index])) {
                    failed.fetch_min(index, Ordering::Relaxed);
                    error.get_or_insert((index, found));
                }
            }
        });
        let (shares, errors): (Vec<S>, Vec<_>) = shares.into_iter().unzip();
        match errors.into_iter().flatten().min_by_key(|(index, _)| *index) {
            Some((_, error)) => Err(error),
            None => Ok(shares),
        }
    }

    /// Maps every item to a result, in order.
    ///
    /// # Errors
    /// See [`fold`](Self::fold).
    pub fn map<T, S, R>(
        &self,
        items: &[T],
        start: impl Fn() -> S + Sync,
        each: impl Fn(&mut S, &T) -> Result<R> + Sync,
    ) -> Result<Vec<R>>
    where
        T: Sync,
        S: Send,
        R: Send,
    {
        let indexed: Vec<(usize, &T)> = items.iter().enumerate().collect();
        let shares = self.fold(
            &indexed,
            || (start(), Vec::new()),
            |(scratch, made): &mut (S, Vec<(usize, R)>), (index, item)| {
                made.push((*index, each(scratch, item)?));
                Ok(())
            },
        )?;
        let mut made: Vec<(usize, R)> = shares.into_iter().flat_map(|(_, made)| made).collect();
        made.sort_by_key(|(index, _)| *index);
        Ok(made.into_iter().map(|(_, made)| made).collect())
    }

    /// Maps every item to a result, in order, several small items after another on one thread.
    ///
    /// # Errors
    /// See [`fold`](Self::fold).
    pub(crate) fn map_small<T, S, R>(
        &self,
        items: &[T],
        n_bytes_of: impl Fn(&T) -> usize,
        start: impl Fn() -> S + Sync,
        each: impl Fn(&mut S, &T) -> Result<R> + Sync,
    ) -> Result<std::iter::Flatten<std::vec::IntoIter<Vec<R>>>>
    where
        T: Sync,
        S: Send,
        R: Send,
    {
        let groups = groups_of(items, n_bytes_of);
        let one = |scratch: &mut S, group: &Range<usize>| {
            items[group.clone()].iter().map(|item| each(scratch, item)).collect::<Result<Vec<R>>>()
        };
        Ok(self.map(&groups, start, one)?.into_iter().flatten())
    }
}

/// Most bytes of the small items in a group.
const GROUP_BYTES: usize = 128 << 10;

/// Returns groups of small items for one thread, so that millions of items need few results.
pub(crate) fn groups_of<T>(items: &[T], n_bytes_of: impl Fn(&T) -> usize) -> Vec<Range<usize>> {
    let (mut groups, mut start, mut n_bytes) = (Vec::new(), 0, 0);
    for (index, item) in items.iter().enumerate() {
        let n = n_bytes_of(item);
        if index > start && n_bytes + n > GROUP_BYTES {
            groups.push(start..index);
            (start, n_bytes) = (index, 0);
        }
        n_bytes += n;
    }
    groups.push(start..items.len());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_the_first_error_is_returned() {
        let workers = Workers::new(&RunOptions { threads: 4, ..RunOptions::default() }).unwrap();
        let items: Vec<usize> = (0..1000).collect();
        let doubled = workers.map(&items, || (), |(), item| Ok(2 * item)).unwrap();
        assert!(doubled.iter().enumerate().all(|(i, doubled)| *doubled == 2 * i));
        let failing =
            |(): &mut (), item: &usize| if item % 300 == 299 { Err(Error::input(format!("{item}"))) } else { Ok(()) };
        assert_eq!(workers.fold(&items, || (), failing).err().unwrap().message, "299");
    }

    #[test]
    fn too_many_threads_are_refused_before_any_starts() {
        let with = |threads| Workers::new(&RunOptions { threads, ..RunOptions::default() });
        assert!(with(100_000).err().unwrap().to_string().contains("threads: found 100000, expected at most 1024"));
        assert_eq!(with(3).unwrap().n_threads(), 3);
    }

    #[test]
    fn a_stop_ends_the_work_with_the_signal() {
        let options = RunOptions::default();
        let workers = Workers::new(&options).unwrap();
        options.stop.request(15);
        let error = workers.map(&[1, 2], || (), |(), _| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), 143);
    }
}
