//! Products, convolutions and lookups with quantized weights.

use super::activations::round_activations;
use super::weights::{Conv2dCall, LinearWeights, Table, Weights};
use briquette_core::{Error, ErrorKind, Result};
use briquette_cpu::OutputBounds;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, ExecutionError, Int, Tensor, TensorData};

/// Operations of a backend with quantized weights.
///
/// A missing bias, scale or shift is passed as any tensor, which is not read.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub trait QuantizedOps: Backend {
    /// Computes `x · wᵀ + bias` over the last dimension of `x`, in the type of `x`.
    #[fusion(dtype = x, shape = super::shapes::linear_shape(x, weights))]
    fn quantized_linear(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        weights: LinearWeights,
        has_bias: bool,
    ) -> FloatTensor<Self>;

    /// Computes a convolution of `x` `[n, in, height, width]`, in the type of `x`.
    #[fusion(dtype = x, shape = super::shapes::conv2d_shape(x, call))]
    fn quantized_conv2d(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self>;

    /// Computes the same with `y` added before ReLU; both are f32.
    #[fusion(dtype = y, shape = y)]
    fn quantized_conv2d_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self>;

    /// Looks up rows of a table as f32, with one more dimension than `ids`.
    #[fusion(dtype = DType::F32, shape = super::shapes::embedding_shape(ids, table))]
    fn quantized_embedding(ids: IntTensor<Self>, table: Table) -> FloatTensor<Self>;

    /// Returns the weights as rows of floats in the type of `like`, which is on their device.
    #[fusion(dtype = like, shape = burn::tensor::Shape::new(weights.dims()))]
    fn quantized_decode(like: FloatTensor<Self>, weights: Weights) -> FloatTensor<Self>;
}

/// Computes `y[.., o] = Σᵢ x[.., i] * w[o, i] + bias[o]`.
///
/// With scales of columns, `x` is multiplied by them first.
///
/// See [`int8_linear`](briquette_cpu::int8_linear), [`weight_only_linear`](briquette_cpu::weight_only_linear),
/// [`int4_linear`](briquette_cpu::int4_linear) and [`w4a8_linear`](briquette_cpu::w4a8_linear()).
///
/// # Panics
/// - If the last dimension of `x` is not the number of inputs.
/// - If the length of the bias is not the number of outputs.
/// - If the weights are on another device than `x`.
pub fn linear<const D: usize>(x: Tensor<D>, weights: &LinearWeights, bias: Option<Tensor<1>>) -> Tensor<D> {
    if let Some(bias) = &bias {
        assert_eq!(bias.dims()[0], weights.n_out(), "a bias for {} outputs", weights.n_out());
    }
    let x = match weights.multiplies_before() {
        Some(columns) => columns.multiply(x),
        None => x,
    };
    let x = match weights.rounds_before() {
        Some(grid) => round_activations(x, weights.n_in(), grid),
        None => x,
    };
    let (has_bias, x) = (bias.is_some(), x.into_dispatch());
    let bias = bias.map_or_else(|| x.clone(), Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as QuantizedOps>::quantized_linear(x, bias, weights.clone(), has_bias))
}

/// Computes a convolution of `x` `[n, in, height, width]`, with optional scale, shift and addition.
///
/// Each output channel is multiplied by `scale`, shifted by `shift` and added to `y`, if given. See
/// [`int8_conv2d`](briquette_cpu::int8_conv2d()) and [`ConvEpilogue`](briquette_cpu::ConvEpilogue).
///
/// # Panics
/// - If `x` does not have the channels of the weights.
/// - If `y` does not have the shape of the output, or `x` or `y` is not f32 while `y` is given.
/// - If the weights are on another device than `x`.
pub fn conv2d(
    x: Tensor<4>,
    y: Option<Tensor<4>>,
    [scale, shift]: [Option<Tensor<1>>; 2],
    call: Conv2dCall,
) -> Tensor<4> {
    for given in [&scale, &shift].into_iter().flatten() {
        assert_eq!(given.dims()[0], call.shape.n_out, "a scale or shift for {} outputs", call.shape.n_out);
    }
    let is_cut_after = call.weights.placed.on_host().is_none() && call.bounds == OutputBounds::Relu6;
    let bounds = if is_cut_after { OutputBounds::Relu } else { call.bounds };
    let call = Conv2dCall { has_scale: scale.is_some(), has_shift: shift.is_some(), bounds, ..call };
    let x = x.into_dispatch();
    let [scale, shift] = [scale, shift].map(|given| given.map_or_else(|| x.clone(), Tensor::into_dispatch));
    let y = Tensor::from_dispatch(match y {
        Some(y) => <Dispatch as QuantizedOps>::quantized_conv2d_add(x, y.into_dispatch(), scale, shift, call),
        None => <Dispatch as QuantizedOps>::quantized_conv2d(x, scale, shift, call),
    });
    // Kernels on GPUs know ReLU alone.
    if is_cut_after { y.clamp_max(6.0) } else { y }
}

/// Looks up rows of a table for `ids` `[n, tokens]`, as `[n, tokens, n_cols]`.
///
/// See [`int8_embedding`](briquette_cpu::int8_embedding).
///
/// # Panics
/// - If an id is not a row of the table, on the CPU; a GPU gives a row of NaN.
/// - If the table is on another device than `ids`.
pub fn embedding(ids: Tensor<2, Int>, table: &Table) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as QuantizedOps>::quantized_embedding(ids.into_dispatch(), table.clone()))
}

/// Looks up rows of linear weights for `ids` `[n, tokens]`, as f32 `[n, tokens, n_in]`.
///
/// With this, an embedding table tied to the head is stored only once.
///
/// # Panics
/// If an id is not a row, or the weights are not on the CPU.
pub fn look_up(ids: Tensor<2, Int>, weights: &LinearWeights) -> Tensor<3> {
    let ([n, length], n_in, device) = (ids.dims(), weights.n_in(), ids.device());
    let kept = weights.placed.on_host().expect(super::host_or_cuda::ELSEWHERE);
    let mut out = vec![0.0; n * length * n_in];
    for (id, out) in ids.into_data().iter::<i64>().zip(out.chunks_exact_mut(n_in.max(1))) {
        let row = usize::try_from(id).unwrap_or(usize::MAX);
        assert!(row < weights.n_out(), "id {id} in a table of {} rows", weights.n_out());
        kept.read_row(row, out);
        weights.columns().iter().for_each(|columns| columns.scales().multiply(out));
    }
    Tensor::from_data(TensorData::new(out, [n, length, n_in]), &device)
}

/// Returns the weights as rows of floats, `[rows, columns]`, with the device and type of `like`.
pub fn decode<const D: usize>(like: Tensor<D>, weights: &Weights) -> Tensor<2> {
    let rows = decode_rows(like, weights);
    match weights.input_columns() {
        Some(columns) => columns.multiply(rows),
        None => rows,
    }
}

/// Returns the codes times the scales of rows.
fn decode_rows<const D: usize>(like: Tensor<D>, weights: &Weights) -> Tensor<2> {
    let (device, dtype) = (like.device(), like.dtype());
    if let Some(floats) = weights.host_floats() {
        return Tensor::from_data(TensorData::new(floats, weights.dims()), (&device, dtype));
    }
    let plain = like.without_autodiff().into_dispatch();
    let rows = Tensor::from_dispatch(<Dispatch as QuantizedOps>::quantized_decode(plain, weights.clone()));
    if device.is_autodiff() { Tensor::from_inner(rows) } else { rows }
}

/// Returns the codes `[rows, columns]`, including zeros, and the scales: one per row, or one per group. Scales of columns
/// are not part of them.
///
/// Codes on a GPU are read back as `round(value / scale)`, which is exact because a value is its code times its
/// scale.
///
/// # Errors
/// Io: the codes cannot be read from the GPU.
pub fn codes(weights: &Weights, device: &Device) -> Result<(Vec<i8>, Vec<f32>)> {
    if let Some(codes) = weights.host_codes() {
        return Ok(codes);
    }
    let like = Tensor::<1>::zeros([1], (&device.clone().without_autodiff(), DType::F32));
    let data = decode_rows(like, weights).try_into_data().map_err(|error| unreadable(&error))?;
    let scales = weights.cuda_scales().unwrap_or_default();
    let each = data.num_elements() / scales.len().max(1);
    let values: Vec<f32> = data.iter::<f32>().collect();
    let code = |(value, &scale): (&f32, &f32)| if scale == 0.0 { 0 } else { (value / scale).round() as i8 };
    let scale_of = scales.iter().flat_map(|scale| std::iter::repeat_n(scale, each));
    Ok((values.iter().zip(scale_of).map(code).collect(), scales.to_vec()))
}

fn unreadable(error: &ExecutionError) -> Error {
    Error { kind: ErrorKind::Io, ..Error::bug(format!("cannot read codes from the device: {error}")) }
}
