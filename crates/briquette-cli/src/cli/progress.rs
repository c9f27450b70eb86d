//! Progress on stderr: a bar on a terminal, plain lines elsewhere.

use super::progress_lines::{INTERVAL, ProgressLines};
use super::text;
use briquette::core::printable::printable;
use briquette::pipeline::{Progress, Silent};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;

struct Bar(ProgressBar);

/// Returns a progress bar if stderr is a terminal, else lines, or nothing if `is_quiet`.
pub(crate) fn of(is_quiet: bool) -> Arc<dyn Progress> {
    if is_quiet {
        return Arc::new(Silent);
    }
    if !std::io::stderr().is_terminal() {
        return Arc::new(ProgressLines::every(INTERVAL, text::complain));
    }
    // The bar is hidden until the total is known.
    Arc::new(Bar(ProgressBar::hidden()))
}

/// Returns whether all streams are a terminal that can be drawn on.
pub(crate) fn has_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
    !is_dumb && std::io::stdout().is_terminal() && std::io::stderr().is_terminal() && std::io::stdin().is_terminal()
}

/// Least number of columns of a bar with figures; a narrower terminal gets a percentage.
const MIN_WIDTH: u16 = 72;
const NARROW: &str = "{msg:>8} {percent:>3} %";

/// Returns whether a bar with figures would be wider than the terminal. A wrapped line cannot be cleared.
fn is_narrow() -> bool {
    terminal_size::terminal_size_of(std::io::stderr()).is_some_and(|(columns, _)| columns.0 < MIN_WIDTH)
}

/// Returns the style of a phase: its progress, or only its name if `total` is 0.
fn style(total: u64) -> ProgressStyle {
    let with_bar = match is_narrow() {
        true => NARROW,
        false => "{msg:>8} {wide_bar} {decimal_bytes:>10} / {decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    };
    let template = ProgressStyle::with_template(if total > 0 { with_bar } else { "{msg:>8} ..." });
    template.unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns the style of a phase that counts items.
fn style_of_items() -> ProgressStyle {
    let with_bar = match is_narrow() {
        true => NARROW,
        false => "{msg:>8} {wide_bar} {human_pos:>10} / {human_len} items {eta}",
    };
    let template = ProgressStyle::with_template(with_bar);
    template.unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Progress for Bar {
    fn begin(&self, phase: &str, total: u64) {
        // Replacing the draw target would leave the last line on the terminal.
        self.0.finish_and_clear();
        self.0.set_draw_target(ProgressDrawTarget::hidden());
        self.0.set_style(style(total));
        self.0.set_length(total);
        self.0.set_message(printable(phase));
        self.0.reset();
        self.0.set_draw_target(ProgressDrawTarget::stderr());
        self.0.tick();
    }

    fn advance(&self, n_bytes: u64) {
        self.0.inc(n_bytes);
    }

    fn items(&self, done: usize, total: usize) {
        let (done, total) = (done as u64, total as u64);
        // The next model starts from zero, and its speed is independent of the previous one.
        if self.0.length() != Some(total) || done < self.0.position() {
            self.0.set_style(style_of_items());
            self.0.set_length(total);
            self.0.reset();
        }
        self.0.set_position(done);
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }

    fn line(&self, text: &str) {
        self.0.suspend(|| text::complain(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_counted_separately_for_each_model() {
        let bar = Bar(ProgressBar::hidden());
        bar.begin("evaluate", 0);
        for done in [32, 360, 64] {
            bar.items(done, 360);
            assert_eq!((bar.0.position(), bar.0.length()), (done as u64, Some(360)));
        }
        bar.begin("encode", 1000);
        assert_eq!((bar.0.position(), bar.0.length()), (0, Some(1000)));
    }
}
