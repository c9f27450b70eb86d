//! Quantizes a loaded model to int8 for serving.

use crate::coded::{Coded, Use};
use crate::packed::Packed;
use crate::weights::read_f32;
use crate::{Parameter, Patterns, parameters, view};
use briquette_core::Result;
use briquette_kernels::{ActivationGrid, MAX_DEPTH};
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

    fn use_of(&self, parameter: &Parameter) -> Option<Use> {
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
        match parameter.container.as_str() {
            "Struct:Linear" if parameter.is_linear_weight() => Some(Use::Int8(Some(self.grid))),
            "Struct:Embedding" if self.has_tables => Some(Use::Table),
            _ => None,
        }
    }
}

/// Turns the weights of linear layers, convolutions and embeddings into int8 codes, symmetric, with one scale for each output or row,
/// and frees the floats. Masks and grids attached for training are materialized first.
///
/// The layers must be those of [`crate::layers`] to run on codes; burn's own decode the weights for each use.
///
/// # Errors
/// Io where a device does not hand out a tensor.
pub fn quantize_dynamic<M: Module>(module: M, spec: &DynamicSpec) -> Result<M> {
    let module = match parameters(&module).iter().any(|parameter| parameter.reparameterized.is_some()) {
        true => module.materialize(),
        false => module,
    };
    let uses = parameters(&module).into_iter().filter_map(|parameter| {
        let what = spec.use_of(&parameter)?;
        Some((parameter.path.clone(), (parameter, what)))
    });
    let (mut error, uses) = (None, uses.collect());
    let module = module.apply_reparameterization(DynamicPacker { uses, is_sparse: spec.is_sparse, error: &mut error });
    match error {
        Some(error) => Err(error),
        None => Ok(module),
    }
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
        Packed::replace_or_keep(coded, what, param, self.error)
    }
}
