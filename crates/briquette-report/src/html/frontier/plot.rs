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

/// Models that a plot shows; those of the frontier are always among them, if they are not more themselves.
const MAX_POINTS: usize = 1000;
/// Originals that a plot shows.
const MAX_ORIGINALS: usize = 3;
/// Larger values are those of broken models, and would hide what all others differ by.
const MAX_VALUE: f64 = 1e6;
/// Height of a plot, and its width on a narrow phone, in pixels. Labels that fit there fit everywhere.
const HEIGHT: f64 = 260.0;
const NARROW: f64 = 270.0;
/// Room above the plot for labels of the highest points.
const ABOVE: f64 = 22.0;
/// The longest name that is a label, and the longest that is told of a point under the pointer, in columns of text.
const LABEL_COLUMNS: usize = 16;
const TOLD_COLUMNS: usize = 30;

/// A model that may be chosen: what a job made, or what was made elsewhere.
pub(super) struct ShownModel<'a> {
    pub(super) name: &'a str,
    pub(super) output: Option<&'a Path>,
    pub(super) bytes: u64,
    pub(super) metrics: &'a BTreeMap<String, Option<f64>>,
    pub(super) is_job: bool,
}

/// A candidate with its value of one metric.
pub(super) struct FrontierPoint<'a> {
    model: &'a ShownModel<'a>,
    value: f64,
    is_best: bool,
}

/// Models by bytes and one metric, in the order of bytes.
pub(super) struct FrontierPlot<'a> {
    metric: &'a str,
    points: Vec<FrontierPoint<'a>>,
    originals: Vec<f64>,
    n_undrawn: usize,
    across: PlotAxis,
    up: PlotAxis,
}

/// A number that can be drawn.
fn drawable(metrics: &BTreeMap<String, Option<f64>>, name: &str) -> Option<f64> {
    // NaN is no less than anything.
    metrics.get(name).copied().flatten().filter(|value| value.abs() <= MAX_VALUE)
}

impl<'a> FrontierPlot<'a> {
    /// None where fewer than two models have the metric: there is nothing to choose.
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

    /// Whether it shows a job, or what was made elsewhere.
    pub(super) fn has(&self, is_job: bool) -> bool {
        self.points.iter().any(|point| point.model.is_job == is_job)
    }

    /// Whether it shows what an original has.
    pub(super) fn has_originals(&self) -> bool {
        !self.originals.is_empty()
    }

    /// Percent from the left and from the top.
    fn place(&self, point: &FrontierPoint) -> [f64; 2] {
        [self.across.place(point.model.bytes as f64), self.height(point.value)]
    }

    fn height(&self, value: f64) -> f64 {
        100.0 - self.up.place(value)
    }

    fn best(&self) -> impl Iterator<Item = &FrontierPoint<'a>> {
        self.points.iter().filter(|point| point.is_best)
    }

    /// The figure; links lead from a page in `directory`.
    pub(super) fn to_html(&self, directory: &Path) -> String {
        let mut room = self.room();
        let originals = self.originals(&mut room);
        for value in &self.originals {
            let y = pixels([0.0, self.height(*value)])[1];
            room.take(DrawnBox { left: 0.0, right: NARROW, top: y - 1.0, bottom: y + 1.0 });
        }
        let labels =
            self.points.iter().map(|point| if point.is_best { self.label(point, &mut room) } else { "".into() });
        // Labels of the best are placed in their order, and drawn with their points.
        let labels: Vec<String> = labels.collect();
        let marks: String =
            self.points.iter().zip(&labels).map(|(point, label)| self.mark(point, label, directory)).collect();
        let (step, most) = (self.across.step(), self.across.high());
        format!(
            "<figure class=\"frontier\"><figcaption>{caption}</figcaption>\n{values}\n\
             <svg class=\"models\" height=\"{HEIGHT}\" role=\"group\" aria-label=\"{metric} by bytes: {n} models, {n_best} of \
             them beaten by no other\">{across}{up}\n{line}\n{originals}{marks}</svg>\n{sizes}\n\
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
        let which = if is_more_better(self.metric) { "more is better" } else { "less is better" };
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

    /// Steps through the best: so good is what there is of at most so many bytes.
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

    /// What of the narrowest drawing is free: points and the line are not.
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

    /// A dashed line for each original, with words where they cover nothing.
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

    /// The name of a point, or its bytes where that is too long, on the side where nothing better is.
    fn label(&self, point: &FrontierPoint, room: &mut LabelRoom) -> String {
        let texts = [point.model.name.to_string(), numbers::bytes(point.model.bytes)];
        let mut texts = texts.iter().filter(|text| width(text) <= LABEL_COLUMNS);
        let above_first = is_more_better(self.metric);
        texts.find_map(|text| text_at(self.place(point), text, above_first, room)).unwrap_or_default()
    }

    /// A point with what is told of it, as a link to its own page where it has one.
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

/// What the originals of the models have, each value once as it is shown.
fn originals(models: &[ShownModel], metric: &str) -> Vec<f64> {
    let name = format!("{REFERENCE}{metric}");
    let mut found: Vec<f64> = models.iter().filter_map(|model| drawable(model.metrics, &name)).collect();
    found.sort_by(f64::total_cmp);
    found.dedup_by_key(|value| numbers::decimal(*value, 4));
    found.truncate(MAX_ORIGINALS);
    found
}

/// Scales that hold all points: neither begins at zero unless something is near it.
fn axes(points: &[FrontierPoint], originals: &[f64]) -> (PlotAxis, PlotAxis) {
    let (least, most) = ends(points.iter().map(|point| point.model.bytes as f64));
    // Of sizes that are nearly one, so that marks keep few digits.
    let room = ((0.02 * most).max(6.0) - (most - least)).max(0.0) / 2.0;
    let across = PlotAxis::in_steps((least - room).max(0.0), most + room, 4.0);
    let (low, high) = ends(points.iter().map(|point| point.value).chain(originals.iter().copied()));
    let size = low.abs().max(high.abs());
    let room = if high - low < 1e-5 * size { 0.01 * size } else { 0.0 };
    (across, PlotAxis::in_steps(low - room, high + room, 5.0))
}

/// The least and the most.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// A place in the narrowest drawing.
fn pixels([x, y]: [f64; 2]) -> [f64; 2] {
    [x * NARROW / 100.0, y * HEIGHT / 100.0]
}

/// A label beside a place, where it covers nothing.
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
