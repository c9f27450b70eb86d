//! Applies a plan to a module in memory and reports file sizes before and after.

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

/// The result of compressing a module in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressionReport {
    /// Size of the weight file that [`Export`](crate::Export) would write of the original module.
    pub before_bytes: u64,
    /// Size of the weight file that [`Export`](crate::Export) writes of the compressed module.
    pub after_bytes: u64,
    /// All parameters and running statistics, by name.
    pub parameters: Vec<ParameterReport>,
    /// Deviations from the recipe, each with its reason.
    pub remarks: Vec<String>,
}

/// Treatment and sizes of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterReport {
    /// Name in a file.
    pub name: String,
    /// Path in the module.
    pub path: String,
    /// Role of the parameter in the network.
    pub role: Role,
    /// Number of elements.
    pub n_elements: usize,
    /// Number of weights that the mask drops; 0 without a mask.
    pub n_dropped: usize,
    /// Scheme that the parameter is quantized to.
    pub scheme: Option<Scheme>,
    /// Bytes in a file before compression, without the file header.
    pub before_bytes: u64,
    /// Bytes in a file after compression: codes, scales and mask. 0 for a tensor stored as its tied tensor.
    pub after_bytes: u64,
    /// Reason why the parameter was skipped; `None` if it was changed.
    pub skipped: Option<String>,
}

/// The tensors of a module as input of a plan.
pub struct ModuleTensors<'a> {
    /// The tensors, with the names and layouts of a file.
    pub source: &'a dyn TensorSource,
    /// Layout of Linear weights.
    pub layout: WeightLayout,
    /// Role and output axis of each tensor, if burn's layers or the names determine them.
    pub shown: Vec<Option<(Role, OutputAxis)>>,
}

/// Applies the decisions of a plan to a module.
///
/// From then on the module computes with the values that a file of the same plan decodes to, in later training
/// too. [`Export`](crate::Export) writes that file. `materialize` turns the result into an ordinary module.
///
/// # Errors
/// - Refused: a parameter is already reparameterized or is not finite
/// - Config: the plan changes a vector, to which nothing can be attached
/// - Io: a device fails
/// - any error of `plan`
///
/// An error drops the module. To keep it, clone it first; cloning copies no weights.
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

/// Converts a plan to rules, one per parameter, and reports sizes.
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
    let shown = before.tensors.iter().map(|tensor| shown_of(of_tensor(tensor), names)).collect();
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
            // The rules must use the same rows as the plan.
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
            .zip(placed.tensors.iter())
            .map(|(tensor, place)| reported(of_tensor(tensor), &plan, tensor, &place))
            .collect::<Result<_>>()?,
        remarks: plan.remarks.clone(),
    };
    Ok((rules, report))
}

/// Returns the decision for each changed tensor, with its index.
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
        name: tensor.info.name.to_string(),
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

/// Returns the role of a parameter and its output axis in the file, if known.
fn shown_of(parameter: &Parameter, names: &NameMap) -> Option<(Role, OutputAxis)> {
    let axis = if names.is_turned(parameter, names.weight_layout()) { OutputAxis::First } else { parameter.axis };
    match parameter.role {
        Role::Unknown | Role::Bias | Role::Other => None,
        role => Some((role, axis)),
    }
}

/// Refuses parameters that already have a reparameterization.
fn check_bare(found: &[Parameter]) -> Result<()> {
    match found.iter().find_map(|one| Some((&one.path, one.reparameterized.as_ref()?))) {
        Some((path, name)) => {
            let message = format!("is already reparameterized by {name:?}; call materialize() first");
            Err(Error::refused(message).at(path))
        }
        None => Ok(()),
    }
}

/// Refuses vectors, which rules never match.
fn check_attachable(tensor: &TensorPlan) -> Result<()> {
    match tensor.info.shape.rank() {
        0 | 1 => {
            Err(Error::config("is a vector; masks and grids need at least two axes; exclude it").at(tensor.culprit()))
        }
        _ => Ok(()),
    }
}
