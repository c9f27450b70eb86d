//! Progress bars on a terminal, nothing elsewhere.

use briquette::pipeline::{Progress, Silent};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;

struct Bar(ProgressBar);

/// A bar on stderr, unless it is no terminal or nothing is to be shown.
pub(crate) fn of(is_quiet: bool) -> Arc<dyn Progress> {
    if is_quiet || !std::io::stderr().is_terminal() {
        return Arc::new(Silent);
    }
    let style = ProgressStyle::with_template("{msg:>8} {bar:40} {bytes:>10} / {total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    Arc::new(Bar(bar))
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
}
