//! Quantizes the weights of a module to int8 codes in memory.

use crate::coded::{Coded, Use};
use crate::held::AS_FLOATS;
use crate::module::{read_f32, view};
use crate::packed::Packed;
use crate::pool::check_finite;
use crate::targets::Names;
use crate::{Held, Parameter, Patterns, Roles, held, parameters};
use briquette_core::{Error, Result, Role};
use briquette_cpu::{ActivationGrid, MAX_DEPTH};
use briquette_ops::compressed;
use burn::module::{Module, Param, Reparameterizer};
use burn::tensor::Tensor;
use std::collections::BTreeMap;

/// Settings of [`quantize_dynamic`].
#[derive(Debug, Clone)]
pub struct DynamicSpec {
    grid: ActivationGrid,
    included: Patterns,
    excluded: Patterns,
    has_tables: bool,
    is_sparse: bool,
    takes_slower: bool,
    roles: Roles,
}

impl Default for DynamicSpec {
    /// Selects linear layers, convolutions and embeddings of [`crate::layers`], which do not become slower.
    ///
    /// Activations are asymmetric, and zeros are stored sparsely where that saves memory.
    fn default() -> Self {
        Self {
            grid: ActivationGrid::Asymmetric,
            included: Patterns::default(),
            excluded: Patterns::default(),
            has_tables: true,
            is_sparse: true,
            takes_slower: false,
            roles: Roles::default(),
        }
    }
}

impl DynamicSpec {
    /// Returns the defaults: see [`Default`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the grid of activations.
    #[must_use]
    pub const fn activations(mut self, grid: ActivationGrid) -> Self {
        self.grid = grid;
        self
    }

    /// Selects only parameters whose path matches this glob or another included one.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn include(mut self, glob: &str) -> Result<Self> {
        self.included.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Skips parameters whose path matches this glob.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn exclude(mut self, glob: &str) -> Result<Self> {
        self.excluded.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Skips embeddings.
    #[must_use]
    pub const fn without_embeddings(mut self) -> Self {
        self.has_tables = false;
        self
    }

    /// Stores zeros explicitly, which is faster and larger.
    #[must_use]
    pub const fn dense(mut self) -> Self {
        self.is_sparse = false;
        self
    }

    /// Also quantizes burn's own layers and layers without a kernel.
    ///
    /// They become slower, since they decode their codes for each use, and take a quarter of the memory of f32.
    #[must_use]
    pub const fn with_slower(mut self) -> Self {
        self.takes_slower = true;
        self
    }

    /// Sets the roles of parameters that belong to no layer of burn.
    #[must_use]
    pub fn roles(mut self, roles: Roles) -> Self {
        self.roles = roles;
        self
    }

    /// Returns the use of each quantized parameter, and the reason for each skipped one.
    fn choice<M: Module>(&self, module: &M) -> Result<Selection> {
        let found = self.roles.parameters(module)?;
        let paths = || found.iter().map(|parameter| parameter.path.as_str());
        self.included.check_used("parameter", paths())?;
        self.excluded.check_used("parameter", paths())?;
        let looks_up = module.devices().iter().all(compressed::looks_up);
        let mut choice = Selection::default();
        for names in Names::of(&found).iter().filter(|names| self.are_meant(names)) {
            match self.uses_of(names, looks_up) {
                Ok(uses) => choice.selected.extend(uses),
                Err(why) => choice.left.extend(names.paths().map(|path| (path.to_string(), why.clone()))),
            }
        }
        Ok(choice)
    }

    /// Returns whether the settings select a parameter.
    fn are_meant(&self, names: &Names) -> bool {
        let is_in = self.included.is_empty() || names.paths().any(|path| self.included.matches(path));
        let is_table = names.parameters().iter().any(|parameter| parameter.role == Role::Embedding);
        let is_none = |parameter: &&Parameter| matches!(parameter.role, Role::Parameter | Role::Norm | Role::Bias);
        is_in
            && !names.paths().any(|path| self.excluded.matches(path))
            && (self.has_tables || !is_table)
            && !names.parameters().iter().any(is_none)
    }

    /// Returns the use of a parameter in each field that holds it, or the reason to skip it.
    fn uses_of(&self, names: &Names, looks_up: bool) -> Result<BTreeMap<String, SelectedUse>, String> {
        let main = names.main();
        let is_shared = names.parameters().len() > 1;
        let of_field = |parameter: &&Parameter| {
            let found = self.use_in(parameter, main, looks_up);
            let what = found.map_err(|why| if is_shared { format!("{}: {why}", parameter.path) } else { why })?;
            // Fields that share a parameter have the same codes.
            let parameter = Parameter { axis: main.axis, ..(*parameter).clone() };
            Ok((parameter.path.clone(), (parameter, what)))
        };
        names.parameters().iter().map(of_field).collect()
    }

    /// Returns the use of a parameter in one field; `main` is the field that determines its role.
    fn use_in(&self, parameter: &Parameter, main: &Parameter, looks_up: bool) -> Result<Use, String> {
        let shown = if parameter.role == Role::Unknown { main } else { parameter };
        let what = self.use_of(shown, looks_up)?;
        if shown.axis != main.axis {
            return Err("it shares its weights with a field of another output axis".into());
        }
        match parameter.runs_on_codes || self.takes_slower {
            true => Ok(what),
            false => Err(format!("it would be slower than floats: {DECODES}")),
        }
    }

    fn use_of(&self, parameter: &Parameter, looks_up: bool) -> Result<Use, String> {
        let n_inputs = parameter.rows().n_cols;
        if parameter.role != Role::Unknown && n_inputs > MAX_DEPTH {
            return Err(format!("it has {n_inputs} inputs, int8 kernels support at most {MAX_DEPTH}"));
        }
        if let Some(dims) = parameter.conv_dims() {
            return Ok(Use::Conv(self.grid, dims));
        }
        match parameter.role {
            Role::Linear if parameter.is_linear_weight() => Ok(Use::Int8(Some(self.grid))),
            Role::Linear | Role::Conv => Ok(Use::Decoded),
            Role::Embedding if parameter.is_head && looks_up => Ok(Use::Int8(Some(self.grid))),
            Role::Embedding => Ok(Use::Table),
            _ => Err(format!("{}; set its role by DynamicSpec::roles", parameter.why)),
        }
    }
}

/// A selected parameter and the use of its codes.
type SelectedUse = (Parameter, Use);

/// The parameters that [`DynamicSpec`] quantizes and skips.
#[derive(Default)]
struct Selection {
    selected: BTreeMap<String, SelectedUse>,
    left: BTreeMap<String, String>,
}

/// A module after [`quantize_dynamic`], with the storage of its parameters.
#[derive(Debug, Clone)]
#[must_use]
pub struct Quantized<M> {
    /// The quantized module.
    pub module: M,
    /// Storage forms and their parameters: see [`held`].
    pub held: BTreeMap<String, Held>,
    /// Weight matrices, filters and tables that were skipped but not excluded, each with the reason.
    pub left: BTreeMap<String, String>,
}

impl<M> Quantized<M> {
    /// Returns the parameters that are decoded for each use, which is slower than floats but takes less memory.
    ///
    /// They belong to burn's own layers, or to convolutions without a kernel.
    pub fn decoded(&self) -> Vec<&str> {
        let decoded = self.held.iter().filter(|(form, _)| form.ends_with(AS_FLOATS));
        decoded.flat_map(|(_, held)| held.paths.iter().map(String::as_str)).collect()
    }

    /// Returns a warning about skipped parameters and slower layers; `None` if there are none.
    pub fn warning(&self) -> Option<String> {
        let decoded = self.decoded();
        let slow = (!decoded.is_empty()).then(|| {
            format!("slower than floats, because they decode codes for each use: {}; {TAKE_OURS}", decoded.join(", "))
        });
        let left = (!self.left.is_empty()).then(|| format!("not quantized: {}", listed(&self.left)));
        let warnings: Vec<String> = slow.into_iter().chain(left).collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }
}

/// Reason why a layer is slower with codes.
const DECODES: &str = "its layer is not one of briquette::nn::layers and decodes codes for each use";

/// Advice to use layers that run on codes.
const TAKE_OURS: &str = "import briquette::nn::layers::{Linear, LinearConfig, Conv2d, Conv2dConfig, Embedding, EmbeddingConfig} instead of \
                         burn's layers, or exclude these parameters (DynamicSpec::exclude)";

/// Number of paths that a message lists for one reason.
const N_LISTED: usize = 5;

/// Lists parameters by the reason why they were skipped.
fn listed(left: &BTreeMap<String, String>) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    left.iter().for_each(|(path, why)| by_reason.entry(why).or_default().push(path));
    let line = |(why, paths): (&str, Vec<&str>)| {
        let more = paths.len().saturating_sub(N_LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more} ({why})", paths[..paths.len().min(N_LISTED)].join(", "))
    };
    by_reason.into_iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Quantizes linear layers, convolutions and embeddings to symmetric int8 codes, with one scale per output or
/// row.
///
/// The floats are freed. Attached masks and grids are materialized first.
///
/// Only layers of [`crate::layers`] are quantized, since they run on codes. burn's own layers would decode the
/// weights for each use; they are skipped unless [`DynamicSpec::with_slower`] is set. The result lists skipped
/// parameters, and a warning is logged. A parameter that several fields share is quantized in all fields or in
/// none.
///
/// # Errors
/// - Config: a glob matches no parameter, or there is nothing to quantize
/// - Refused: a weight is not finite, or a layer has no weights
/// - Io: a device does not return a tensor
///
/// An error drops the module.
pub fn quantize_dynamic<M: Module>(module: M, spec: &DynamicSpec) -> Result<Quantized<M>> {
    let module = match parameters(&module).iter().any(|parameter| parameter.reparameterized.is_some()) {
        true => module.materialize(),
        false => module,
    };
    let Selection { selected, left } = spec.choice(&module)?;
    if selected.is_empty() {
        let why = if left.is_empty() {
            "it has no known linear layer, convolution or embedding".into()
        } else {
            listed(&left)
        };
        let way_out =
            if left.is_empty() { "" } else { "; use the layers of briquette::nn::layers, or DynamicSpec::with_slower" };
        return Err(Error::config(format!("nothing to quantize: {why}{way_out}")));
    }
    let mut error = None;
    let packer = DynamicPacker { uses: selected, is_sparse: spec.is_sparse, error: &mut error };
    let module = module.apply_reparameterization(packer);
    error.map_or(Ok(()), Err)?;
    let quantized = Quantized { held: held(&module), module, left };
    quantized.warning().iter().for_each(|warning| log::warn!("{warning}"));
    Ok(quantized)
}

struct DynamicPacker<'a> {
    uses: BTreeMap<String, SelectedUse>,
    is_sparse: bool,
    error: &'a mut Option<briquette_core::Error>,
}

impl Reparameterizer for DynamicPacker<'_> {
    type Reparam = Packed;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Packed>) {
        let Some((parameter, what)) = self.uses.remove(path).filter(|_| self.error.is_none()) else {
            return (param, None);
        };
        let coded = coded(&parameter, what, self.is_sparse, read_f32(param.val(), path));
        let codes = coded.and_then(|coded| coded.pack(what, &param.lazy_device()));
        Packed::replace_or_keep(codes.map_err(|error| error.at(path)), what, param, self.error)
    }
}

/// Quantizes the values of a parameter.
fn coded(parameter: &Parameter, what: Use, is_sparse: bool, values: Result<Vec<f32>>) -> Result<Coded> {
    let (values, rows) = (values?, parameter.rows());
    if values.is_empty() {
        return Err(Error::refused(format!("its shape {} has no weights; exclude it", parameter.shape)));
    }
    check_finite(&values)?;
    Ok(Coded::of_floats(&view::to_rows(values, &rows), rows, what, is_sparse))
}
