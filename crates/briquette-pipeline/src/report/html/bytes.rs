//! Bytes before and after, by tensor.

use super::axis::Axis;
use super::escape::name;
use super::family::{Family, MAX_ROWS, families};
use super::rows::{Row, Rows};
use crate::report::{Report, numbers};

/// The figure; nothing for a model without tensors.
pub(super) fn section(report: &Report) -> String {
    let mut families = families(&report.tensors);
    families.sort_by_key(|family| std::cmp::Reverse(family.before_bytes()));
    let Some(largest) = families.first() else { return String::new() };
    let lead = lead_of(largest, report);
    let rest = if families.len() > MAX_ROWS { families.split_off(MAX_ROWS - 1) } else { Vec::new() };
    if !rest.is_empty() {
        let members = rest.iter().flat_map(|family| family.members.iter().copied()).collect();
        families.push(Family { label: "all smaller ones".into(), members });
    }
    let extents = families.iter().map(|family| family.before_bytes().max(family.after_bytes()));
    let axis = Axis::holding(0.0, extents.max().unwrap_or(0) as f64);
    Rows {
        id: "bytes",
        title: "Bytes by tensor",
        lead,
        axis: axis.labels(|tick| numbers::bytes(tick as u64).replace(".00", ""), |_| String::new()),
        rows: families.iter().map(|family| row(family, &axis)).collect(),
        foot: String::new(),
    }
    .to_html()
}

fn lead_of(largest: &Family, report: &Report) -> String {
    let before = numbers::percent(numbers::share(largest.before_bytes(), report.before.tensor_bytes));
    let after = numbers::percent(numbers::share(largest.after_bytes(), report.after.tensor_bytes));
    let shared =
        if largest.members.len() == 1 { "" } else { " Tensors that differ in layer numbers only share a row." };
    format!(
        "<span class=\"key before\"></span> before, <span class=\"key after\"></span> after. \
         <b>{}</b> had {before} of the tensors' bytes and has {after} now.{shared}",
        name(&largest.label)
    )
}

fn row(family: &Family, axis: &Axis) -> Row {
    let (before, after) = (family.before_bytes(), family.after_bytes());
    let bar = |class: &str, n: u64, y: u32, height: u32| {
        let width = axis.place(n as f64);
        format!("<rect class=\"{class}\" y=\"{y}\" height=\"{height}\" width=\"{width:.2}%\"/>")
    };
    let value = if before == after {
        format!("{} <small>as before</small>", numbers::bytes(after))
    } else {
        format!("{} → {}", numbers::bytes(before), numbers::bytes(after))
    };
    Row {
        label: name(&family.label),
        note: family.note(),
        marks: axis.grid() + &bar("before", before, 2, 16) + &bar("after", after, 6, 8),
        value,
    }
}
