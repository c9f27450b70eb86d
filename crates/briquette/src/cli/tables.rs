//! Tables and numbers for people.

use briquette::pipeline::diff::Diff;
use briquette::pipeline::inspect::Inspection;
use briquette::pipeline::memory::{Need, Needs};
use briquette::pipeline::plan::{Cut, Plan, TensorPlan};
pub(crate) use briquette::pipeline::report::numbers::bytes;
use std::fmt::Write;

/// Columns of text, the first left-aligned, numbers right-aligned.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let is_number = |column: usize| {
        let numeric = |cell: &String| {
            ["", "-", "NaN", "inf"].contains(&cell.as_str()) || cell.starts_with(|c: char| c.is_ascii_digit())
        };
        column > 0 && rows.iter().all(|row| numeric(&row[column]))
    };
    let shapes: Vec<(usize, bool)> = (0..headings.len()).map(|column| (width(column), is_number(column))).collect();
    let mut out = String::new();
    let headings: Vec<String> = headings.iter().map(ToString::to_string).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let cells =
            row.iter().zip(&shapes).map(
                |(cell, (width, is_number))| {
                    if *is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                },
            );
        let line: Vec<String> = cells.collect();
        let _ = writeln!(out, "{}", line.join("  ").trim_end());
    }
    out
}

fn shape(extents: &[usize]) -> String {
    let extents: Vec<String> = extents.iter().map(usize::to_string).collect();
    format!("[{}]", extents.join(", "))
}

/// What a model is made of.
pub(crate) fn inspection(found: &Inspection) -> String {
    let rows: Vec<Vec<String>> = found
        .tensors
        .iter()
        .map(|tensor| {
            let zeros = tensor.n_zeros.map_or(String::from("-"), |n| {
                format!("{:.1} %", 100.0 * n as f64 / tensor.shape.iter().product::<usize>().max(1) as f64)
            });
            vec![
                tensor.name.clone(),
                tensor.role.name().into(),
                tensor.dtype.clone(),
                shape(&tensor.shape),
                bytes(tensor.n_bytes),
                zeros,
                tensor.encoding.clone(),
            ]
        })
        .collect();
    let mut out = table(&["tensor", "role", "type", "shape", "bytes", "zeros", "kept as"], &rows);
    let _ = writeln!(
        out,
        "\n{}: {}, {} tensors, {} elements, {} in weight files, already compressed: {}",
        found.path,
        found.format,
        found.tensors.len(),
        found.n_elements,
        bytes(found.file_bytes),
        found.compressed
    );
    out + &notes(&found.notes())
}

/// What a file holds besides the model, a line each.
pub(crate) fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("{note}\n")).collect()
}

/// What becomes of each tensor.
pub(crate) fn plan(plan: &Plan, file_bytes: u64) -> Result<String, briquette::Error> {
    let rows: Vec<Vec<String>> = plan
        .tensors
        .iter()
        .map(|tensor| {
            vec![
                tensor.info.name.clone(),
                tensor.role.name().into(),
                tensor.info.dtype.to_string(),
                shape(&tensor.info.shape.0),
                prune_words(tensor, plan),
                stored_words(tensor),
                tensor
                    .tied_to
                    .map(|main| format!("tied to {}", plan.tensors[main].info.name))
                    .or_else(|| tensor.skipped.clone())
                    .unwrap_or_default(),
            ]
        })
        .collect();
    let mut out = table(&["tensor", "role", "type", "shape", "prune", "stored as", "remark"], &rows);
    let prediction = plan.predict()?;
    let bound = if prediction.is_exact { "exactly" } else { "at most" };
    let ratio = file_bytes as f64 / prediction.n_bytes.max(1) as f64;
    let _ = writeln!(
        out,
        "\npredicted weight files: {bound} {} ({} now, {ratio:.2}x)",
        bytes(prediction.n_bytes),
        bytes(file_bytes)
    );
    Ok(out)
}

/// What running models takes at least, and what it may.
pub(crate) fn needs(needs: &Needs) -> String {
    let most =
        needs.limit_bytes.map_or(String::new(), |limit| format!(", of {} that memory.limit allows", bytes(limit)));
    let line =
        |need: &Need| format!("predicted memory: at least {} to {}{most}\n", bytes(need.weights_bytes), need.what);
    needs.runs.iter().map(line).collect()
}

fn prune_words(tensor: &TensorPlan, plan: &Plan) -> String {
    let n = tensor.info.n_elements().max(1) as f64;
    match tensor.prune.map(|prune| prune.cut) {
        None => "-".into(),
        Some(Cut::Count(n_drop)) => format!("{:.1} %", 100.0 * n_drop as f64 / n),
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
            let _ = writeln!(out, "{what}: {}", names.join(", "));
        }
    }
    out
}
