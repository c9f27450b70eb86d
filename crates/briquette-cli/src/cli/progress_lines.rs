//! Progress as plain lines, for stderr without a terminal: at least one every ten seconds.

use briquette::core::printable::printable;
use briquette::pipeline::Progress;
use briquette::pipeline::report::numbers::{bytes, seconds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time between two lines.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// Stack size of the thread that prints lines.
const STACK_BYTES: usize = 256 << 10;

/// Prints the phase of a run as lines.
///
/// A thread polls the phase, because some phases report nothing for a long time. The thread ends when this is
/// dropped.
pub(super) struct ProgressLines(Arc<Watched>);

/// The state that the thread polls.
struct Watched {
    interval: Duration,
    show: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<LineState>,
    /// Finished and total bytes or items of the phase; 0 if unknown.
    done: AtomicU64,
    total: AtomicU64,
}

struct LineState {
    /// The current phase.
    phase: Option<Phase>,
    /// When the last line was printed.
    shown: Instant,
}

struct Phase {
    name: String,
    started: Instant,
    counts_items: bool,
}

impl Phase {
    fn new(name: &str) -> Self {
        Self { name: printable(name), started: Instant::now(), counts_items: false }
    }

    /// Returns a line such as `encode: 45 %, 1.04 GB of 2.30 GB in 20.00 s, about 24.00 s left`.
    fn text(&self, done: u64, total: u64) -> String {
        let (name, elapsed) = (&self.name, self.started.elapsed().as_secs_f64());
        if total == 0 {
            return format!("{name}: {} so far", seconds(elapsed));
        }
        let percent = 100 * done.min(total) / total;
        let counted = match self.counts_items {
            true => format!("{done} of {total} items"),
            false => format!("{} of {}", bytes(done), bytes(total)),
        };
        let left = match (1..total).contains(&done) {
            true => format!(", about {} left", seconds(elapsed * (total - done) as f64 / done as f64)),
            false => String::new(),
        };
        format!("{name}: {percent} %, {counted} in {}{left}", seconds(elapsed))
    }
}

impl ProgressLines {
    /// Prints a line each `interval`. If no thread can be started, only lines of the run itself are printed.
    pub(super) fn every(interval: Duration, show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let state = Mutex::new(LineState { phase: Some(Phase::new("start")), shown: Instant::now() });
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
        let watched = Arc::new(Watched { interval, show: Box::new(show), state, done, total });
        let watching = Arc::downgrade(&watched);
        let thread = std::thread::Builder::new().name("progress".into()).stack_size(STACK_BYTES);
        // Progress is optional, so a failure is ignored.
        let _ = thread.spawn(move || watch(&watching, interval / 10));
        Self(watched)
    }

    /// Starts a phase from 0.
    fn restart(&self, phase: Phase, total: u64) {
        self.0.state().phase = Some(phase);
        self.0.done.store(0, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }
}

/// Polls the phase every `pause`, until the progress is dropped.
fn watch(watched: &Weak<Watched>, pause: Duration) {
    loop {
        std::thread::sleep(pause);
        let Some(watched) = watched.upgrade() else { return };
        watched.show_if_due();
    }
}

impl Watched {
    fn state(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show_if_due(&self) {
        let mut state = self.state();
        if state.shown.elapsed() < self.interval {
            return;
        }
        let Some(phase) = &state.phase else { return };
        (self.show)(&phase.text(self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed)));
        state.shown = Instant::now();
    }
}

impl Progress for ProgressLines {
    fn begin(&self, phase: &str, total: u64) {
        self.restart(Phase::new(phase), total);
    }

    fn advance(&self, n_bytes: u64) {
        self.0.done.fetch_add(n_bytes, Ordering::Relaxed);
    }

    fn items(&self, done: usize, total: usize) {
        let (done, total) = (done as u64, total as u64);
        // The next model starts from zero.
        if self.0.total.load(Ordering::Relaxed) != total || done < self.0.done.load(Ordering::Relaxed) {
            let name = self.0.state().phase.as_ref().map_or_else(String::new, |phase| phase.name.clone());
            self.restart(Phase { counts_items: true, ..Phase::new(&name) }, total);
        }
        self.0.done.store(done, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.state().phase = None;
    }

    fn line(&self, text: &str) {
        (self.0.show)(text);
        self.0.state().shown = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns progress with a line each 40 ms, and the lines so far.
    fn lines() -> (ProgressLines, Arc<Mutex<Vec<String>>>) {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let put = shown.clone();
        let progress = ProgressLines::every(Duration::from_millis(40), move |text: &str| {
            put.lock().unwrap().push(text.to_string())
        });
        (progress, shown)
    }

    fn wait_for(shown: &Mutex<Vec<String>>, words: &str) {
        let since = Instant::now();
        while !shown.lock().unwrap().iter().any(|line| line.contains(words)) {
            assert!(since.elapsed() < Duration::from_secs(20), "{words}: {:?}", shown.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_long_phase_is_reported_repeatedly_until_it_ends() {
        let (progress, shown) = lines();
        progress.begin("encode", 2000);
        progress.advance(500);
        wait_for(&shown, "encode: 25 %, 500 B of 2.00 kB in ");
        progress.begin("evaluate", 0);
        wait_for(&shown, "evaluate: ");
        progress.items(32, 360);
        wait_for(&shown, "evaluate: 8 %, 32 of 360 items in ");
        progress.line("epoch 1");
        wait_for(&shown, "epoch 1");
        progress.end();
        let n = shown.lock().unwrap().len();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(shown.lock().unwrap().len(), n);
    }

    #[test]
    fn a_short_phase_is_not_reported() {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let put = shown.clone();
        let progress = ProgressLines::every(INTERVAL, move |text: &str| put.lock().unwrap().push(text.to_string()));
        progress.begin("encode", 10);
        progress.end();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(*shown.lock().unwrap(), [""; 0]);
    }
}
