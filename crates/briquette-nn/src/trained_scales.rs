//! Trains the scales of weights whose codes stay.

use crate::attached::floats;
use crate::load::places_of;
use crate::load_compressed::inputs_of;
use crate::module::{Trail, read_f32, view};
use crate::{NameMap, Parameter, parameters};
use briquette_core::encoded::ScaleType;
use briquette_core::{ColumnScales, Error, Grouping, OutputAxis, Patterns, Result, Rows};
use briquette_cpu::ActivationGrid;
use briquette_formats::{ActivationGrids, Checkpoint, TensorSource};
use briquette_ops::compressed;
use briquette_ops::fused::masked::ops::fake_quantizes;
use burn::module::{Module, ModuleVisitor, Param, ParamId, Reparameterization, Reparameterizer};
use burn::tensor::{Device, Tensor};
use std::collections::BTreeMap;

/// A weight whose codes stay while the scales of its rows or groups are trained.
///
/// The module computes with `v = w · exp(f)`: `w` are the weights as decoded from a file, and `f` has a number for each scale, 0 at first. So
/// scales stay positive, and a learning rate is a relative change of a scale. `w` gets no gradient.
///
/// Inputs are rounded as kernels of integers will round them, after they are multiplied by the scales of columns.
///
/// Source: Chen et al., "EfficientQAT", 2024, whose second phase trains step sizes alone.
#[derive(Module, Debug)]
pub struct TrainedScales {
    /// `f`, in the order of [`view::group_dims`]; empty if the scales are not trained.
    log_factor: Param<Tensor<1>>,
    #[module(skip)]
    of_weight: ScaledWeight,
}

/// The parts of a weight that a training keeps.
#[derive(Debug, Clone)]
struct ScaledWeight {
    rows: Rows,
    grouping: Grouping,
    is_trained: bool,
    inputs: Option<ActivationGrid>,
    columns: Option<ColumnScales>,
}

/// Attaches trained scales to all weights of a module that have codes in a checkpoint.
///
/// The module must have the decoded weights of this checkpoint: see [`load_into`](crate::load_into). Scales of tensors whose name `frozen` matches, and scales of
/// one byte, such as those by the frequency of tokens, stay; the inputs of their layers are rounded like those of others.
///
/// Train on an autodiff device, with all other parameters frozen.
///
/// # Errors
/// - Input: the checkpoint does not fit the module.
/// - Io: the scales cannot be read.
/// - Config: no scale is left to train.
pub fn train_scales<M: Module>(module: M, checkpoint: &Checkpoint, names: &NameMap, frozen: &Patterns) -> Result<M> {
    let weights = weights_of(&names.parameters(&module)?, checkpoint, names, frozen)?;
    if !weights.values().any(|weight| weight.is_trained) {
        let message =
            "found no tensor with codes whose scales can be trained; quantize the model first, or freeze fewer tensors";
        return Err(Error::config(message).at(checkpoint.path().display()));
    }
    Ok(module.apply_reparameterization(Attach { weights, made: BTreeMap::new() }))
}

/// Makes the layers of a module round their inputs as they are rounded where the layers run on the codes of a checkpoint.
///
/// The weights stay as they are: load the decoded ones. Parameters may still be blank.
///
/// # Errors
/// - Input: the checkpoint does not fit the module.
/// - Io: the scales of columns cannot be read.
pub fn round_inputs<M: Module>(module: M, checkpoint: &Checkpoint, names: &NameMap) -> Result<M> {
    let mut weights = weights_of(&names.parameters(&module)?, checkpoint, names, &Patterns::default())?;
    weights.retain(|_, weight| weight.inputs.is_some());
    weights.values_mut().for_each(|weight| weight.is_trained = false);
    Ok(module.apply_reparameterization(Attach { weights, made: BTreeMap::new() }))
}

/// Returns the factors of all trained scales by the path of the weight: a number for each row, or for each group of each row, in the
/// order of a file.
///
/// # Errors
/// Io: a device fails.
pub fn scale_factors<M: Module>(module: &M) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut reader = LogReader { trail: Trail::default(), found: BTreeMap::new() };
    module.visit(&mut reader);
    let rows: BTreeMap<String, Rows> =
        parameters(module).into_iter().map(|one| (one.path.clone(), one.rows())).collect();
    let factors = |(path, log): (String, Result<Vec<f32>>)| {
        let rows = rows.get(&path).ok_or_else(|| Error::bug("scales without a weight").at(&path))?;
        let factors: Vec<f32> = log?.into_iter().map(f32::exp).collect();
        let zeros = vec![0.0; factors.len()];
        let by_row = view::affines_to_rows(factors, zeros, rows);
        Ok((path, by_row.into_iter().map(|affine| affine.scale).collect()))
    };
    reader.found.into_iter().map(factors).collect()
}

/// Finds the weights with codes, with the parts that stay.
fn weights_of(
    wanted: &[Parameter],
    checkpoint: &Checkpoint,
    names: &NameMap,
    frozen: &Patterns,
) -> Result<BTreeMap<String, ScaledWeight>> {
    let Some(stored) = checkpoint.stored() else { return Ok(BTreeMap::new()) };
    let places = places_of(wanted, checkpoint, names)?;
    let grids = ActivationGrids::of(checkpoint)?;
    let mut weights = BTreeMap::new();
    for parameter in wanted {
        let Some(&place) = places.get(&parameter.path) else { continue };
        let (tensor, rows) = (&stored.tensors[place.index], parameter.rows());
        let Some(codes) = tensor.coding.codes else { continue };
        let of_file = tensor.rows();
        let has_same_rows = [of_file.n_rows, of_file.n_cols] == [rows.n_rows, rows.n_cols]
            && is_by_output(parameter, place.is_turned, tensor.axis);
        let is_trained = has_same_rows && codes.scale != ScaleType::Log8 && !frozen.matches(&tensor.info.name);
        let inputs = inputs_of(parameter, place, (checkpoint, &grids));
        let columns = stored.columns(place.index)?;
        let weight = ScaledWeight { rows, grouping: codes.grouping, is_trained, inputs, columns };
        weights.insert(parameter.path.clone(), weight);
    }
    Ok(weights)
}

/// Returns whether the rows of a tensor in the file are those of the parameter, whichever axis counts them.
fn is_by_output(parameter: &Parameter, is_turned: bool, axis: OutputAxis) -> bool {
    match parameter.is_linear_weight() {
        true => is_turned == (axis == OutputAxis::First),
        false => !is_turned && parameter.rows().axis == axis,
    }
}

impl TrainedScales {
    fn of(weight: ScaledWeight, device: &Device) -> Self {
        let n = if weight.is_trained { view::n_scales(&weight.rows, weight.grouping) } else { 0 };
        let zeros = floats(vec![0.0; n], device);
        let log_factor = match weight.is_trained {
            true => Param::from_tensor(zeros),
            false => Param::initialized(ParamId::new(), zeros),
        };
        Self { log_factor, of_weight: weight }
    }

    /// Rounds the inputs of the layer, rows of `n_cols` values, as kernels of integers do. Gradients pass straight through.
    pub(crate) fn rounded<const D: usize>(&self, x: Tensor<D>, n_cols: usize) -> Tensor<D> {
        let Some(grid) = self.of_weight.inputs.filter(|_| x.shape().num_elements() > 0) else { return x };
        let Some(columns) = &self.of_weight.columns else { return fake_quantized(x, n_cols, grid) };
        let mut dims = [1; D];
        dims[D - 1] = n_cols;
        let columns = floats(columns.values().to_vec(), &x.device()).reshape(dims);
        fake_quantized(x * columns.clone(), n_cols, grid) / columns
    }
}

impl Reparameterization for TrainedScales {
    const NAME: &'static str = "scales";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let ScaledWeight { rows, grouping, is_trained, .. } = &self.of_weight;
        if !is_trained {
            return base;
        }
        let (dims, scale_dims) = view::group_dims(rows, *grouping);
        let shape = base.shape();
        (base.reshape(dims) * self.log_factor.val().exp().reshape(scale_dims)).reshape(shape)
    }
}

/// Fake-quantizes rows of `n_cols` values. Gradients pass straight through.
fn fake_quantized<const D: usize>(x: Tensor<D>, n_cols: usize, grid: ActivationGrid) -> Tensor<D> {
    if fake_quantizes(&x) {
        return compressed::fake_quantize_activations(x, n_cols, grid);
    }
    let rounded = compressed::round_activations(x.clone(), n_cols, grid);
    (x.clone() - x.detach()) + rounded
}

/// Attaches scales to the weights with these paths.
struct Attach {
    weights: BTreeMap<String, ScaledWeight>,
    /// The scales of each parameter: fields that share it share them.
    made: BTreeMap<ParamId, TrainedScales>,
}

impl Reparameterizer for Attach {
    type Reparam = TrainedScales;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<TrainedScales>) {
        let Some(weight) = self.weights.remove(path) else { return (param, None) };
        let made = || TrainedScales::of(weight, &param.lazy_device());
        let scales = self.made.entry(param.id).or_insert_with(made).clone();
        (param, Some(scales))
    }
}

/// Reads `f` of each weight with trained scales.
struct LogReader {
    trail: Trail,
    found: BTreeMap<String, Result<Vec<f32>>>,
}

impl ModuleVisitor for LogReader {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some((path, name, _)) = self.trail.reparameterized() else { return };
        if name == TrainedScales::NAME && param.lazy_shape().num_elements() > 0 {
            let log = read_f32(param.base(), &path);
            self.found.insert(path, log);
        }
    }
}
