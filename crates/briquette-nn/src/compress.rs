//! Applies a plan to a module in memory, and tells what its export takes before and after.

use crate::module_source::ModuleSource;
use crate::{Compression, NameMap, Parameter, Prune, Quantize, Roles, Schedule};
use briquette_core::{Decision, Error, OutputAxis, Result, Role};
use briquette_formats::{TensorSource, WeightLayout};
use briquette_methods::quant::Scheme;
use briquette_writer::layout::{FileLayouts, PlacedTensor};
use briquette_writer::survey::{Survey, survey};
use briquette_writer::{Plan, Quant, RunOptions, TensorPlan, Workers, decide};
use burn::module::Module;
use std::collections::BTreeMap;

/// What compression in memory came to.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressionReport {
    /// Bytes of the weight file that [`Export`](crate::Export) would have written of the module before.
    pub before_bytes: u64,
    /// Bytes of the weight file that it writes of the module now.
    pub after_bytes: u64,
    /// Every parameter and running statistic, by name.
    pub parameters: Vec<ParameterReport>,
    /// What was not done as asked, and why.
    pub remarks: Vec<String>,
}

/// What became of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterReport {
    /// Its name in a file.
    pub name: String,
    /// Its path in the module.
    pub path: String,
    /// What it is in its network.
    pub role: Role,
    /// Its elements.
    pub n_elements: usize,
    /// How many of them are zero by its mask; 0 where it has none.
    pub n_dropped: usize,
    /// The grid that it lies on now.
    pub scheme: Option<Scheme>,
    /// Bytes in a file before, without what the header says of it.
    pub before_bytes: u64,
    /// Bytes in a file now: codes, scales and mask. 0 where it is stored as the tensor that it equals.
    pub after_bytes: u64,
    /// Why nothing was done to it, where nothing was.
    pub skipped: Option<String>,
}

/// The tensors of a module, as a plan is made for them.
pub struct ModuleTensors<'a> {
    /// The tensors, under the names and in the layouts of a file.
    pub source: &'a dyn TensorSource,
    /// How Linear weights lie.
    pub layout: WeightLayout,
    /// What each tensor is, and which axis counts its outputs, where burn's own layers show it or the names say it.
    pub shown: Vec<Option<(Role, OutputAxis)>>,
}

/// Attaches to a module what a plan decides about its tensors. What it computes from then on, in any later training too, is what a
/// file of the same plan decodes to; [`Export`](crate::Export) writes that file, and `materialize` makes it an ordinary module.
///
/// # Errors
/// Refused where a parameter is reparameterized already or is not finite; Config where the plan is about a vector, to which nothing
/// attaches; those of `plan`; Io for devices. The module is gone with an error: clone it before, which copies nothing, to keep it.
pub fn compress_by<M: Module>(
    module: M,
    names: &NameMap,
    plan: impl for<'a> FnOnce(&ModuleTensors<'a>) -> Result<Plan<'a>>,
) -> Result<(M, CompressionReport)> {
    let found = names.parameters(&module)?;
    check_bare(&found)?;
    let (rules, report) = decided(&module, names, &found, plan)?;
    Ok((rules.attach(module)?, report))
}

/// The rules that a plan comes to, each for one parameter, and the report.
fn decided<M: Module>(
    module: &M,
    names: &NameMap,
    found: &[Parameter],
    plan: impl for<'a> FnOnce(&ModuleTensors<'a>) -> Result<Plan<'a>>,
) -> Result<(Compression, CompressionReport)> {
    let by_name: BTreeMap<String, &Parameter> = found.iter().map(|one| (names.file_name(one), one)).collect();
    let source = ModuleSource::new(module, names)?;
    let layout = names.weight_layout();
    let before = source.plan(layout)?;
    let of_tensor = |tensor: &TensorPlan| by_name[tensor.info.name.as_str()];
    let shown = before.tensors.iter().map(|tensor| shown_of(of_tensor(tensor), layout)).collect();
    let mut plan = plan(&ModuleTensors { source: &source, layout, shown })?;
    let workers = Workers::new(&RunOptions::default())?;
    let surveys = survey(&mut plan, &source, &workers)?;
    let mut decisions = decisions_of(&plan, &surveys, &source, &workers)?;
    if plan.widen_scales(&decisions) {
        decisions = decisions_of(&plan, &surveys, &source, &workers)?;
    }
    let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
    let placed = FileLayouts::new(&plan, &n_kept)?;
    let (mut rules, mut roles) = (Compression::new(), Roles::new());
    for (index, decision) in decisions {
        let tensor = &plan.tensors[index];
        let parameter = of_tensor(tensor);
        if !parameter.is_linear_weight() {
            // The rows that were decided about are those that the rules see.
            roles = roles.linear(&parameter.path, tensor.rows().axis)?;
        }
        rules = attached(rules, &parameter.path, tensor, decision)?;
    }
    let rules = rules.roles(roles);
    let report = CompressionReport {
        before_bytes: before.predict()?.n_bytes,
        after_bytes: placed.n_bytes(),
        parameters: plan
            .tensors
            .iter()
            .zip(&placed.tensors)
            .map(|(tensor, place)| reported(of_tensor(tensor), &plan, tensor, place))
            .collect::<Result<_>>()?,
        remarks: plan.remarks.clone(),
    };
    Ok((rules, report))
}

/// The decision about each tensor that is changed, by its index.
fn decisions_of(
    plan: &Plan,
    surveys: &[Survey],
    source: &dyn TensorSource,
    workers: &Workers,
) -> Result<Vec<(usize, Decision)>> {
    let changed: Vec<&TensorPlan> = plan.tensors.iter().filter(|tensor| tensor.is_changed()).collect();
    workers.map(
        &changed,
        || (),
        |(), tensor| {
            check_attachable(tensor)?;
            let main = tensor.tied_to().unwrap_or(tensor.index());
            Ok((tensor.index(), decide(plan, main, &surveys[main], source, workers.stop())?))
        },
    )
}

/// Adds the rules that attach a decision.
fn attached(rules: Compression, path: &str, tensor: &TensorPlan, decision: Decision) -> Result<Compression> {
    let rules = match decision.mask {
        Some(mask) => rules.prune(Prune::outside(path, mask)?),
        None => rules,
    };
    Ok(match decision.quant.zip(tensor.quant) {
        Some((params, quant)) => {
            let rule = Quantize::with_scheme(path, scheme_of(quant))?;
            rules.quantize(Quantize { given: Some(params), schedule: Schedule::once(), ..rule })
        }
        None => rules,
    })
}

fn reported(parameter: &Parameter, plan: &Plan, tensor: &TensorPlan, place: &PlacedTensor) -> Result<ParameterReport> {
    let n_elements = tensor.info.n_elements();
    let parts = tensor.file_parts(plan.profile, place.coding, place.n_kept)?;
    let own = parts.iter().map(|part| part.info.n_bytes() as u64).sum();
    Ok(ParameterReport {
        name: tensor.info.name.clone(),
        path: parameter.path.clone(),
        role: tensor.role,
        n_elements,
        n_dropped: tensor.prune.map_or(0, |_| n_elements - place.n_kept),
        scheme: tensor.quant.map(scheme_of),
        before_bytes: tensor.info.n_bytes() as u64,
        after_bytes: if tensor.tied_to().is_some() { 0 } else { own },
        skipped: tensor.skipped.clone(),
    })
}

fn scheme_of(quant: Quant) -> Scheme {
    Scheme { weights: quant.spec, activations: quant.activations }
}

/// What is known of a parameter, and which axis counts outputs in its file.
fn shown_of(parameter: &Parameter, layout: WeightLayout) -> Option<(Role, OutputAxis)> {
    let is_turned = parameter.is_linear_weight() && layout == WeightLayout::Torch;
    let axis = if is_turned { OutputAxis::First } else { parameter.axis };
    match parameter.role {
        Role::Unknown | Role::Bias | Role::Other => None,
        role => Some((role, axis)),
    }
}

/// Refuses parameters that something is attached to.
fn check_bare(found: &[Parameter]) -> Result<()> {
    match found.iter().find_map(|one| Some((&one.path, one.reparameterized.as_ref()?))) {
        Some((path, name)) => {
            let message = format!("is reparameterized already ({name:?}); call materialize() first");
            Err(Error::refused(message).at(path))
        }
        None => Ok(()),
    }
}

/// Refuses vectors, which the rules of a module never match.
fn check_attachable(tensor: &TensorPlan) -> Result<()> {
    match tensor.info.shape.rank() {
        0 | 1 => Err(Error::config("is a vector, to which no mask or grid attaches; exclude it").at(tensor.culprit())),
        _ => Ok(()),
    }
}
