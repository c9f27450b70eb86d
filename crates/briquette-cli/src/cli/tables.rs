//! Tables and numbers for people.

use briquette::core::printable::printable;
use briquette::flow::plan::Prediction;
use briquette::flow::{Cut, Plan, TensorPlan};
use briquette::pipeline::diff::Diff;
use briquette::pipeline::inspect::{Inspection, TensorInspection};
use briquette::pipeline::memory::{Need, Needs};
pub(crate) use briquette::pipeline::report::numbers::bytes;
use briquette::pipeline::report::{AllocatedTensor, AllocationReport, untested_text};
use std::fmt::Write;
use std::io;

/// Columns of text, the first left-aligned, numbers right-aligned. Whatever a cell holds, it keeps to its line.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = Vec::new();
    // Writing to memory does not fail.
    let _ = put_table(&mut out, headings, rows.len(), &|row| rows[row].clone());
    String::from_utf8_lossy(&out).into_owned()
}

/// The same of so many rows, each made where it is asked for, which is twice.
fn put_table(
    out: &mut dyn io::Write,
    headings: &[&str],
    n_rows: usize,
    row: &dyn Fn(usize) -> Vec<String>,
) -> io::Result<()> {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.len()).collect();
    let mut is_number: Vec<bool> = (0..headings.len()).map(|column| column > 0).collect();
    let numeric =
        |cell: &str| ["", "-", "NaN", "inf"].contains(&cell) || cell.starts_with(|c: char| c.is_ascii_digit());
    let row = |number: usize| row(number).iter().map(|cell| printable(cell)).collect::<Vec<String>>();
    for cells in (0..n_rows).map(row) {
        for ((cell, width), is_number) in cells.iter().zip(&mut widths).zip(&mut is_number) {
            *width = cell.chars().count().max(*width);
            *is_number &= numeric(cell);
        }
    }
    let headings: Vec<String> = headings.iter().map(ToString::to_string).collect();
    for row in std::iter::once(headings).chain((0..n_rows).map(row)) {
        let cells = row.iter().zip(&widths).zip(&is_number).map(|((cell, width), is_number)| {
            if *is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line: Vec<String> = cells.collect();
        writeln!(out, "{}", line.join("  ").trim_end())?;
    }
    Ok(())
}

fn shape(extents: &[usize]) -> String {
    let extents: Vec<String> = extents.iter().map(usize::to_string).collect();
    format!("[{}]", extents.join(", "))
}

/// What a model is made of.
pub(crate) fn inspection(out: &mut dyn io::Write, found: &Inspection) -> io::Result<()> {
    let headings = ["tensor", "role", "type", "shape", "bytes", "zeros", "kept as", "why this role"];
    put_table(out, &headings, found.tensors.len(), &|index| inspection_row(&found.tensors.get(index)))?;
    writeln!(
        out,
        "\n{}: {}, {} tensors, {} elements, {} in weight files, already compressed: {}",
        printable(&found.path),
        found.format,
        found.tensors.len(),
        found.n_elements,
        bytes(found.file_bytes),
        found.compressed
    )?;
    found.notes().iter().try_for_each(|note| writeln!(out, "{note}"))
}

fn inspection_row(tensor: &TensorInspection) -> Vec<String> {
    let zeros = tensor.n_zeros.map_or(String::from("-"), |n| {
        format!("{:.1} %", 100.0 * n as f64 / tensor.shape.iter().product::<usize>().max(1) as f64)
    });
    vec![
        tensor.name.to_string(),
        tensor.role.name().into(),
        tensor.dtype.to_string(),
        shape(tensor.shape),
        bytes(tensor.n_bytes),
        zeros,
        tensor.encoding.to_string(),
        tensor.why.into(),
    ]
}

/// What becomes of each tensor, and the bytes in all.
pub(crate) fn plan(out: &mut dyn io::Write, plan: &Plan, prediction: Prediction, file_bytes: u64) -> io::Result<()> {
    let headings = ["tensor", "role", "type", "shape", "prune", "stored as", "remark"];
    put_table(out, &headings, plan.tensors.len(), &|index| plan_row(&plan.tensors[index], plan))?;
    let bound = if prediction.is_exact { "exactly" } else { "at most" };
    let ratio = file_bytes as f64 / prediction.n_bytes.max(1) as f64;
    writeln!(
        out,
        "\npredicted weight files: {bound} {} ({} now, {ratio:.2}x)",
        bytes(prediction.n_bytes),
        bytes(file_bytes)
    )?;
    let others = plan.unsure_text().into_iter().chain(plan.untested.as_deref().map(untested_text));
    for remark in plan.remarks.iter().cloned().chain(others) {
        writeln!(out, "{remark}")?;
    }
    Ok(())
}

fn plan_row(tensor: &TensorPlan, plan: &Plan) -> Vec<String> {
    let tied = tensor.tied_to().map(|main| format!("tied to {}", plan.tensors[main].info.name));
    vec![
        tensor.info.name.clone(),
        tensor.role.name().into(),
        tensor.info.dtype.to_string(),
        shape(&tensor.info.shape.0),
        prune_words(tensor, plan),
        stored_words(tensor),
        tied.or_else(|| tensor.skipped.clone()).unwrap_or_default(),
    ]
}

/// What running models takes at least, and what it may.
/// The steps that a budget leads to, and what is foretold of each.
pub(crate) fn allocation(out: &mut dyn io::Write, found: &AllocationReport) -> io::Result<()> {
    let total: f64 = found.tensors.iter().map(|tensor| tensor.loss).sum();
    let row = |tensor: &AllocatedTensor| {
        vec![
            printable(&tensor.name),
            tensor.scheme.clone(),
            format!("{:.2}", tensor.bits()),
            bytes(tensor.bytes as u64),
            format!("{:.3e}", tensor.sensitivity),
            format!("{:.3e}", tensor.loss),
        ]
    };
    writeln!(
        out,
        "\nSteps so that {}, as far as weights show it; what errors cost is by {}, in {}:",
        found.target, found.how, found.unit
    )?;
    let rows: Vec<Vec<String>> = found.tensors.iter().map(row).collect();
    let headings = ["tensor", "scheme", "bits", "bytes", "loss at four bits", "loss"];
    writeln!(out, "{}\nall together lose {total:.3e} by this reckoning", table(&headings, &rows).trim_end())
}

pub(crate) fn needs(needs: &Needs) -> String {
    let most =
        needs.limit_bytes.map_or(String::new(), |limit| format!(", of {} that memory.limit allows", bytes(limit)));
    let line = |need: &Need| {
        format!("predicted memory: at least {} to {}{most}\n", bytes(need.weights_bytes), printable(&need.what))
    };
    needs.runs.iter().map(line).collect()
}

fn prune_words(tensor: &TensorPlan, plan: &Plan) -> String {
    let n = tensor.info.n_elements().max(1) as f64;
    match tensor.prune.map(|prune| prune.cut) {
        None => "-".into(),
        Some(Cut::Count(n_drop)) => format!("{:.1} %", 100.0 * n_drop as f64 / n),
        Some(Cut::OfEach { size, n_drop }) => {
            format!("{:.1} % of each row", 100.0 * n_drop as f64 / size.max(1) as f64)
        }
        Some(Cut::Columns { size, n_drop }) => format!("{n_drop} of {size} columns"),
        Some(Cut::Given) => "by its mask".into(),
        Some(Cut::NOfM { n, m }) => format!("{n}:{m}"),
        Some(Cut::Pool(pool)) => format!("{:.1} % globally", 100.0 * plan.pools[pool].ratio.get()),
    }
}

/// `8-bit per channel`, `F16`, or nothing of its own.
fn stored_words(tensor: &TensorPlan) -> String {
    match (tensor.quant, tensor.cast) {
        (Some(quant), _) => format!("{}-bit {}", quant.spec.grid.n_bits(), quant.spec.grouping),
        (None, Some(dtype)) => dtype.to_string(),
        (None, None) => "-".into(),
    }
}

/// How two models differ.
pub(crate) fn diff(diff: &Diff) -> String {
    let number =
        |value: Option<f64>, digits: usize| value.map_or(String::from("-"), |value| format!("{value:.digits$}"));
    let rows: Vec<Vec<String>> = diff
        .tensors
        .iter()
        .map(|tensor| {
            let error = tensor.error;
            vec![
                tensor.name.clone(),
                shape(&tensor.shape),
                error.map_or(String::from("-"), |error| format!("{:.3e}", error.max)),
                number(error.map(|error| error.relative), 5),
                number(error.and_then(|error| error.sqnr_db), 2),
                number(error.and_then(|error| error.cosine), 6),
            ]
        })
        .collect();
    let mut out = table(&["tensor", "shape", "max error", "relative", "SQNR dB", "cosine"], &rows);
    let n_equal = diff.tensors.iter().filter(|tensor| tensor.is_equal).count();
    let _ = writeln!(out, "\n{} tensors compared, {n_equal} equal", diff.tensors.len());
    let differ = diff.tensors.iter().filter(|tensor| tensor.error.is_none() && !tensor.is_equal);
    let differ = differ.map(|tensor| tensor.name.clone()).collect();
    for (what, names) in [
        ("no weights, and not equal", &differ),
        ("only in the first", &diff.only_in_first),
        ("only in the second", &diff.only_in_second),
        ("of another shape", &diff.other_shape),
        ("of another type", &diff.other_type),
    ] {
        if !names.is_empty() {
            let _ = writeln!(out, "{what}: {}", printable(&names.join(", ")));
        }
    }
    out
}
