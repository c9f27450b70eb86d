//! Quantizes a loaded model to int8 for serving.

use crate::coded::{Coded, Use};
use crate::held::AS_FLOATS;
use crate::packed::Packed;
use crate::{Held, Parameter, Patterns, Roles, held, parameters};
use briquette_core::{Error, Result, Role};
use briquette_kernels::{ActivationGrid, MAX_DEPTH, ops};
use briquette_module::{read_f32, view};
use burn::module::{Module, Param, Reparameterizer};
use burn::tensor::Tensor;
use std::collections::BTreeMap;

/// Which parameters [`quantize_dynamic`] turns into int8, and how.
#[derive(Debug, Clone)]
pub struct DynamicSpec {
    grid: ActivationGrid,
    included: Patterns,
    excluded: Patterns,
    has_tables: bool,
    is_sparse: bool,
    roles: Roles,
}

impl Default for DynamicSpec {
    /// Takes every linear layer, convolution and embedding; activations get a zero point; zeros are left out where that saves room.
    fn default() -> Self {
        Self {
            grid: ActivationGrid::Asymmetric,
            included: Patterns::default(),
            excluded: Patterns::default(),
            has_tables: true,
            is_sparse: true,
            roles: Roles::default(),
        }
    }
}

impl DynamicSpec {
    /// The defaults: see [`Default`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how activations are rounded.
    #[must_use]
    pub const fn activations(mut self, grid: ActivationGrid) -> Self {
        self.grid = grid;
        self
    }

    /// Takes only parameters whose path matches this glob, or another one that was included.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn include(mut self, glob: &str) -> Result<Self> {
        self.included.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Leaves out parameters whose path matches this glob.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn exclude(mut self, glob: &str) -> Result<Self> {
        self.excluded.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Leaves embeddings unchanged.
    #[must_use]
    pub const fn without_embeddings(mut self) -> Self {
        self.has_tables = false;
        self
    }

    /// Stores zeros too, which is faster and larger.
    #[must_use]
    pub const fn dense(mut self) -> Self {
        self.is_sparse = false;
        self
    }

    /// Says what parameters are that nothing shows.
    #[must_use]
    pub fn roles(mut self, roles: Roles) -> Self {
        self.roles = roles;
        self
    }

    /// What becomes of each parameter that is taken.
    fn uses<M: Module>(&self, module: &M) -> Result<BTreeMap<String, (Parameter, Use)>> {
        let found = self.roles.parameters(module)?;
        let paths = || found.iter().map(|parameter| parameter.path.as_str());
        self.included.check_used("parameter", paths())?;
        self.excluded.check_used("parameter", paths())?;
        let looks_up = module.devices().iter().all(ops::looks_up);
        let uses = found.into_iter().filter_map(|parameter| {
            let what = self.use_of(&parameter, looks_up)?;
            Some((parameter.path.clone(), (parameter, what)))
        });
        Ok(uses.collect())
    }

    fn use_of(&self, parameter: &Parameter, looks_up: bool) -> Option<Use> {
        let is_in = self.included.is_empty() || self.included.matches(&parameter.path);
        if !is_in || self.excluded.matches(&parameter.path) {
            return None;
        }
        if parameter.rows().n_cols > MAX_DEPTH {
            return None;
        }
        if let Some(dims) = parameter.conv_dims() {
            return Some(Use::Conv(self.grid, dims));
        }
        match parameter.role {
            Role::Linear if parameter.is_linear_weight() => Some(Use::Int8(Some(self.grid))),
            Role::Linear | Role::Conv => Some(Use::Decoded),
            Role::Embedding if self.has_tables && parameter.is_head && looks_up => Some(Use::Int8(Some(self.grid))),
            Role::Embedding if self.has_tables => Some(Use::Table),
            _ => None,
        }
    }
}

/// A module that [`quantize_dynamic`] quantized, and how its parameters are held now.
#[derive(Debug, Clone)]
#[must_use]
pub struct Quantized<M> {
    /// The module.
    pub module: M,
    /// The forms of its parameters, and which are held in each: see [`held`].
    pub held: BTreeMap<String, Held>,
}

impl<M> Quantized<M> {
    /// The parameters that are decoded for each use, which is slower than floats and takes less memory: those of burn's own layers, and
    /// convolutions that no kernel here has.
    pub fn decoded(&self) -> Vec<&str> {
        let decoded = self.held.iter().filter(|(form, _)| form.ends_with(AS_FLOATS));
        decoded.flat_map(|(_, held)| held.paths.iter().map(String::as_str)).collect()
    }

    /// What slows the module down, and what to do; `None` where nothing does.
    pub fn warning(&self) -> Option<String> {
        let decoded = self.decoded();
        (!decoded.is_empty()).then(|| {
            format!(
                "slower than floats, as these are decoded for each use: {}; put `use briquette::nn::layers::{{Linear, LinearConfig, \
                 Conv2d, Conv2dConfig, Embedding, EmbeddingConfig}}` in the place of burn's, or leave them out (DynamicSpec::exclude)",
                decoded.join(", ")
            )
        })
    }
}

/// Turns the weights of linear layers, convolutions and embeddings into int8 codes, symmetric, with one scale for each output or row,
/// and frees the floats. Masks and grids attached for training are materialized first.
///
/// The layers must be those of [`crate::layers`] to run on codes; burn's own decode the weights for each use: the result names them, and
/// a warning is logged.
///
/// # Errors
/// Config, where a glob matches no parameter, or nothing is left to quantize; Io where a device does not hand out a tensor.
pub fn quantize_dynamic<M: Module>(module: M, spec: &DynamicSpec) -> Result<Quantized<M>> {
    let module = match parameters(&module).iter().any(|parameter| parameter.reparameterized.is_some()) {
        true => module.materialize(),
        false => module,
    };
    let uses = spec.uses(&module)?;
    if uses.is_empty() {
        return Err(Error::config(
            "nothing to quantize: it has no linear layer, convolution or embedding that is known",
        ));
    }
    let mut error = None;
    let module = module.apply_reparameterization(DynamicPacker { uses, is_sparse: spec.is_sparse, error: &mut error });
    error.map_or(Ok(()), Err)?;
    let quantized = Quantized { held: held(&module), module };
    quantized.warning().iter().for_each(|warning| log::warn!("{warning}"));
    Ok(quantized)
}

struct DynamicPacker<'a> {
    uses: BTreeMap<String, (Parameter, Use)>,
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
        let rows = parameter.rows();
        let coded = read_f32(param.val(), path)
            .map(|values| Coded::of_floats(&view::to_rows(values, &rows), rows, what, self.is_sparse));
        let codes = coded.and_then(|coded| coded.pack(what, &param.lazy_device()));
        Packed::replace_or_keep(codes, what, param, self.error)
    }
}
