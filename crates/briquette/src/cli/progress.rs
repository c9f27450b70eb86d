//! Progress: bars on a terminal, and plain lines of how a training goes on stderr.

use super::text;
use briquette::pipeline::{Progress, Silent};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;

struct Bar(ProgressBar);

/// Only the lines.
struct Lines;

/// A bar on stderr where that is a terminal, lines where it is none; nothing where nothing is to be shown.
pub(crate) fn of(is_quiet: bool) -> Arc<dyn Progress> {
    if is_quiet {
        return Arc::new(Silent);
    }
    if !std::io::stderr().is_terminal() {
        return Arc::new(Lines);
    }
    let style = ProgressStyle::with_template("{msg:>8} {bar:40} {bytes:>10} / {total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    Arc::new(Bar(bar))
}

impl Progress for Lines {
    fn begin(&self, _phase: &str, _total: u64) {}
    fn advance(&self, _n_bytes: u64) {}
    fn end(&self) {}

    fn line(&self, text: &str) {
        text::complain(text);
    }
}

impl Progress for Bar {
    fn begin(&self, phase: &str, total: u64) {
        self.0.reset();
        self.0.set_length(total);
        self.0.set_message(phase.to_string());
    }

    fn advance(&self, n_bytes: u64) {
        self.0.inc(n_bytes);
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }

    fn line(&self, text: &str) {
        self.0.suspend(|| text::complain(text));
    }
}
