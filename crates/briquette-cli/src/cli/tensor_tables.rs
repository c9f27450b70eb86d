//! Tables of tensors: `inspect`, `plan` and `diff`. Similar layers share a row.

use super::tables::{bytes, put_table};
use briquette::core::printable::printable;
use briquette::pipeline::diff::{Diff, TensorDiff};
use briquette::pipeline::inspect::{Inspection, TensorInspection};
use briquette::pipeline::report::groups::{Likeness, TensorGroups, label};
use briquette::pipeline::report::{AllocatedTensor, AllocationReport, untested_text};
use briquette::prune::SparsityPattern;
use briquette::writer::plan::Prediction;
use briquette::writer::{Cut, Plan, TensorPlan};
use std::collections::BTreeSet;
use std::io;

/// The line below a table with groups.
const HINT: &str = "A row with * is a group of similar layers; --all lists each tensor.";

/// Writes a table with a row for each group of tensors: its name, its count and the `cells` of its members.
fn put_groups(
    out: &mut dyn io::Write,
    (headings, optional): (&[&str], &[&str]),
    (groups, tensors): (&TensorGroups, &impl Likeness),
    cells: &dyn Fn(&[usize]) -> Vec<String>,
) -> io::Result<()> {
    let has_several = groups.has_several();
    let mut all = vec!["tensor"];
    all.extend(has_several.then_some("count"));
    all.extend(headings);
    let row = |group: usize| {
        let members: Vec<usize> = groups.members(group).collect();
        let mut row = vec![label(members.iter().map(|place| tensors.name(*place)))];
        row.extend(has_several.then(|| members.len().to_string()));
        row.extend(cells(&members));
        row
    };
    let left_out = put_table(out, (&all, optional), groups.len(), &row)?;
    if has_several || !left_out.is_empty() {
        writeln!(out)?;
    }
    if !left_out.is_empty() {
        writeln!(out, "The terminal is too narrow for: {}.", left_out.join(", "))?;
    }
    if has_several { writeln!(out, "{HINT}") } else { Ok(()) }
}

/// Returns groups of `n` tensors, or each tensor separately.
fn groups(n: usize, is_all: bool, likeness: &impl Likeness) -> TensorGroups {
    if is_all { TensorGroups::singles(n) } else { TensorGroups::of(n, likeness) }
}

fn shape(extents: &[usize]) -> String {
    let extents: Vec<String> = extents.iter().map(usize::to_string).collect();
    format!("[{}]", extents.join(", "))
}

/// Groups tensors by their cells in `inspect`, except for zeros.
struct Inspected<'a>(&'a Inspection);

impl Likeness for Inspected<'_> {
    fn name(&self, place: usize) -> &str {
        self.0.tensors.name(place)
    }

    fn traits(&self, place: usize) -> String {
        let TensorInspection { role, why, dtype, shape, encoding, .. } = self.0.tensors.get(place);
        format!("{} {why} {dtype} {shape:?} {encoding}", role.name())
    }
}

/// Writes the tensors of a model, and its sizes.
pub(crate) fn inspection(out: &mut dyn io::Write, found: &Inspection, is_all: bool) -> io::Result<()> {
    let headings = ["role", "type", "shape", "bytes", "zeros", "stored as", "why this role"];
    let tensors = Inspected(found);
    let groups = groups(found.tensors.len(), is_all, &tensors);
    let optional = ["stored as", "why this role", "type"];
    put_groups(out, (&headings, &optional), (&groups, &tensors), &|members| inspected_cells(found, members))?;
    writeln!(out, "\n{}", printable(&found.roles.words()))?;
    writeln!(
        out,
        "{}: {}, {} tensors, {} elements, {} in weight files, compressed: {}",
        printable(&found.path),
        found.format,
        found.tensors.len(),
        found.n_elements,
        bytes(found.file_bytes),
        found.compressed
    )?;
    found.notes().iter().try_for_each(|note| writeln!(out, "{note}"))
}

/// Returns the cells of similar tensors, with the total bytes and zeros.
fn inspected_cells(found: &Inspection, members: &[usize]) -> Vec<String> {
    let all = || members.iter().map(|place| found.tensors.get(*place));
    let n_elements: usize = all().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    let n_zeros: Option<u64> = all().map(|tensor| tensor.n_zeros).sum();
    let first = found.tensors.get(members[0]);
    vec![
        first.role.name().into(),
        first.dtype.to_string(),
        shape(first.shape),
        bytes(all().map(|tensor| tensor.n_bytes).sum()),
        n_zeros.map_or("-".into(), |n| format!("{:.1} %", 100.0 * n as f64 / n_elements.max(1) as f64)),
        first.encoding.to_string(),
        first.why.into(),
    ]
}

/// Groups tensors by their cells in `plan`.
struct Planned<'a>(&'a Plan<'a>);

impl Likeness for Planned<'_> {
    fn name(&self, place: usize) -> &str {
        &self.0.tensors[place].info.name
    }

    fn traits(&self, place: usize) -> String {
        planned_cells(&self.0.tensors[place], self.0).join("\0")
    }
}

/// Writes the plan of each tensor, and the predicted bytes.
pub(crate) fn plan(
    out: &mut dyn io::Write,
    plan: &Plan,
    (prediction, file_bytes): (Prediction, u64),
    is_all: bool,
) -> io::Result<()> {
    let headings = ["role", "type", "shape", "prune", "stored as", "remark"];
    let tensors = Planned(plan);
    let groups = groups(plan.tensors.len(), is_all, &tensors);
    let cells = |members: &[usize]| planned_cells(&plan.tensors[members[0]], plan);
    put_groups(out, (&headings, &["remark", "type", "role", "shape"]), (&groups, &tensors), &cells)?;
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

fn planned_cells(tensor: &TensorPlan, plan: &Plan) -> Vec<String> {
    let tied = tensor.tied_to().map(|main| format!("tied to {}", plan.tensors[main].info.name));
    vec![
        tensor.role.name().into(),
        tensor.info.dtype.to_string(),
        shape(&tensor.info.shape.0),
        prune_words(tensor, plan),
        stored_words(tensor),
        tied.or_else(|| tensor.skipped.clone()).unwrap_or_default(),
    ]
}

fn prune_words(tensor: &TensorPlan, plan: &Plan) -> String {
    let n = tensor.info.n_elements().max(1) as f64;
    match tensor.prune.map(|prune| prune.cut) {
        None => "-".into(),
        Some(Cut::Pattern(SparsityPattern::Unstructured(n_drop))) => format!("{:.1} %", 100.0 * n_drop as f64 / n),
        Some(Cut::Pattern(SparsityPattern::PerRow(n_drop))) => {
            format!("{:.1} % of each row", 100.0 * n_drop as f64 / tensor.rows().n_cols.max(1) as f64)
        }
        Some(Cut::Given) => "by its mask".into(),
        Some(Cut::Pattern(SparsityPattern::NOfM { n, m })) => format!("{n}:{m}"),
        Some(Cut::Pool(pool)) => format!("{:.1} % globally", 100.0 * plan.pools[pool].ratio.get()),
    }
}

/// Returns `8-bit per channel`, `F16`, or `-` if the storage does not change.
fn stored_words(tensor: &TensorPlan) -> String {
    match (tensor.quant, tensor.cast) {
        (Some(quant), _) => format!("{}-bit {}", quant.spec.grid.n_bits(), quant.spec.grouping),
        (None, Some(dtype)) => dtype.to_string(),
        (None, None) => "-".into(),
    }
}

/// Groups tensors of a budget by name.
struct BudgetRows<'a>(&'a AllocationReport);

impl Likeness for BudgetRows<'_> {
    fn name(&self, place: usize) -> &str {
        &self.0.tensors[place].name
    }

    fn traits(&self, _place: usize) -> String {
        String::new()
    }
}

/// Writes the step sizes that a budget chooses, and their predicted losses.
pub(crate) fn allocation(out: &mut dyn io::Write, found: &AllocationReport, is_all: bool) -> io::Result<()> {
    let total: f64 = found.tensors.iter().map(|tensor| tensor.loss).sum();
    writeln!(
        out,
        "\nStep sizes for {}, estimated from the weights; losses are by {}, in {}:",
        found.target, found.how, found.unit
    )?;
    let tensors = BudgetRows(found);
    let groups = groups(found.tensors.len(), is_all, &tensors);
    let headings = ["scheme", "bits", "bytes", "loss at four bits", "loss"];
    let cells = |members: &[usize]| {
        let members: Vec<&AllocatedTensor> = members.iter().map(|place| &found.tensors[*place]).collect();
        allocated_cells(&members)
    };
    put_groups(out, (&headings, &["loss at four bits"]), (&groups, &tensors), &cells)?;
    writeln!(out, "estimated total loss: {total:.3e}")
}

/// Returns the cells of tensors of a budget: schemes, bits per weight, and sums of bytes and losses.
fn allocated_cells(members: &[&AllocatedTensor]) -> Vec<String> {
    let schemes: BTreeSet<&str> = members.iter().map(|tensor| tensor.scheme.as_str()).collect();
    let sum = |of: fn(&AllocatedTensor) -> f64| members.iter().map(|tensor| of(tensor)).sum::<f64>();
    let scheme = match members {
        [only] => only.scheme.clone(),
        [first, ..] if schemes.len() == 1 => first.scheme.clone(),
        _ => format!("{} schemes", schemes.len()),
    };
    let n_bytes = sum(|tensor| tensor.bytes);
    vec![
        scheme,
        format!("{:.2}", 8.0 * n_bytes / sum(|tensor| tensor.n_weights as f64).max(1.0)),
        bytes(n_bytes as u64),
        format!("{:.3e}", sum(|tensor| tensor.sensitivity)),
        format!("{:.3e}", sum(|tensor| tensor.loss)),
    ]
}

/// Groups tensors of two models by shape.
struct Compared<'a>(&'a [&'a TensorDiff]);

impl Likeness for Compared<'_> {
    fn name(&self, place: usize) -> &str {
        &self.0[place].name
    }

    fn traits(&self, place: usize) -> String {
        shape(&self.0[place].shape)
    }
}

/// Writes the tensors that differ between two models, and the number of equal ones.
pub(crate) fn diff(out: &mut dyn io::Write, diff: &Diff, is_all: bool) -> io::Result<()> {
    let shown: Vec<&TensorDiff> = diff.tensors.iter().filter(|tensor| is_all || !tensor.is_equal).collect();
    if !shown.is_empty() {
        let tensors = Compared(&shown);
        let groups = groups(shown.len(), is_all, &tensors);
        let headings = ["shape", "max error", "relative", "SQNR dB", "cosine"];
        let cells = |members: &[usize]| compared_cells(members, &shown);
        put_groups(out, (&headings, &["SQNR dB", "max error"]), (&groups, &tensors), &cells)?;
        if groups.has_several() {
            writeln!(out, "Its figures are from the layer with the largest relative error.")?;
        }
        writeln!(out)?;
    }
    let n_equal = diff.tensors.iter().filter(|tensor| tensor.is_equal).count();
    writeln!(out, "{} tensors compared, {n_equal} equal", diff.tensors.len())?;
    let differ = diff.tensors.iter().filter(|tensor| tensor.error.is_none() && !tensor.is_equal);
    let differ = differ.map(|tensor| tensor.name.clone()).collect();
    for (what, names) in [
        ("different, but not weights", &differ),
        ("only in the first", &diff.only_in_first),
        ("only in the second", &diff.only_in_second),
        ("different shapes", &diff.other_shape),
        ("different types", &diff.other_type),
        ("not read, and not compared", &diff.unread),
    ] {
        if !names.is_empty() {
            writeln!(out, "{what}: {}", printable(&listed(names, is_all)))?;
        }
    }
    Ok(())
}

/// Returns the cells of similar tensors: the figures of the first, which differs most.
fn compared_cells(members: &[usize], shown: &[&TensorDiff]) -> Vec<String> {
    let number =
        |value: Option<f64>, digits: usize| value.map_or(String::from("-"), |value| format!("{value:.digits$}"));
    let TensorDiff { shape: extents, error, .. } = shown[members[0]];
    vec![
        shape(extents),
        error.map_or(String::from("-"), |error| format!("{:.3e}", error.max)),
        number(error.map(|error| error.relative), 5),
        number(error.and_then(|error| error.sqnr_db), 2),
        number(error.and_then(|error| error.cosine), 6),
    ]
}

/// Groups tensors by name.
struct AlikeNames<'a>(&'a [String]);

impl Likeness for AlikeNames<'_> {
    fn name(&self, place: usize) -> &str {
        &self.0[place]
    }

    fn traits(&self, _place: usize) -> String {
        String::new()
    }
}

/// Returns names in one line; layers share an entry, such as `layers.*.up.weight (12)`.
fn listed(names: &[String], is_all: bool) -> String {
    let groups = groups(names.len(), is_all, &AlikeNames(names));
    let one = |group: usize| {
        let members = groups.members(group);
        let count = if members.len() > 1 { format!(" ({})", members.len()) } else { String::new() };
        label(members.map(|place| names[place].as_str())) + &count
    };
    (0..groups.len()).map(one).collect::<Vec<_>>().join(", ")
}
