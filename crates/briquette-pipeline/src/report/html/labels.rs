//! Labels beside the points of a drawing, placed without overlaps.

use crate::report::width::width;

/// Width of a text column in pixels, in the page's smallest font; wide characters count as two.
const COLUMN: f64 = 6.4;
/// Pixels from a point to its label, and the height of the label.
const GAP: f64 = 8.0;
const LINE: f64 = 12.0;
/// Pixels between a vertical line at a point and a label beside it.
const ASIDE: f64 = 4.0;

/// A rectangle of a drawing, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DrawnBox {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// The position of a label beside its point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LabelPlace {
    /// The SVG text anchor at the point.
    pub(super) anchor: &'static str,
    /// Pixels to the right of the point, and down to the baseline.
    pub(super) dx: f64,
    /// See `dx`.
    pub(super) dy: f64,
}

/// The free and the occupied space of a drawing.
///
/// Labels that do not overlap in a narrow drawing do not overlap in a wider one, because points move apart and
/// texts keep their width.
#[derive(Debug)]
pub(super) struct LabelRoom {
    all: DrawnBox,
    taken: Vec<DrawnBox>,
}

impl DrawnBox {
    /// Returns a box around a point.
    pub(super) fn around(x: f64, y: f64, by: f64) -> Self {
        Self { left: x - by, right: x + by, top: y - by, bottom: y + by }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn holds(&self, other: &Self) -> bool {
        self.left <= other.left && other.right <= self.right && self.top <= other.top && other.bottom <= self.bottom
    }
}

impl LabelRoom {
    /// Creates an empty drawing.
    pub(super) fn of(all: DrawnBox) -> Self {
        Self { all, taken: Vec::new() }
    }

    /// Marks a box as occupied.
    pub(super) fn take(&mut self, part: DrawnBox) {
        self.taken.push(part);
    }

    /// Occupies the first free position beside a point.
    ///
    /// Positions above come first if `above_first`, else those below. On each side, the order is middle, left,
    /// right.
    pub(super) fn place(&mut self, [x, y]: [f64; 2], text: &str, above_first: bool) -> Option<LabelPlace> {
        let length = width(text) as f64 * COLUMN;
        let sides = if above_first { [-GAP - LINE, GAP] } else { [GAP, -GAP - LINE] };
        for top in sides {
            for (anchor, share, dx) in [("middle", 0.5, 0.0), ("end", 1.0, -ASIDE), ("start", 0.0, ASIDE)] {
                let left = x + dx - share * length;
                let part = DrawnBox { left, right: left + length, top: y + top, bottom: y + top + LINE };
                if self.all.holds(&part) && !self.taken.iter().any(|other| other.meets(&part)) {
                    self.take(part);
                    return Some(LabelPlace { anchor, dx, dy: top + LINE - 2.0 });
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_take_free_positions_only() {
        let mut room = LabelRoom::of(DrawnBox { left: 0.0, right: 100.0, top: 0.0, bottom: 60.0 });
        let anchor = |place: Option<LabelPlace>| place.map(|place| (place.anchor, place.dy < 0.0));
        assert_eq!(anchor(room.place([50.0, 30.0], "12 MB", true)), Some(("middle", true)));
        assert_eq!(
            anchor(room.place([50.0, 30.0], "12 MB", true)),
            Some(("middle", false)),
            "below, as above is taken"
        );
        assert_eq!(anchor(room.place([50.0, 30.0], "12 MB", true)), None);
        assert_eq!(anchor(room.place([98.0, 30.0], "12", true)), Some(("end", true)), "it would leave the drawing");
        assert_eq!(anchor(room.place([2.0, 30.0], "12", false)), Some(("start", false)));
        assert_eq!(anchor(room.place([50.0, 59.0], "much longer than that", true)), None);
        room.take(DrawnBox::around(2.0, 15.0, 5.0));
        assert_eq!(anchor(room.place([2.0, 30.0], "12", true)), None, "above is a point, below the other label");
    }
}
