//! A figure made of rows: a name, a drawing on a common scale, a value. The words are text, so that they neither
//! shrink on a phone nor hide from a screen reader.

/// A row. All but `marks` is HTML.
#[derive(Debug)]
pub(super) struct FigureRow {
    /// What it is about.
    pub(super) label: String,
    /// Fine print beside the label.
    pub(super) note: String,
    /// What is drawn, as SVG.
    pub(super) marks: String,
    /// The value in words.
    pub(super) value: String,
}

/// A figure of rows.
#[derive(Debug)]
pub(super) struct RowFigure {
    /// Name of the figure in the page.
    pub(super) id: &'static str,
    /// What it shows.
    pub(super) title: &'static str,
    /// What to see in it, and how to read it: HTML.
    pub(super) lead: String,
    /// The scale's words; see [`super::axis::PlotAxis::labels`].
    pub(super) axis: String,
    /// From top to bottom.
    pub(super) rows: Vec<FigureRow>,
    /// Fine print below.
    pub(super) foot: String,
}

impl RowFigure {
    /// The figure.
    pub(super) fn to_html(&self) -> String {
        let Self { id, title, lead, axis, foot, .. } = self;
        let rows: String = self.rows.iter().map(row).collect();
        let foot = if foot.is_empty() { String::new() } else { format!("<p class=\"fine\">{foot}</p>\n") };
        format!(
            "<section aria-labelledby=\"{id}\">\n<figure>\n<figcaption><h2 id=\"{id}\">{title}</h2>\n<p>{lead}</p></figcaption>\n\
             <div class=\"scale\"><span></span>{axis}<span></span></div>\n<ul class=\"rows\">\n{rows}</ul>\n{foot}</figure>\n</section>\n"
        )
    }
}

/// Marks of a row that are drawn one by one.
const MAX_MARKS: usize = 200;

/// Where the marks of a row lie, in percent of the width: of very many, those that would lie on each other are one.
pub(super) fn marks(places: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut places: Vec<f64> = places.collect();
    if places.len() > MAX_MARKS {
        let n_steps = MAX_MARKS as f64;
        places.iter_mut().for_each(|place| *place = (*place * n_steps / 100.0).round() * 100.0 / n_steps);
        places.sort_by(f64::total_cmp);
        places.dedup();
    }
    places
}

fn row(row: &FigureRow) -> String {
    let FigureRow { label, note, marks, value } = row;
    let note = if note.is_empty() { String::new() } else { format!(" <small class=\"times\">{note}</small>") };
    format!(
        "<li class=\"row\"><span class=\"label\">{label}{note}</span>\
         <svg class=\"plot\" height=\"20\" aria-hidden=\"true\">{marks}</svg>\
         <span class=\"value\">{value}</span></li>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_marks_are_all_drawn_and_many_once_where_they_would_hide_each_other() {
        assert_eq!(marks([3.0, 1.0, 3.0].into_iter()), [3.0, 1.0, 3.0]);
        let many = marks((0..100_000).map(|i| f64::from(i) / 1000.0));
        assert_eq!((many.len(), many[0], many[200]), (201, 0.0, 100.0));
    }
}
