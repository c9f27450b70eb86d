//! Limits of compressed-tensors: the tensors that may be stored as codes, so that transformers can load them.

use crate::{Recipe, Stage};
use briquette_core::encoded::Codes;
use briquette_core::{Error, OutputAxis, Result, Role};
use briquette_formats::output_format::is_int_quantized;
use briquette_formats::{Checkpoint, Limits, LoadableFamily, OutputFormat, WeightLayout, heads, model_config};
use briquette_writer::known::{Known, Reason};
use briquette_writer::{Plan, TensorPlan};

/// Whether transformers is known to load a model family from compressed-tensors.
#[derive(Debug, Clone)]
pub enum Loads {
    /// The family is known to load, with these Linear layers.
    Known(&'static LoadableFamily),
    /// The family is not known to load, for this reason.
    Untested(String),
}

impl Loads {
    /// Determines the family from `config.json`.
    ///
    /// # Errors
    /// Input or Io: `config.json` is invalid or cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let config = model_config::read(checkpoint)?;
        Ok(LoadableFamily::of(config.as_deref()).map_or_else(Self::Untested, Self::Known))
    }

    /// Returns the family, if it is known to load.
    pub fn family(&self) -> Option<&'static LoadableFamily> {
        match self {
            Self::Known(family) => Some(family),
            Self::Untested(_) => None,
        }
    }

    /// Returns why a tensor may not be stored as codes; `None` if it may. Limits of the scheme are not checked
    /// here.
    pub(super) fn refuses(&self, tensor: &TensorPlan) -> Option<String> {
        let name = &tensor.info.name;
        let is_matrix = tensor.info.shape.rank() == 2 && name.ends_with(".weight");
        match self {
            Self::Known(family) if is_matrix && family.is_linear(name) => None,
            Self::Known(family) if is_matrix && tensor.role == Role::Linear => {
                Some(format!("not a Linear layer of {} that compressed-tensors quantizes", family.name()))
            }
            Self::Untested(_) if is_matrix && is_plain(tensor) && !heads::is_head(name) => None,
            _ => Some("compressed-tensors quantizes Linear layers only".into()),
        }
    }

    /// Refuses a plan that transformers is not known to load, unless the recipe allows it. Returns the accepted
    /// problem.
    ///
    /// A plan without codes is always refused if a stage quantizes.
    ///
    /// # Errors
    /// Refused: transformers is not known to load the output, or the output would have no codes.
    pub(super) fn check(&self, plan: &Plan, recipe: &Recipe) -> Result<Option<String>> {
        let coded: Vec<&TensorPlan> = plan.tensors.iter().filter(|tensor| tensor.quant.is_some()).collect();
        let is_asked = recipe.file_stages().any(|stage| matches!(stage, Stage::Quantize(_)));
        let problem = match self {
            _ if coded.is_empty() && is_asked => return Err(self.nothing_coded()),
            _ if coded.is_empty() => None,
            Self::Untested(why) => Some(why.clone()),
            Self::Known(family) => problem_of(family, plan, &coded),
        };
        match problem {
            Some(what) if !recipe.allow_untested => Err(Error::refused(format!(
                "compressed-tensors is for transformers and vLLM, which are not known to load this: {what}; \
                 choose another format, or pass --allow-untested (output.allow_untested) to write it anyway"
            ))),
            problem => Ok(problem),
        }
    }

    /// Returns the error for a quantize stage none of whose tensors can be stored as codes.
    fn nothing_coded(&self) -> Error {
        let (of, why) = match self {
            Self::Known(family) => (
                format!(" of {}", family.name()),
                match family.limits() {
                    Limits::Codes(why) => why,
                    _ => "no selected tensor is a Linear layer that transformers reads as codes",
                },
            ),
            Self::Untested(_) => {
                (String::new(), "no selected tensor is the weight of a Linear layer by its name and shape")
            }
        };
        Error::refused(format!("the compressed-tensors output{of} would have no codes: {why}; choose another format"))
    }
}

/// The reason why a model in burn's layout is refused.
const TURNED: &str = "is [in, out] in burn's layout, but transformers and vLLM read compressed-tensors as [out, in]; compress \
                      the model in PyTorch's layout, or choose another format";

/// Refuses a model with Linear weights in burn's layout `[in, out]`.
///
/// # Errors
/// Refused: a weight is `[in, out]`; the message has the first one.
pub(super) fn check_layout(plan: &Plan) -> Result<()> {
    let is_turned = |tensor: &&TensorPlan| tensor.role == Role::Linear && tensor.output_rows.axis == OutputAxis::Last;
    match plan.tensors.iter().find(is_turned) {
        Some(tensor) if plan.layout == WeightLayout::Burn => Err(Error::refused(TURNED).at(tensor.culprit())),
        _ => Ok(()),
    }
}

fn is_plain(tensor: &TensorPlan) -> bool {
    let known = Known { role: tensor.role, axis: tensor.axis, why: tensor.why };
    known.is_plain_linear() || known.role == Role::Linear && known.why == Reason::Told
}

/// Returns why transformers cannot load a plan of a known family; `None` if it can.
fn problem_of(family: &LoadableFamily, plan: &Plan, coded: &[&TensorPlan]) -> Option<String> {
    let packed = coded.iter().find(|tensor| is_packed(tensor, plan.profile));
    if let (Limits::Packed(why), Some(tensor)) = (family.limits(), packed) {
        return Some(format!("{}: {why} (tensor {:?}); int8-dynamic is not packed", family.name(), tensor.info.name));
    }
    let mut experts = plan.tensors.iter().filter(|tensor| family.is_expert(&tensor.info.name));
    let codes = experts.clone().find_map(|tensor| tensor.codes(plan.profile));
    let is_odd = |tensor: &&TensorPlan| !is_packed(tensor, plan.profile) || tensor.codes(plan.profile) != codes;
    experts.find(is_odd).map(|tensor| {
        format!(
            "{}: transformers reads experts only if all have packed codes of one scheme (tensor {:?} does not); \
             choose int8 or int4-gN for them",
            family.name(),
            tensor.info.name
        )
    })
}

fn is_packed(tensor: &TensorPlan, profile: OutputFormat) -> bool {
    tensor.codes(profile).is_some_and(|codes: Codes| !is_int_quantized(codes, tensor.activations()))
}
