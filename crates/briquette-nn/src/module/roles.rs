//! What a user says of parameters that nothing shows.

use crate::module::layer::Layer;
use crate::module::parameters::{Parameter, parameters};
use briquette_core::{Error, OutputAxis, Patterns, Result, Role};
use burn::module::Module;

/// What parameters are, where they belong to no layer of burn's, or to be used in another way than those are: by path, or by the struct
/// that they are fields of. Of several that match a parameter, the last counts.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use briquette_core::{OutputAxis, Role};
/// use briquette_nn::module::Roles;
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
/// assert_eq!((found[0].role, found[0].rows().n_rows), (Role::Linear, 4)); // a row for each output
/// assert_eq!(found[1].role, Role::Parameter); // which is left alone
/// # }
/// # Ok::<(), briquette_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Roles {
    rules: Vec<RoleMatch>,
}

#[derive(Debug, Clone)]
struct RoleMatch {
    whom: Whom,
    role: Role,
    axis: OutputAxis,
}

#[derive(Debug, Clone)]
enum Whom {
    Paths(Patterns),
    Field { container: String, field: &'static str },
}

/// A layer of one's own, which says what its parameters are. [`Roles::layer`] takes its word wherever a module has such a layer.
///
/// ```
/// use briquette_core::{OutputAxis, Role};
/// use briquette_nn::module::{OwnLayer, Roles};
/// use burn::module::{Module, Param};
/// use burn::tensor::Tensor;
///
/// #[derive(Module, Debug)]
/// struct Gated {
///     values: Param<Tensor<2>>, // [out, in]
///     gates: Param<Tensor<2>>,  // used as it stands
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
    /// The name of the struct.
    const NAME: &'static str;
    /// Each field that is a parameter, what it is, and which of its axes counts outputs. [`Role::Parameter`] leaves it alone.
    const PARAMETERS: &'static [(&'static str, Role, OutputAxis)];
}

impl Roles {
    /// Says nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Matrices that multiply activations: `[out, in]` by [`OutputAxis::First`], `[in, out]` by [`OutputAxis::Last`].
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn linear(self, glob: &str, axis: OutputAxis) -> Result<Self> {
        self.told(glob, Role::Linear, axis)
    }

    /// Filters: `[out, in, ..]` by [`OutputAxis::First`], `[in, out, ..]` by [`OutputAxis::Second`].
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn conv(self, glob: &str, axis: OutputAxis) -> Result<Self> {
        self.told(glob, Role::Conv, axis)
    }

    /// Tables `[n, width]` that are looked up.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn embedding(self, glob: &str) -> Result<Self> {
        self.told(glob, Role::Embedding, OutputAxis::First)
    }

    /// Parameters that are used as they stand: they are left alone.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn leave(self, glob: &str) -> Result<Self> {
        self.told(glob, Role::Parameter, OutputAxis::First)
    }

    /// Takes the word of a layer for its parameters.
    #[must_use]
    pub fn layer<L: OwnLayer>(mut self) -> Self {
        let container = format!("Struct:{}", L::NAME);
        let rule =
            |&(field, role, axis)| RoleMatch { whom: Whom::Field { container: container.clone(), field }, role, axis };
        self.rules.extend(L::PARAMETERS.iter().map(rule));
        self
    }

    fn told(mut self, glob: &str, role: Role, axis: OutputAxis) -> Result<Self> {
        self.rules.push(RoleMatch { whom: Whom::Paths(Patterns::new([glob])?), role, axis });
        Ok(self)
    }

    /// The parameters of a module, each with what is said of it here, or else what [`parameters`](crate::module::parameters()) shows.
    ///
    /// # Errors
    /// Config, where a glob matches no parameter, or a parameter does not have the axis that is said to count outputs.
    pub fn parameters<M: Module>(&self, module: &M) -> Result<Vec<Parameter>> {
        let mut found = parameters(module);
        // A layer of one's own may have the name of one of burn's, which stays what it is.
        let is_known: Vec<bool> = found.iter().map(|one| one.layer.is_some_and(|layer| layer != Layer::Norm)).collect();
        for rule in &self.rules {
            if let Whom::Paths(patterns) = &rule.whom {
                patterns.check_used("parameter", found.iter().map(|parameter| parameter.path.as_str()))?;
            }
            let chosen =
                found.iter_mut().zip(&is_known).filter(|(parameter, is_known)| rule.whom.is(parameter, **is_known));
            chosen.map(|(parameter, _)| parameter).try_for_each(|parameter| rule.tell(parameter))?;
        }
        Ok(found)
    }
}

impl Whom {
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
    fn tell(&self, parameter: &mut Parameter) -> Result<()> {
        (parameter.role, parameter.why) = (self.role, "told");
        if self.role == Role::Parameter {
            return Ok(());
        }
        // A layer whose axes are others is none of burn's: files hold its weight as it lies.
        parameter.layer = parameter.layer.filter(|_| parameter.axis == self.axis);
        parameter.axis = self.axis;
        match parameter.shape.rank() < 2 || parameter.rows().axis == self.axis {
            true => Ok(()),
            false => {
                let (shape, axis) = (&parameter.shape, self.axis);
                Err(Error::config(format!("its shape is {shape}, of which {axis:?} is no axis that counts outputs"))
                    .at(&parameter.path))
            }
        }
    }
}
