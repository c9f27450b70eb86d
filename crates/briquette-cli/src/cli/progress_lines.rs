//! Progress as plain lines, for a standard error that is no terminal: at least one each ten seconds.

use briquette::core::printable::printable;
use briquette::pipeline::Progress;
use briquette::pipeline::report::numbers::{bytes, seconds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The time between two lines.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// Stack of the thread that writes them.
const STACK_BYTES: usize = 256 << 10;

/// Shows the phase of a run in lines.
///
/// A thread looks at the phase, as some of them take long without a word. It ends with this.
pub(super) struct ProgressLines(Arc<Watched>);

/// The state that the thread looks at.
struct Watched {
    interval: Duration,
    show: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<LineState>,
    /// Bytes or items of the phase that are done, and all of them; 0 where that is not known.
    done: AtomicU64,
    total: AtomicU64,
}

struct LineState {
    /// The phase that goes on.
    phase: Option<Phase>,
    /// When the last line was shown.
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

    /// `encode: 45 %, 1.04 GB of 2.30 GB in 20.00 s, about 24.00 s left`.
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
    /// Shows a line each `interval`. Where the system gives no thread, only lines of the run itself are shown.
    pub(super) fn every(interval: Duration, show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let state = Mutex::new(LineState { phase: Some(Phase::new("start")), shown: Instant::now() });
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
        let watched = Arc::new(Watched { interval, show: Box::new(show), state, done, total });
        let watching = Arc::downgrade(&watched);
        let thread = std::thread::Builder::new().name("progress".into()).stack_size(STACK_BYTES);
        // A run whose progress is not shown is as good.
        let _ = thread.spawn(move || watch(&watching, interval / 10));
        Self(watched)
    }

    /// Begins to count a phase from 0.
    fn restart(&self, phase: Phase, total: u64) {
        self.0.state().phase = Some(phase);
        self.0.done.store(0, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }
}

/// Looks at the phase every `pause`, until nobody reports to it any more.
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
        // The next model starts counting from zero.
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

    /// Progress with a line each 40 ms, and the lines so far.
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
    fn a_long_phase_is_told_of_again_and_again_and_nothing_after_the_end() {
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
    fn a_short_phase_is_not_told_of() {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let put = shown.clone();
        let progress = ProgressLines::every(INTERVAL, move |text: &str| put.lock().unwrap().push(text.to_string()));
        progress.begin("encode", 10);
        progress.end();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(*shown.lock().unwrap(), [""; 0]);
    }
}
