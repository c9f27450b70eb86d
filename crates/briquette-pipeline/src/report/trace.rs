//! A run as a Chrome trace: its phases and their memory.

use briquette_core::memory::MemoryMeter;
use briquette_core::printable::printable_json;
use briquette_core::{Error, Result};
use briquette_writer::context::Progress;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The fewest microseconds between two samples of the memory within a phase.
const SAMPLE_US: u64 = 10_000;

/// The next sample comes after this share of the time so far. A run of a day has some 35,000 samples.
const SHARE_OF_TIME: u64 = 4096;

/// Records a run for `about:tracing` or Perfetto.
///
/// It replaces the progress and the meter of [`RunOptions`](briquette_writer::context::RunOptions), and
/// forwards to both. A phase lasts until the next one begins, and the meter's peak is reset with each phase. A
/// device that models run on has its own counters, one for each of its meters.
pub struct Trace {
    progress: Arc<dyn Progress>,
    meter: Arc<dyn MemoryMeter>,
    of_device: Mutex<Vec<Box<dyn MemoryMeter>>>,
    started: Instant,
    sampled_us: AtomicU64,
    notes: Mutex<Notes>,
}

/// The events recorded so far. They become JSON last: the trace is a part of the memory that it measures.
#[derive(Default)]
struct Notes {
    phases: Vec<EndedPhase>,
    counters: Vec<Counter>,
    /// The current phase and its start.
    open: Option<(String, u64)>,
}

impl Notes {
    /// Adds a sample to the counter with this name.
    fn count(&mut self, name: &str, sample: MemorySample) {
        let at = self.counters.iter().position(|counter| counter.name == name).unwrap_or_else(|| {
            self.counters.push(Counter { name: name.to_string(), samples: Vec::new() });
            self.counters.len() - 1
        });
        self.counters[at].samples.push(sample);
    }

    /// All events, each an object of Chrome's trace format.
    fn events(&self) -> impl Iterator<Item = Value> {
        let samples = self.counters.iter().flat_map(Counter::events);
        self.phases.iter().map(EndedPhase::event).chain(samples)
    }
}

/// A phase that has ended. Times are in microseconds since the trace began.
struct EndedPhase {
    name: String,
    start: u64,
    end: u64,
    live: Option<u64>,
    peak: Option<u64>,
}

impl EndedPhase {
    fn event(&self) -> Value {
        json!({
            "name": self.name, "cat": "phase", "ph": "X", "ts": self.start, "dur": self.end - self.start, "pid": 1, "tid": 1,
            "args": { "live_bytes": self.live, "peak_bytes": self.peak },
        })
    }
}

/// The samples of a meter, in their order.
struct Counter {
    name: String,
    samples: Vec<MemorySample>,
}

impl Counter {
    fn events(&self) -> impl Iterator<Item = Value> {
        self.samples.iter().map(|sample| {
            let counted = json!({ "live": sample.live, "peak": sample.peak });
            json!({ "name": self.name, "ph": "C", "ts": sample.at, "pid": 1, "args": counted })
        })
    }
}

/// Bytes in use, and the most of the phase, at a time in microseconds.
struct MemorySample {
    at: u64,
    live: u64,
    peak: u64,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("started", &self.started).finish_non_exhaustive()
    }
}

impl Trace {
    /// The beginning of every trace.
    pub const BEGINNING: &'static [u8] = br#"{"displayTimeUnit":"ms","otherData":{"producer":"briquette "#;

    /// Starts the clock, with a phase named `start`.
    pub fn new(progress: Arc<dyn Progress>, meter: Arc<dyn MemoryMeter>) -> Self {
        let (sampled_us, notes, of_device) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        let trace = Self { progress, meter, of_device, started: Instant::now(), sampled_us, notes };
        trace.open("start");
        trace
    }

    /// Returns the trace so far as JSON.
    ///
    /// Each phase is a complete event (`X`) with its peak memory and the memory at its end. Counters (`C`) have
    /// both over time. Times are in microseconds.
    ///
    /// # Errors
    /// Bug: the trace cannot be written as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        self.close();
        let producer = concat!("briquette ", env!("CARGO_PKG_VERSION"));
        let events: Vec<Value> = self.notes().events().collect();
        let trace = json!({
            "displayTimeUnit": "ms", "otherData": { "producer": producer }, "traceEvents": events,
        });
        let json = serde_json::to_string(&trace).map_err(|error| Error::bug(format!("the trace: {error}")))?;
        Ok(printable_json(&json).into_owned().into_bytes())
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Begins a phase, and ends the previous one.
    fn open(&self, phase: &str) {
        self.close();
        self.meter.reset_peak();
        let now = self.now_us();
        self.notes().open = Some((phase.to_string(), now));
        self.sample(now);
    }

    /// Ends the current phase, if there is one.
    fn close(&self) {
        let now = self.now_us();
        let Some((name, start)) = self.notes().open.take() else { return };
        self.sample(now);
        let (live, peak) = (self.meter.live_bytes(), self.meter.peak_bytes());
        self.notes().phases.push(EndedPhase { name, start, end: now, live, peak });
    }

    /// Records the memory in use, of the host and of the device.
    fn sample(&self, now: u64) {
        self.sampled_us.store(now, Ordering::Relaxed);
        self.count("memory", self.meter.as_ref(), now);
        for meter in self.of_device.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            self.count(meter.name(), meter.as_ref(), now);
        }
    }

    /// Adds what a meter shows now to the counter with this name.
    fn count(&self, name: &str, meter: &dyn MemoryMeter, now: u64) {
        let Some(live) = meter.live_bytes() else { return };
        let peak = meter.peak_bytes().unwrap_or(live);
        self.notes().count(name, MemorySample { at: now, live, peak });
    }

    /// Records the memory if the last sample is old enough.
    fn sample_at_times(&self) {
        let now = self.now_us();
        if now.saturating_sub(self.sampled_us.load(Ordering::Relaxed)) >= SAMPLE_US.max(now / SHARE_OF_TIME) {
            self.sample(now);
        }
    }
}

impl Progress for Trace {
    fn begin(&self, phase: &str, total: u64) {
        self.open(phase);
        self.progress.begin(phase, total);
    }

    fn advance(&self, n_bytes: u64) {
        self.sample_at_times();
        self.progress.advance(n_bytes);
    }

    fn items(&self, done: usize, total: usize) {
        self.sample_at_times();
        self.progress.items(done, total);
    }

    fn line(&self, text: &str) {
        self.progress.line(text);
    }

    fn runs_on(&self, meters: Vec<Box<dyn MemoryMeter>>) {
        *self.of_device.lock().unwrap_or_else(PoisonError::into_inner) = meters;
    }

    fn end(&self) {
        self.close();
        self.progress.end();
    }
}

impl MemoryMeter for Trace {
    fn name(&self) -> &str {
        self.meter.name()
    }

    fn live_bytes(&self) -> Option<u64> {
        self.meter.live_bytes()
    }

    fn peak_bytes(&self) -> Option<u64> {
        self.meter.peak_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.meter.free_bytes()
    }

    fn is_of_host(&self) -> bool {
        self.meter.is_of_host()
    }

    fn reset_peak(&self) {
        self.meter.reset_peak();
    }

    fn begin_phase(&self, phase: &str) {
        self.open(phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::memory::ResidentSet;
    use briquette_writer::context::Silent;

    #[test]
    fn phases_follow_each_other_without_a_gap() {
        let trace = Trace::new(Arc::new(Silent), Arc::new(ResidentSet));
        trace.begin("encode", 10);
        trace.advance(10);
        trace.begin_phase("run");
        trace.end();
        let found: Value = serde_json::from_slice(&trace.to_json().unwrap()).unwrap();
        let events = found["traceEvents"].as_array().unwrap();
        let phases: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["start", "encode", "run"]);
        let time = |event: &Value, key: &str| event[key].as_u64().unwrap();
        for pair in phases.windows(2) {
            let end = time(pair[0], "ts") + time(pair[0], "dur");
            assert!(end <= time(pair[1], "ts") && time(pair[1], "ts") <= end + 50_000);
        }
    }

    /// A device with 7 bytes in use and an unknown peak.
    struct Seven;

    impl MemoryMeter for Seven {
        fn name(&self) -> &str {
            "bytes of seven"
        }

        fn live_bytes(&self) -> Option<u64> {
            Some(7)
        }

        fn peak_bytes(&self) -> Option<u64> {
            None
        }
    }

    #[test]
    fn every_meter_has_a_counter_and_every_trace_the_same_beginning() {
        let trace = Trace::new(Arc::new(Silent), Arc::new(ResidentSet));
        trace.runs_on(vec![Box::new(Seven)]);
        trace.begin_phase("run");
        let json = trace.to_json().unwrap();
        assert!(json.starts_with(Trace::BEGINNING), "{}", String::from_utf8_lossy(&json));
        let found: Value = serde_json::from_slice(&json).unwrap();
        let of_seven = |event: &&Value| event["ph"] == "C" && event["name"] == "bytes of seven";
        let counted: Vec<&Value> = found["traceEvents"].as_array().unwrap().iter().filter(of_seven).collect();
        assert!(counted.len() >= 2 && counted.iter().all(|event| event["args"]["live"] == 7), "{counted:?}");
        assert!(trace.meter.live_bytes().unwrap() > 7, "the host's meter is unchanged");
    }

    /// Stores the lines.
    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);

    impl Progress for Lines {
        fn begin(&self, _phase: &str, _total: u64) {}
        fn advance(&self, _n_bytes: u64) {}
        fn end(&self) {}

        fn line(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_string());
        }
    }

    #[test]
    fn lines_are_forwarded_by_the_trace() {
        let lines = Arc::new(Lines::default());
        Trace::new(lines.clone(), Arc::new(ResidentSet)).line("step 1");
        assert_eq!(*lines.0.lock().unwrap(), ["step 1"]);
    }
}
