//! Labels beside the points of a drawing, where they cover nothing.

use crate::width::width;

/// Pixels that a column of text takes, in the page's smallest letters; wide ones are guessed to be as wide as two.
const COLUMN: f64 = 6.4;
/// Pixels from a point to the near side of its label, and how high that is.
const GAP: f64 = 8.0;
const LINE: f64 = 12.0;
/// Pixels between a line that goes up or down from a point, and what stands to the side of it.
const ASIDE: f64 = 4.0;

/// A rectangle of a drawing, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DrawnBox {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// Where a label stands beside its point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LabelPlace {
    /// What of the text lies at the point, as SVG has it.
    pub(super) anchor: &'static str,
    /// Pixels from the point to the right, and down to the line that letters stand on.
    pub(super) dx: f64,
    /// See `dx`.
    pub(super) dy: f64,
}

/// The room of a drawing, and what of it is taken. What covers nothing in a narrow drawing covers nothing in a wider one, where all
/// points are further apart and texts as wide as before.
#[derive(Debug)]
pub(super) struct LabelRoom {
    all: DrawnBox,
    taken: Vec<DrawnBox>,
}

impl DrawnBox {
    /// Around a point.
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
    /// All of it is free.
    pub(super) fn of(all: DrawnBox) -> Self {
        Self { all, taken: Vec::new() }
    }

    /// Nothing else may be there.
    pub(super) fn take(&mut self, part: DrawnBox) {
        self.taken.push(part);
    }

    /// Takes the first place beside a point where a text covers nothing: above it or below it, whichever is to be tried first;
    /// in the middle, to the left, to the right.
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
    fn a_label_goes_where_nothing_is_and_nowhere_if_there_is_no_such_place() {
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
