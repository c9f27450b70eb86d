//! One plot of a frontier: models by bytes and a metric.

use crate::report::figures::REFERENCE;
use crate::report::html::axis::PlotAxis;
use crate::report::html::best::best;
use crate::report::html::escape::escape;
use crate::report::html::labels::{DrawnBox, LabelRoom};
use crate::report::html::way;
use crate::report::numbers;
use crate::report::width::{fit, width};
use briquette_recipe::is_more_better;
use maud::{Markup, html};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Largest number of models in a plot; models of the frontier come first.
const MAX_POINTS: usize = 1000;
/// Largest number of originals in a plot.
const MAX_ORIGINALS: usize = 3;
/// Larger values are from broken models and would hide the differences of the others.
const MAX_VALUE: f64 = 1e6;
/// Height of a plot, and its width on a narrow phone, in pixels. Labels that fit there fit everywhere.
const HEIGHT: f64 = 260.0;
const NARROW: f64 = 270.0;
/// Space above the plot for labels of the highest points.
const ABOVE: f64 = 22.0;
/// Longest name of a label, and of the text of a point under the pointer, in text columns.
const LABEL_COLUMNS: usize = 16;
const TOLD_COLUMNS: usize = 30;

/// A model to choose: from a job, or from another run.
pub(super) struct ShownModel<'a> {
    pub(super) name: &'a str,
    pub(super) output: Option<&'a Path>,
    pub(super) bytes: u64,
    pub(super) metrics: &'a BTreeMap<String, Option<f64>>,
    pub(super) is_job: bool,
}

/// A model with its value of one metric.
pub(super) struct FrontierPoint<'a> {
    model: &'a ShownModel<'a>,
    value: f64,
    is_best: bool,
}

/// Models by bytes and one metric, ordered by bytes.
pub(super) struct FrontierPlot<'a> {
    metric: &'a str,
    points: Vec<FrontierPoint<'a>>,
    originals: Vec<f64>,
    n_undrawn: usize,
    across: PlotAxis,
    up: PlotAxis,
}

/// Returns a metric, if it can be drawn.
fn drawable(metrics: &BTreeMap<String, Option<f64>>, name: &str) -> Option<f64> {
    // NaN fails this comparison.
    metrics.get(name).copied().flatten().filter(|value| value.abs() <= MAX_VALUE)
}

impl<'a> FrontierPlot<'a> {
    /// Returns the plot; `None` if fewer than two models have the metric.
    pub(super) fn of(models: &'a [ShownModel<'a>], metric: &'a str) -> Option<Self> {
        let point = |model| Some(FrontierPoint { model, value: drawable(model.metrics, metric)?, is_best: false });
        let mut points: Vec<FrontierPoint> = models.iter().filter_map(point).collect();
        if points.len() < 2 {
            return None;
        }
        let places: Vec<(u64, f64)> = points.iter().map(|point| (point.model.bytes, point.value)).collect();
        for place in best(&places, is_more_better(metric)) {
            points[place].is_best = true;
        }
        points.sort_by_key(|point| !point.is_best);
        points.truncate(MAX_POINTS);
        points.sort_by_key(|point| point.model.bytes);
        let originals = originals(models, metric);
        let (across, up) = axes(&points, &originals);
        Some(Self { metric, n_undrawn: models.len() - points.len(), points, originals, across, up })
    }

    /// Returns whether the plot has a job, or an output of another run.
    pub(super) fn has(&self, is_job: bool) -> bool {
        self.points.iter().any(|point| point.model.is_job == is_job)
    }

    /// Returns whether the plot has a value of an original.
    pub(super) fn has_originals(&self) -> bool {
        !self.originals.is_empty()
    }

    /// Returns the position in percent from the left and from the top.
    fn place(&self, point: &FrontierPoint) -> [f64; 2] {
        [self.across.place(point.model.bytes as f64), self.height(point.value)]
    }

    fn height(&self, value: f64) -> f64 {
        100.0 - self.up.place(value)
    }

    fn best(&self) -> impl Iterator<Item = &FrontierPoint<'a>> {
        self.points.iter().filter(|point| point.is_best)
    }

    /// Returns the figure; links are relative to a page in `directory`.
    pub(super) fn to_html(&self, directory: &Path) -> Markup {
        let mut room = self.room();
        let originals = self.originals(&mut room);
        for value in &self.originals {
            let y = pixels([0.0, self.height(*value)])[1];
            room.take(DrawnBox { left: 0.0, right: NARROW, top: y - 1.0, bottom: y + 1.0 });
        }
        let (n, n_best) = (self.points.len(), self.best().count());
        let (step, most) = (self.across.step(), self.across.high());
        html! {
            figure class="frontier" {
                figcaption { (self.caption()) }
                (self.up.labels_upwards(HEIGHT))
                svg class="models" height=(HEIGHT) role="group" aria-label={
                    (escape(self.metric)) " by bytes: " (n) " models, " (n_best) " of them best for their size"
                } {
                    (self.across.grid())
                    (self.up.grid_upwards())
                    (self.line())
                    "\n"
                    (originals)
                    // Labels of the front are placed in order and drawn with their points.
                    @for point in &self.points { (self.mark(point, &mut room, directory)) "\n" }
                }
                (self.across.labels(|tick| numbers::bytes_on_scale(tick, step, most), |_| String::new()))
                p class="fine" { "bytes of weight files" }
            }
        }
    }

    fn caption(&self) -> Markup {
        let (low, high) = ends(self.points.iter().map(|point| point.value));
        let which = if is_more_better(self.metric) { "higher is better" } else { "lower is better" };
        let decimal = |value: f64| numbers::decimal(value, 4);
        let originals: Vec<String> = self.originals.iter().copied().map(decimal).collect();
        html! {
            b { (escape(self.metric)) } " "
            small {
                (which) "; from " (decimal(low)) " to " (decimal(high))
                @if !originals.is_empty() { "; the original has " (originals.join(", ")) }
                @if self.n_undrawn > 0 { "; " (self.n_undrawn) " more are not drawn" }
            }
        }
    }

    /// Returns the staircase through the front: the best value for each number of bytes.
    fn line(&self) -> Markup {
        let mut path = String::new();
        for (number, point) in self.best().enumerate() {
            let [x, y] = self.place(point);
            let _ = if number == 0 { write!(path, "M{x:.2} {y:.2}") } else { write!(path, "H{x:.2}V{y:.2}") };
        }
        html! {
            svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true" {
                path class="edge" d={ (path) "H100" } {}
            }
        }
    }

    /// Returns the free space of the narrowest drawing, without the points and the line.
    fn room(&self) -> LabelRoom {
        let mut room = LabelRoom::of(DrawnBox { left: 0.0, right: NARROW, top: -ABOVE, bottom: HEIGHT });
        for point in &self.points {
            let [x, y] = pixels(self.place(point));
            room.take(DrawnBox::around(x, y, 7.0));
        }
        let best: Vec<[f64; 2]> = self.best().map(|point| pixels(self.place(point))).collect();
        for pair in best.windows(2) {
            let ([x1, y1], [x2, y2]) = (pair[0], pair[1]);
            room.take(DrawnBox { left: x1, right: x2, top: y1 - 1.0, bottom: y1 + 1.0 });
            room.take(DrawnBox { left: x2 - 1.0, right: x2 + 1.0, top: y1.min(y2), bottom: y1.max(y2) });
        }
        room
    }

    /// Returns a dashed line for each original, with a text if there is space.
    fn originals(&self, room: &mut LabelRoom) -> Markup {
        html! {
            @for value in &self.originals {
                @let y = self.height(*value);
                @let words = format!("original {}", numbers::decimal(*value, 4));
                line class="original" x1="0" x2="100%" y1=(format_args!("{y:.2}%")) y2=(format_args!("{y:.2}%")) {
                    title { (words) }
                }
                @if let Some(label) = [0.0, 100.0].into_iter().find_map(|x| text_at([x, y], &words, true, room)) {
                    (label)
                }
                "\n"
            }
        }
    }

    /// Returns the name of a point, or its bytes if the name is too long, on the better side of the point.
    fn label(&self, point: &FrontierPoint, room: &mut LabelRoom) -> Option<Markup> {
        let texts = [point.model.name.to_string(), numbers::bytes(point.model.bytes)];
        let mut texts = texts.iter().filter(|text| width(text) <= LABEL_COLUMNS);
        let above_first = is_more_better(self.metric);
        texts.find_map(|text| text_at(self.place(point), text, above_first, room))
    }

    /// Returns a point with its tooltip, as a link to its page if there is one; the best models have labels.
    fn mark(&self, point: &FrontierPoint, room: &mut LabelRoom, directory: &Path) -> Markup {
        let FrontierPoint { model, value, is_best } = point;
        let figures = format!("{}, {}", numbers::decimal(*value, 4), numbers::bytes(model.bytes));
        let told = format!("{}: {figures}", fit(&numbers::printable(model.name), TOLD_COLUMNS));
        let [x, y] = self.place(point);
        let content = html! {
            title { (escape(&format!("{}: {} {figures}", model.name, self.metric))) }
            @if model.is_job {
                circle class="dot" cx=(format_args!("{x:.2}%")) cy=(format_args!("{y:.2}%")) r="6" {}
            } @else {
                svg x=(format_args!("{x:.2}%")) y=(format_args!("{y:.2}%")) {
                    path class="other" d="M0-7 7 0 0 7-7 0z" {}
                }
            }
            @if *is_best && let Some(label) = self.label(point, room) { (label) }
            text class="told" x="100%" y="-28" text-anchor="end" { (escape(&told)) }
        };
        let class = if *is_best { "model best" } else { "model" };
        html! {
            @match model.output.and_then(|output| way::to_report(directory, output)) {
                Some(way) => a class=(class) href=(way) { (content) }
                None => g class=(class) { (content) }
            }
        }
    }
}

/// Returns the values of the originals, without values that print the same.
fn originals(models: &[ShownModel], metric: &str) -> Vec<f64> {
    let name = format!("{REFERENCE}{metric}");
    let mut found: Vec<f64> = models.iter().filter_map(|model| drawable(model.metrics, &name)).collect();
    found.sort_by(f64::total_cmp);
    found.dedup_by_key(|value| numbers::decimal(*value, 4));
    found.truncate(MAX_ORIGINALS);
    found
}

/// Returns scales that contain all points; they begin at zero only if a point is near zero.
fn axes(points: &[FrontierPoint], originals: &[f64]) -> (PlotAxis, PlotAxis) {
    let (least, most) = ends(points.iter().map(|point| point.model.bytes as f64));
    // Widens the range of nearly equal sizes, so that ticks have few digits.
    let room = ((0.02 * most).max(6.0) - (most - least)).max(0.0) / 2.0;
    let across = PlotAxis::in_steps((least - room).max(0.0), most + room, 4.0);
    let (low, high) = ends(points.iter().map(|point| point.value).chain(originals.iter().copied()));
    let size = low.abs().max(high.abs());
    let room = if high - low < 1e-5 * size { 0.01 * size } else { 0.0 };
    (across, PlotAxis::in_steps(low - room, high + room, 5.0))
}

/// Returns the smallest and the largest value.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// Returns a position in the narrowest drawing.
fn pixels([x, y]: [f64; 2]) -> [f64; 2] {
    [x * NARROW / 100.0, y * HEIGHT / 100.0]
}

/// Returns a label beside a position, if there is space.
fn text_at(at: [f64; 2], text: &str, above_first: bool, room: &mut LabelRoom) -> Option<Markup> {
    let place = room.place(pixels(at), text, above_first)?;
    let ([x, y], anchor) = (at, place.anchor);
    Some(html! {
        text class="beside" x=(format_args!("{x:.2}%")) y=(format_args!("{y:.2}%"))
            dx=(format_args!("{:.0}", place.dx)) dy=(format_args!("{:.0}", place.dy)) text-anchor=(anchor) {
            (escape(text))
        }
    })
}
