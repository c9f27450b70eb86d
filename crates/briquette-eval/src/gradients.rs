//! The gradients of a network's parameters, on the host.

use briquette_core::{Error, Result};
use briquette_nn::NameMap;
use briquette_nn::module::{Parameter, Trail, read_f32};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Gradients, Tensor};
use std::collections::BTreeMap;

/// A form in which a parameter's gradient is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GradientForm {
    /// `∂ℓ/∂w`.
    Plain,
    /// `w · ∂ℓ/∂w`.
    TimesWeight,
}

/// Receives a parameter, its name in files, and its gradient in the parameter's own order.
pub(crate) type GradientUse<'a> = &'a mut dyn FnMut(&Parameter, &str, Vec<f32>) -> Result<()>;

/// Calls `each` with the gradient of every parameter that has one and a name in files that `wants` accepts.
///
/// # Errors
/// - Config: roles of the name map match no parameter.
/// - Io: the device cannot be read.
/// - The first error of `each`.
pub(crate) fn each_gradient<M: Module>(
    network: &M,
    names: &NameMap,
    (gradients, form): (&Gradients, GradientForm),
    wants: impl Fn(&Parameter, &str) -> bool,
    each: GradientUse,
) -> Result<()> {
    let named = names.parameters(network)?.into_iter().map(|parameter| (names.file_name(&parameter), parameter));
    let wanted = named.filter(|(name, parameter)| wants(parameter, name));
    let wanted = wanted.map(|(name, parameter)| (parameter.path.clone(), (parameter, name))).collect();
    let mut visitor = GradientVisitor { gradients, form, wanted, trail: Trail::default(), each, found: Ok(()) };
    network.visit(&mut visitor);
    visitor.found
}

struct GradientVisitor<'a> {
    gradients: &'a Gradients,
    form: GradientForm,
    /// The wanted parameters and their names in files, by path.
    wanted: BTreeMap<String, (Parameter, String)>,
    trail: Trail,
    each: GradientUse<'a>,
    found: Result<(), Error>,
}

impl ModuleVisitor for GradientVisitor<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Parameters that were not loaded stay uninitialized.
        if self.found.is_ok()
            && param.is_initialized()
            && let Some((parameter, name)) = self.wanted.get(&self.trail.path())
            && let Some(gradient) = param.val().grad(self.gradients)
        {
            let gradient = gradient.cast(FloatDType::F32);
            let found = match self.form {
                GradientForm::Plain => gradient,
                GradientForm::TimesWeight => param.val().without_autodiff().cast(FloatDType::F32) * gradient,
            };
            let values = read_f32(found, "gradients");
            self.found = values.and_then(|values| (self.each)(parameter, name, values));
        }
    }
}
