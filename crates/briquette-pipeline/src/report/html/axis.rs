//! A scale: positions of values in percent of the width, and grid lines.

use crate::report::numbers;
use maud::{Markup, html};

/// A linear scale from `low` to `high`, with ticks.
#[derive(Debug)]
pub(super) struct PlotAxis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl PlotAxis {
    /// Returns a scale that contains `low` and `high` and has at most six steps of 1, 2 or 5 times a power of
    /// ten.
    pub(super) fn holding(low: f64, high: f64) -> Self {
        Self::in_steps(low, high, 6.0)
    }

    /// Returns a scale like [`holding`](Self::holding) with at most `n_most` steps between the values.
    pub(super) fn in_steps(low: f64, high: f64, n_most: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let rough = (high - low) / n_most;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let ticks: Vec<f64> = (first..=last).map(|tick| tick as f64 * step).collect();
        Self { low: first as f64 * step, high: last as f64 * step, ticks }
    }

    /// Returns a scale of shares, from 0 to 1.
    pub(super) fn of_shares() -> Self {
        Self { low: 0.0, high: 1.0, ticks: vec![0.0, 0.25, 0.5, 0.75, 1.0] }
    }

    /// Returns the position of a value in percent of the width, clamped to the scale.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        if share.is_finite() { 100.0 * share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns a thin line at each tick, for the drawing of a row.
    pub(super) fn grid(&self) -> Markup {
        html! {
            @for x in self.ticks.iter().map(|tick| self.place(*tick)) {
                line class="grid" x1=(format_args!("{x:.2}%")) x2=(format_args!("{x:.2}%")) y1="0" y2="100%" {}
            }
        }
    }

    /// Returns the lines of a vertical scale.
    pub(super) fn grid_upwards(&self) -> Markup {
        html! {
            @for y in self.ticks.iter().map(|tick| 100.0 - self.place(*tick)) {
                line class="grid" x1="0" x2="100%" y1=(format_args!("{y:.2}%")) y2=(format_args!("{y:.2}%")) {}
            }
        }
    }

    /// Returns the distance of two ticks.
    pub(super) fn step(&self) -> f64 {
        (self.high - self.low) / (self.ticks.len() - 1).max(1) as f64
    }

    /// Returns the end of the scale.
    pub(super) fn high(&self) -> f64 {
        self.high
    }

    /// Returns the numbers of a vertical scale, to its left, with enough digits to differ.
    pub(super) fn labels_upwards(&self, height: f64) -> Markup {
        let n_digits = numbers::digits_of_step(self.step());
        html! {
            svg class="axis" height=(height) aria-hidden="true" {
                @for tick in &self.ticks {
                    @let y = 100.0 - self.place(*tick);
                    text x="100%" y=(format_args!("{y:.2}%")) dy="4" text-anchor="end" {
                        (numbers::decimal(*tick, n_digits))
                    }
                }
            }
        }
    }

    /// Returns the text of each tick as one drawing above the rows, with a second line if `below` has text.
    pub(super) fn labels(&self, above: impl Fn(f64) -> String, below: impl Fn(f64) -> String) -> Markup {
        let has_two = self.ticks.iter().any(|tick| !below(*tick).is_empty());
        let anchor = |place: usize| match place {
            0 => "start",
            place if place + 1 == self.ticks.len() => "end",
            _ => "middle",
        };
        html! {
            svg class="axis" height=(if has_two { 32 } else { 18 }) aria-hidden="true" {
                @for (place, tick) in self.ticks.iter().enumerate() {
                    @let (x, anchor) = (self.place(*tick), anchor(place));
                    text x=(format_args!("{x:.2}%")) y="12" text-anchor=(anchor) { (above(*tick)) }
                    @if has_two {
                        text class="fine" x=(format_args!("{x:.2}%")) y="26" text-anchor=(anchor) { (below(*tick)) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_contain_both_ends() {
        let axis = PlotAxis::holding(0.0, 43.2);
        assert_eq!(axis.ticks, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!((axis.place(0.0), axis.place(25.0), axis.place(1e9), axis.place(f64::NAN)), (0.0, 50.0, 100.0, 0.0));
        assert_eq!(PlotAxis::holding(0.0, 0.0).ticks.len(), 6);
    }

    #[test]
    fn a_vertical_scale_has_its_largest_tick_on_top_and_distinct_labels() {
        let axis = PlotAxis::in_steps(0.912, 0.9995, 4.0);
        let labels = axis.labels_upwards(100.0).0;
        let first = labels.find("y=\"100.00%\" dy=\"4\" text-anchor=\"end\">0.90<").unwrap();
        assert!(first < labels.find("y=\"0.00%\" dy=\"4\" text-anchor=\"end\">1.00<").unwrap());
        assert_eq!(labels.matches("<text").count(), axis.grid_upwards().0.matches("<line").count());
    }
}
