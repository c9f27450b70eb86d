//! Roles that the user assigns to parameters.

use crate::module::layer::Layer;
use crate::module::parameters::{Parameter, parameters};
use briquette_core::{Error, OutputAxis, Patterns, Result, Role};
use burn::module::Module;

/// Roles for parameters that belong to no layer of burn, or that differ from those of burn's layers.
///
/// Parameters are selected by path or by the struct with their field. The last match counts.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use briquette_core::{OutputAxis, Role};
/// use briquette_nn::Roles;
/// use burn::module::{Module, Param};
/// use burn::tensor::{Device, Tensor};
///
/// #[derive(Module, Debug)]
/// struct Mix {
///     w: Param<Tensor<2>>, // used as x.matmul(w): [in, out]
///     positions: Param<Tensor<2>>,
/// }
///
/// let tensor = |shape| Param::from_tensor(Tensor::<2>::ones(shape, &Device::flex()));
/// let mix = Mix { w: tensor([16, 4]), positions: tensor([8, 16]) };
/// let found = Roles::new().linear("w", OutputAxis::Last)?.leave("positions")?.parameters(&mix)?;
/// assert_eq!((found[0].role, found[0].rows().n_rows), (Role::Linear, 4)); // one row per output
/// assert_eq!(found[1].role, Role::Parameter); // skipped by all rules
/// # }
/// # Ok::<(), briquette_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Roles {
    rules: Vec<RoleMatch>,
}

#[derive(Debug, Clone)]
struct RoleMatch {
    selector: Selector,
    role: Role,
    axis: OutputAxis,
}

#[derive(Debug, Clone)]
enum Selector {
    Paths(Patterns),
    Field { container: String, field: &'static str },
}

/// A layer of your own that declares the roles of its parameters; register it by [`Roles::layer`].
///
/// ```
/// use briquette_core::{OutputAxis, Role};
/// use briquette_nn::{OwnLayer, Roles};
/// use burn::module::{Module, Param};
/// use burn::tensor::Tensor;
///
/// #[derive(Module, Debug)]
/// struct Gated {
///     values: Param<Tensor<2>>, // [out, in]
///     gates: Param<Tensor<2>>,  // not a weight matrix
/// }
///
/// impl OwnLayer for Gated {
///     const NAME: &'static str = "Gated";
///     const PARAMETERS: &'static [(&'static str, Role, OutputAxis)] = &[
///         ("values", Role::Linear, OutputAxis::First),
///         ("gates", Role::Parameter, OutputAxis::First),
///     ];
/// }
///
/// let roles = Roles::new().layer::<Gated>();
/// ```
pub trait OwnLayer: Module {
    /// Name of the struct.
    const NAME: &'static str;
    /// Fields with their roles and output axes. [`Role::Parameter`] excludes a field from all rules.
    const PARAMETERS: &'static [(&'static str, Role, OutputAxis)];
}

impl Roles {
    /// Returns an empty list of roles.
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks matrices that multiply activations: [`OutputAxis::First`] for `[out, in]`, [`OutputAxis::Last`]
    /// for `[in, out]`.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn linear(self, glob: &str, axis: OutputAxis) -> Result<Self> {
        self.with_rule(glob, Role::Linear, axis)
    }

    /// Marks convolution weights: [`OutputAxis::First`] for `[out, in, ..]`, [`OutputAxis::Second`] for `[in,
    /// out, ..]`.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn conv(self, glob: &str, axis: OutputAxis) -> Result<Self> {
        self.with_rule(glob, Role::Conv, axis)
    }

    /// Marks embedding tables `[n, width]`.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn embedding(self, glob: &str) -> Result<Self> {
        self.with_rule(glob, Role::Embedding, OutputAxis::First)
    }

    /// Excludes parameters from all rules.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn leave(self, glob: &str) -> Result<Self> {
        self.with_rule(glob, Role::Parameter, OutputAxis::First)
    }

    /// Uses the roles that a layer declares, wherever a module has this layer.
    #[must_use]
    pub fn layer<L: OwnLayer>(mut self) -> Self {
        let container = format!("Struct:{}", L::NAME);
        let rule = |&(field, role, axis)| RoleMatch {
            selector: Selector::Field { container: container.clone(), field },
            role,
            axis,
        };
        self.rules.extend(L::PARAMETERS.iter().map(rule));
        self
    }

    fn with_rule(mut self, glob: &str, role: Role, axis: OutputAxis) -> Result<Self> {
        self.rules.push(RoleMatch { selector: Selector::Paths(Patterns::new([glob])?), role, axis });
        Ok(self)
    }

    /// Lists the parameters of a module with these roles, or else those of
    /// [`parameters`](crate::module::parameters()).
    ///
    /// # Errors
    /// Config: a glob matches no parameter, or a parameter lacks the given output axis.
    pub fn parameters<M: Module>(&self, module: &M) -> Result<Vec<Parameter>> {
        let mut found = parameters(module);
        // A user's layer may have the name of a layer of burn; burn's keep their roles.
        let is_known: Vec<bool> = found.iter().map(|one| one.layer.is_some_and(|layer| layer != Layer::Norm)).collect();
        for rule in &self.rules {
            if let Selector::Paths(patterns) = &rule.selector {
                patterns.check_used("parameter", found.iter().map(|parameter| parameter.path.as_str()))?;
            }
            let chosen =
                found.iter_mut().zip(&is_known).filter(|(parameter, is_known)| rule.selector.is(parameter, **is_known));
            chosen.map(|(parameter, _)| parameter).try_for_each(|parameter| rule.assign(parameter))?;
        }
        Ok(found)
    }
}

impl Selector {
    fn is(&self, parameter: &Parameter, is_known: bool) -> bool {
        match self {
            Self::Paths(patterns) => patterns.matches(&parameter.path),
            Self::Field { container, field } => {
                let name = parameter.path.rsplit('.').next().unwrap_or_default();
                *container == parameter.container && name == *field && !is_known
            }
        }
    }
}

impl RoleMatch {
    fn assign(&self, parameter: &mut Parameter) -> Result<()> {
        (parameter.role, parameter.why) = (self.role, "set by Roles");
        if self.role == Role::Parameter {
            return Ok(());
        }
        // With another output axis, the parameter is not treated as burn's layer: files store its weight
        // untransposed.
        parameter.layer = parameter.layer.filter(|_| parameter.axis == self.axis);
        parameter.axis = self.axis;
        match parameter.shape.rank() < 2 || parameter.rows().axis == self.axis {
            true => Ok(()),
            false => {
                let (shape, axis) = (&parameter.shape, self.axis);
                Err(Error::config(format!("its shape {shape} has no output axis {axis:?}")).at(&parameter.path))
            }
        }
    }
}
