//! What surrounds a run: threads, progress, and requests to stop.

use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_core::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Is told how far a run has come.
pub trait Progress: Send + Sync {
    /// A phase of `total` bytes begins.
    fn begin(&self, phase: &str, total: u64);
    /// This many more bytes are done.
    fn advance(&self, n_bytes: u64);
    /// The last phase is over.
    fn end(&self);
    /// Shows a line to people, such as how a training goes.
    fn line(&self, _text: &str) {}
    /// So many of `total` items are done, in a phase that runs a model on items.
    fn items(&self, _done: usize, _total: usize) {}
    /// Models now run on a device with these meters.
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
    /// Asks to stop because of a signal.
    pub fn request(&self, signal: i32) {
        self.0.store(signal, Ordering::SeqCst);
    }

    /// Fails once a stop was asked for.
    ///
    /// # Errors
    /// Interrupted.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::interrupted(signal)),
        }
    }
}

/// How to run a job, as opposed to what the job is.
#[derive(Clone)]
pub struct RunOptions {
    /// Worker threads; 0 for one a core.
    pub threads: usize,
    /// Replace an existing output, if Briquette made it.
    pub force: bool,
    /// Is told how far the run has come.
    pub progress: Arc<dyn Progress>,
    /// Whether a training may be drawn on the whole terminal, instead of line by line.
    pub screen: bool,
    /// Requests to stop the run.
    pub stop: Stop,
    /// Where models run: `auto`, `cpu`, `cuda`, `cuda:1`.
    pub device: String,
    /// The devices to train on, where there are several.
    pub devices: Vec<String>,
    /// Measures the host's memory.
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
/// Config, naming the key.
pub fn check_threads(key: &str, n: usize) -> Result<()> {
    if n <= MAX_THREADS {
        return Ok(());
    }
    Err(Error::config(format!("{key}: found {n}, expected at most {MAX_THREADS}; 0 means one for each core")))
}

/// Limits the process-wide threads, on which models compute, to this many. Only the first call decides.
///
/// # Errors
/// Config for more than [`MAX_THREADS`].
pub fn limit_threads(n: usize) -> Result<()> {
    check_threads("threads", n)?;
    // This fails where the threads run already; the first call counts.
    rayon::ThreadPoolBuilder::new().num_threads(n).build_global().ok();
    Ok(())
}

/// The threads of a run. Each has buffers of its own, which it keeps from one item to the next.
pub struct Workers {
    pool: rayon::ThreadPool,
    progress: Arc<dyn Progress>,
    stop: Stop,
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// Config for more than [`MAX_THREADS`]; Io where the system refuses to start threads; Interrupted.
    pub fn new(options: &RunOptions) -> Result<Self> {
        check_threads("threads", options.threads)?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
        let pool = pool.map_err(|error| {
            Error::io("cannot start threads", "this process".as_ref(), std::io::Error::other(error))
        })?;
        options.stop.check()?;
        Ok(Self { pool, progress: options.progress.clone(), stop: options.stop.clone() })
    }

    /// Number of threads.
    pub fn n_threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Reports that this many more bytes are done.
    pub fn advance(&self, n_bytes: usize) {
        self.progress.advance(n_bytes as u64);
    }

    /// Reports that a phase of this many bytes begins.
    pub fn begin(&self, phase: &str, n_bytes: usize) {
        self.progress.begin(phase, n_bytes as u64);
    }

    /// Fails once a stop was asked for.
    ///
    /// # Errors
    /// Interrupted.
    pub fn check_stop(&self) -> Result<()> {
        self.stop.check()
    }

    /// Runs two closures on these threads; `first` starts at once on one of them.
    pub fn join<A: Send, B: Send>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        self.pool.install(|| rayon::join(first, second))
    }

    /// Runs a closure on these threads, so that what it does with rayon is done by them.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// The request to stop, for work that checks it by itself.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Hands out items to threads, and collects what each thread made of its items.
    ///
    /// # Errors
    /// The error of the first item, in order, that failed; later items may not have been tried.
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
    /// As [`fold`](Self::fold).
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_the_first_error_wins() {
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
