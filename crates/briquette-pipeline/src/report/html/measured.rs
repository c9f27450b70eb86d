//! Each figure with how it was measured.

use super::escape::escape;
use super::frame::scrolling;
use crate::report::{Footprint, Report, numbers};
use maud::{Markup, html};

/// Returns the tables of figures.
pub(super) fn section(report: &Report) -> Markup {
    let sizes = html! {
        table class="figures" {
            thead { (headings()) }
            tbody {
                (in_bytes(report))
                (by_element(report))
            }
        }
    };
    html! {
        section aria-labelledby="measured" {
            h2 id="measured" { "Bytes, measured" }
            (scrolling("measured", &sizes))
            h3 { "The run" }
            table class="run" { tbody { (run(report)) } }
        }
    }
}

/// Returns the headings of a table of figures.
pub(super) fn headings() -> Markup {
    html! {
        tr {
            th scope="col" { "Figure" }
            th scope="col" { "Before" }
            th scope="col" { "After" }
            th scope="col" { "How it was measured" }
        }
    }
}

/// Returns a figure before and after, and how it was measured.
fn row(figure: &str, before: &Markup, after: &Markup, how: &str) -> Markup {
    html! {
        tr {
            th scope="row" { (figure) }
            td class="num" { (before) }
            td class="num" { (after) }
            td class="how" { (how) }
        }
        "\n"
    }
}

fn in_bytes(report: &Report) -> Markup {
    let (before, after) = (&report.before, &report.after);
    let count = |n: u64| html! { (numbers::count(n)) };
    let (predicted, bound) = numbers::predicted(report);
    let predicted = html! { small { (bound) } " " (count(predicted)) };
    html! {
        (row("Bytes on disk", &count(before.file_bytes), &count(after.file_bytes),
            "sizes of the weight files, as the file system reports them"))
        (row("Predicted bytes on disk", &Markup::default(), &predicted, "from the plan, before the run"))
        (row("Bytes of tensors", &count(before.tensor_bytes), &count(after.tensor_bytes),
            "without file headers: their size in memory as stored"))
    }
}

fn by_element(report: &Report) -> Markup {
    let (before, after) = (&report.before, &report.after);
    let bits = |of: &Footprint| html! { (numbers::bits_per_weight(of.tensor_bytes, of.n_elements)) };
    let elements = |of: &Footprint| html! { (numbers::count(of.n_elements)) };
    let zeros = |of: &Footprint| {
        html! {
            @match of.n_zeros {
                Some(n) => { (numbers::count(n)) " " small { (numbers::percent(numbers::share(n, of.n_elements))) } }
                None => small { "not counted" }
            }
        }
    };
    html! {
        (row("Bits per weight", &bits(before), &bits(after),
            "bits of all tensors over elements, with scales and masks"))
        (row("Elements", &elements(before), &elements(after), "from the shapes"))
        (row("Zeros", &zeros(before), &zeros(after), "elements equal to zero, in the values read back and decoded"))
    }
}

fn run(report: &Report) -> Markup {
    let longest = report.seconds.iter().map(|(_, seconds)| *seconds).filter(|s| s.is_finite()).fold(0.0, f64::max);
    let width =
        |seconds: f64| if longest > 0.0 && seconds.is_finite() { 100.0 * seconds.max(0.0) / longest } else { 0.0 };
    let bar = |width: f64| {
        html! {
            svg height="8" aria-hidden="true" {
                rect class="after" height="8" width=(format_args!("{width:.1}%")) {}
            }
        }
    };
    let how = match report.trained.is_empty() {
        true => "wall clock of the whole run, up to writing this report",
        false => "wall clock of the whole run, up to writing this report, with training steps before a kill",
    };
    let peak = report.peak_bytes.map_or("not measured".into(), numbers::bytes);
    let meter = if report.peak_meter.is_empty() { String::new() } else { format!(", {}", report.peak_meter) };
    let (none, seconds) = (Markup::default(), numbers::seconds);
    html! {
        @for (phase, taken) in &report.seconds { (run_row(phase, &bar(width(*taken)), &seconds(*taken), "")) }
        (run_row("Total", &none, &seconds(report.total_seconds), how))
        (run_row("Threads", &none, &report.threads.to_string(), "worker threads"))
        (run_row("Peak memory", &none, &peak, &format!("peak memory of this process{meter}")))
    }
}

fn run_row(figure: &str, bar: &Markup, value: &str, how: &str) -> Markup {
    html! {
        tr {
            th scope="row" { (escape(figure)) }
            td class="time" { (bar) }
            td class="num" { (value) }
            td class="how" { (escape(how)) }
        }
        "\n"
    }
}
