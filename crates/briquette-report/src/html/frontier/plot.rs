//! One plot of a frontier: models by bytes and a metric.

use crate::figures::REFERENCE;
use crate::html::axis::PlotAxis;
use crate::html::best::best;
use crate::html::escape::escape;
use crate::html::labels::{DrawnBox, LabelRoom};
use crate::html::way;
use crate::numbers;
use crate::width::{fit, width};
use briquette_recipe::is_more_better;
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
    pub(super) fn to_html(&self, directory: &Path) -> String {
        let mut room = self.room();
        let originals = self.originals(&mut room);
        for value in &self.originals {
            let y = pixels([0.0, self.height(*value)])[1];
            room.take(DrawnBox { left: 0.0, right: NARROW, top: y - 1.0, bottom: y + 1.0 });
        }
        let labels =
            self.points.iter().map(|point| if point.is_best { self.label(point, &mut room) } else { "".into() });
        // Labels of the front are placed in order and drawn with their points.
        let labels: Vec<String> = labels.collect();
        let marks: String =
            self.points.iter().zip(&labels).map(|(point, label)| self.mark(point, label, directory)).collect();
        let (step, most) = (self.across.step(), self.across.high());
        format!(
            "<figure class=\"frontier\"><figcaption>{caption}</figcaption>\n{values}\n\
             <svg class=\"models\" height=\"{HEIGHT}\" role=\"group\" aria-label=\"{metric} by bytes: {n} models, {n_best} of \
             them best for their size\">{across}{up}\n{line}\n{originals}{marks}</svg>\n{sizes}\n\
             <p class=\"fine\">bytes of weight files</p></figure>\n",
            caption = self.caption(),
            values = self.up.labels_upwards(HEIGHT),
            metric = escape(self.metric),
            n = self.points.len(),
            n_best = self.best().count(),
            across = self.across.grid(),
            up = self.up.grid_upwards(),
            line = self.line(),
            sizes = self.across.labels(|tick| numbers::bytes_on_scale(tick, step, most), |_| String::new()),
        )
    }

    fn caption(&self) -> String {
        let values = self.points.iter().map(|point| point.value);
        let (low, high) = ends(values);
        let which = if is_more_better(self.metric) { "higher is better" } else { "lower is better" };
        let decimal = |value: f64| numbers::decimal(value, 4);
        let mut about = format!("{which}; from {} to {}", decimal(low), decimal(high));
        let originals: Vec<String> = self.originals.iter().copied().map(decimal).collect();
        if !originals.is_empty() {
            let _ = write!(about, "; the original has {}", originals.join(", "));
        }
        if self.n_undrawn > 0 {
            let _ = write!(about, "; {} more are not drawn", self.n_undrawn);
        }
        format!("<b>{}</b> <small>{about}</small>", escape(self.metric))
    }

    /// Returns the staircase through the front: the best value for each number of bytes.
    fn line(&self) -> String {
        let mut path = String::new();
        for (number, point) in self.best().enumerate() {
            let [x, y] = self.place(point);
            let _ = if number == 0 { write!(path, "M{x:.2} {y:.2}") } else { write!(path, "H{x:.2}V{y:.2}") };
        }
        format!(
            "<svg viewBox=\"0 0 100 100\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <path class=\"edge\" d=\"{path}H100\"/></svg>"
        )
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
    fn originals(&self, room: &mut LabelRoom) -> String {
        self.originals.iter().fold(String::new(), |mut out, value| {
            let (y, words) = (self.height(*value), format!("original {}", numbers::decimal(*value, 4)));
            let _ = write!(
                out,
                "<line class=\"original\" x1=\"0\" x2=\"100%\" y1=\"{y:.2}%\" y2=\"{y:.2}%\"><title>{words}</title></line>"
            );
            let label = [0.0, 100.0].into_iter().find_map(|x| text_at([x, y], &words, true, room));
            out + &label.unwrap_or_default() + "\n"
        })
    }

    /// Returns the name of a point, or its bytes if the name is too long, on the better side of the point.
    fn label(&self, point: &FrontierPoint, room: &mut LabelRoom) -> String {
        let texts = [point.model.name.to_string(), numbers::bytes(point.model.bytes)];
        let mut texts = texts.iter().filter(|text| width(text) <= LABEL_COLUMNS);
        let above_first = is_more_better(self.metric);
        texts.find_map(|text| text_at(self.place(point), text, above_first, room)).unwrap_or_default()
    }

    /// Returns a point with its tooltip, as a link to its page if there is one.
    fn mark(&self, point: &FrontierPoint, label: &str, directory: &Path) -> String {
        let FrontierPoint { model, value, is_best } = point;
        let figures = format!("{}, {}", numbers::decimal(*value, 4), numbers::bytes(model.bytes));
        let title = escape(&format!("{}: {} {figures}", model.name, self.metric));
        let told = escape(&format!("{}: {figures}", fit(&numbers::printable(model.name), TOLD_COLUMNS)));
        let [x, y] = self.place(point);
        let shape = match model.is_job {
            true => format!("<circle class=\"dot\" cx=\"{x:.2}%\" cy=\"{y:.2}%\" r=\"6\"/>"),
            false => format!("<svg x=\"{x:.2}%\" y=\"{y:.2}%\"><path class=\"other\" d=\"M0-7 7 0 0 7-7 0z\"/></svg>"),
        };
        let class = if *is_best { "model best" } else { "model" };
        let content = format!(
            "<title>{title}</title>{shape}{label}<text class=\"told\" x=\"100%\" y=\"-28\" text-anchor=\"end\">{told}</text>"
        );
        match model.output.and_then(|output| way::to_report(directory, output)) {
            Some(way) => format!("<a class=\"{class}\" href=\"{way}\">{content}</a>\n"),
            None => format!("<g class=\"{class}\">{content}</g>\n"),
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
fn text_at(at: [f64; 2], text: &str, above_first: bool, room: &mut LabelRoom) -> Option<String> {
    let place = room.place(pixels(at), text, above_first)?;
    let ([x, y], anchor) = (at, place.anchor);
    Some(format!(
        "<text class=\"beside\" x=\"{x:.2}%\" y=\"{y:.2}%\" dx=\"{:.0}\" dy=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>",
        place.dx,
        place.dy,
        escape(text)
    ))
}
