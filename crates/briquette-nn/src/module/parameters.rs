//! Lists the parameters of a module with paths, kinds and shapes, without initializing any.

use crate::module::layer::{DOWN, Identified, Layer, StructSeen};
use crate::module::{Trail, is_of_burn};
use briquette_core::{OutputAxis, Role, Rows, Shape};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;

/// The field of layers in `crate::layers` with the use of their codes, and its variant for a table that is also
/// the head.
const CODES: &str = "codes";
const AS_HEAD: &str = "Head";

/// Type of a parameter's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Floats: weights, biases, running statistics.
    Float,
    /// Integers.
    Int,
    /// Booleans.
    Bool,
}

/// A parameter of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Dotted path, such as `blocks.0.weight`.
    pub path: String,
    /// Type of the elements.
    pub kind: Kind,
    /// Extents in burn's order.
    pub shape: Shape,
    /// Type of the module with this field, as burn names it: `Struct:Linear`.
    pub container: String,
    /// Name of the attached reparameterization, such as `lora` or one of Briquette's.
    pub reparameterized: Option<String>,
    /// Path of an earlier field with the same parameter, if any: a clone has the same `ParamId`.
    pub shares: Option<String>,
    /// The layer that the parameter belongs to; `None` for other structs, even with the same name and fields.
    pub layer: Option<Layer>,
    /// Role of the parameter. Unknown parameters are skipped unless [`Roles`](crate::module::Roles) gives them
    /// a role.
    pub role: Role,
    /// Axis that counts outputs.
    pub axis: OutputAxis,
    /// Evidence for the role.
    pub why: &'static str,
    /// Whether the layer is one of `crate::layers`, which can run on codes.
    pub runs_on_codes: bool,
    /// Whether the parameter is an embedding table that is also the head (tied weights).
    pub is_head: bool,
}

impl Parameter {
    /// Returns whether this is the matrix of a `Linear`, which burn stores `[in, out]`.
    pub fn is_linear_weight(&self) -> bool {
        self.layer == Some(Layer::Linear)
    }

    /// Returns the extents `[out, in / groups, ky, kx]` of a `Conv2d` weight.
    pub fn conv_dims(&self) -> Option<[usize; 4]> {
        self.shape.0.as_slice().try_into().ok().filter(|_| self.layer == Some(Layer::Conv))
    }

    /// Returns whether this belongs to a norm.
    pub fn is_norm(&self) -> bool {
        self.layer == Some(Layer::Norm)
    }

    /// Returns the parameter as rows, one per output.
    pub fn rows(&self) -> Rows {
        Rows::of(&self.shape, self.axis)
    }

    /// Returns the path of the first field with this parameter, which differs from its own if it
    /// [shares](Self::shares) one.
    pub fn first_path(&self) -> &str {
        self.shares.as_deref().unwrap_or(&self.path)
    }
}

/// Lists the parameters and running statistics of a module, in module order. Those inside reparameterizations
/// are left out.
pub fn parameters<M: Module>(module: &M) -> Vec<Parameter> {
    let mut walk = Walk::default();
    module.visit(&mut walk);
    let Walk { mut found, structs, .. } = walk;
    let parent = |path: &str| path.rsplit_once('.').map_or("", |(parent, _)| parent).to_string();
    let nobody = StructSeen::default();
    let seen: Vec<&StructSeen> =
        found.iter().map(|parameter| structs.get(&parent(&parameter.path)).unwrap_or(&nobody)).collect();
    let field = |parameter: &Parameter| field_of(&parameter.path).to_string();
    let identified: Vec<Identified> =
        found.iter().zip(&seen).map(|(parameter, seen)| seen.identify(&field(parameter))).collect();
    let is_down = |path: &str| {
        let (layer, weight) = (parent(path), field_of(path));
        weight == "weight" && field_of(&layer) == DOWN && structs.get(&parent(&layer)).is_some_and(StructSeen::has_down)
    };
    for (parameter, identified) in found.iter_mut().zip(identified) {
        let role = if parameter.kind == Kind::Float { identified.role } else { Role::Other };
        (parameter.layer, parameter.role, parameter.axis) = (identified.layer, role, identified.axis);
        (parameter.why, parameter.runs_on_codes) = (identified.why, identified.is_ours || is_down(&parameter.path));
        let variant = structs.get(&format!("{}.{CODES}", parent(&parameter.path)));
        parameter.is_head = identified.is_ours && variant.is_some_and(|seen| seen.fields == [AS_HEAD]);
    }
    found
}

fn field_of(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or_default()
}

/// Returns whether records store a matrix transposed, as with `LinearLayout::Col`: records then have `[out,
/// in]`.
pub fn is_kept_turned<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    if D != 2 {
        return false;
    }
    let mut shape = [1; D];
    shape[D - 1] = 2;
    let probe = Tensor::zeros(shape, &param.lazy_device());
    param.clone().transform_for_load(probe, param.id).base().dims() != shape
}

/// Returns the shape `[in, out]` of a `Linear`'s matrix. For an uninitialized one, burn reports the shape
/// before transposition.
pub fn linear_shape<const D: usize>(param: &Param<Tensor<D>>) -> Vec<usize> {
    let mut shape = param.lazy_shape().to_vec();
    if !param.is_initialized() && is_kept_turned(param) {
        shape.reverse();
    }
    shape
}

#[derive(Default)]
struct Walk {
    trail: Trail,
    found: Vec<Parameter>,
    /// Structs with parameters, by path.
    structs: BTreeMap<String, StructSeen>,
    /// Index of the first field with each float parameter.
    first: HashMap<ParamId, usize>,
}

impl Walk {
    fn push(&mut self, id: ParamId, kind: Kind, shape: &[usize]) {
        if self.trail.reparameterized().is_some() {
            return;
        }
        let (parent, field) = self.trail.split();
        if let Some(seen) = self.structs.get_mut(&parent) {
            seen.shapes.push((field, Shape(shape.to_vec())));
        }
        let Identified { layer, role, axis, why, is_ours } = Identified::unknown("");
        let shares = self.shared(id, kind, shape);
        self.found.push(Parameter {
            path: self.trail.path(),
            kind,
            shape: Shape(shape.to_vec()),
            container: self.trail.container().to_string(),
            reparameterized: None,
            shares,
            layer,
            role,
            axis,
            why,
            runs_on_codes: is_ours,
            is_head: false,
        });
    }

    /// Returns the path of the first field with the same floats.
    fn shared(&mut self, id: ParamId, kind: Kind, shape: &[usize]) -> Option<String> {
        let first = *self.first.entry(id).or_insert(self.found.len());
        let first = self.found.get(first).filter(|first| kind == Kind::Float && first.kind == kind)?;
        (first.shape.0 == shape).then(|| first.path.clone())
    }
}

impl ModuleVisitor for Walk {
    #[track_caller]
    fn enter_module(&mut self, name: &str, container_type: &str) {
        let is_of_burn = is_of_burn(Location::caller());
        self.trail.enter(name, container_type);
        let (parent, field) = self.trail.split();
        let seen = self.structs.entry(parent).or_default();
        (seen.container, seen.is_of_burn) = (container_type.to_string(), is_of_burn);
        seen.fields.push(field);
        if let (Some((path, name, _)), Some(last)) = (self.trail.reparameterized(), self.found.last_mut())
            && last.path == path
        {
            last.reparameterized = Some(name.to_string());
        }
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_linear = self.trail.is_linear_weight::<D>();
        let shape = if is_linear { linear_shape(param) } else { param.lazy_shape().to_vec() };
        self.push(param.id, Kind::Float, &shape);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.push(param.id, Kind::Int, param.lazy_shape().as_slice());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.push(param.id, Kind::Bool, param.lazy_shape().as_slice());
    }
}
