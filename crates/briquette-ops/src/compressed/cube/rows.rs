//! Rows that are quantized once and multiplied by several weights.

use super::weights::CudaLinear;
use crate::compressed::int8_blocks::CodedLinear;
use crate::compressed::weights::LinearWeights;
use crate::cube_tensor::{Like, buffer, elem_type, floats, vector};
use briquette_cpu::ActivationGrid;
use briquette_cuda::{CodedRows, DeviceEpilogue, Gpu};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_cubecl::CubeBackend;

/// Operations on rows of 8-bit codes. A missing bias is passed as any tensor, which is not read.
#[backend_extension(Cube, Fusion)]
pub trait RowCodeOps: Backend {
    /// Returns the codes and scales of the rows of `x`: see [`CodedRows`].
    #[fusion(dtype = DType::I32, shape = Shape::new([*n_words]))]
    fn coded_rows(x: FloatTensor<Self>, symmetric: bool, n_words: usize) -> IntTensor<Self>;

    /// Computes `rows · wᵀ + bias`, with the shape and type of an output.
    #[fusion(dtype = of.dtype, shape = of.shape.clone())]
    fn multiply_coded_rows(
        rows: IntTensor<Self>,
        bias: FloatTensor<Self>,
        weights: LinearWeights,
        of: RowOutput,
    ) -> FloatTensor<Self>;
}

/// The output of a product of rows.
#[derive(Debug, Clone)]
pub struct RowOutput {
    shape: Shape,
    dtype: DType,
    has_bias: bool,
}

impl RowCodeOps for CubeBackend {
    fn coded_rows(x: FloatTensor<Self>, symmetric: bool, n_words: usize) -> IntTensor<Self> {
        let (gpu, like, shape) = (Gpu::new(x.client.clone()), Like(x.clone()), x.meta.shape().clone());
        let coded = CodedRows::new(&gpu, &floats(x, shape[shape.num_dims() - 1]), symmetric);
        like.of_buffer(coded.buffer, Shape::new([n_words]), DType::I32)
    }

    fn multiply_coded_rows(
        rows: IntTensor<Self>,
        bias: FloatTensor<Self>,
        weights: LinearWeights,
        of: RowOutput,
    ) -> FloatTensor<Self> {
        let CudaLinear::Int8(int8) = super::quantized::on_cuda(&weights.placed) else {
            panic!("found weights of 4 bits, expected 8");
        };
        let like = Like(rows.clone());
        let n_rows = of.shape.num_elements().checked_div(int8.n_out()).unwrap_or(0);
        let coded = CodedRows { buffer: buffer(rows), n_rows, n_cols: int8.n_in() };
        let epilogue = DeviceEpilogue { shift: vector(bias, of.has_bias), ..DeviceEpilogue::default() };
        like.of_type(int8.linear_of(&coded, elem_type(of.dtype), &epilogue), of.shape, of.dtype)
    }
}

/// Computes products of one input with weights that take the same codes.
pub(in crate::compressed) fn linears<const D: usize>(
    x: Tensor<D>,
    layers: &[CodedLinear],
    grid: ActivationGrid,
) -> Vec<Tensor<D>> {
    let (dims, dtype) = (x.dims(), x.dtype());
    let (n_in, n_rows) = (dims[D - 1], dims[..D - 1].iter().product());
    assert!(layers.iter().all(|layer| layer.weights.n_in() == n_in), "{dims:?} times weights of other inputs");
    let (x, n_words) = (x.into_dispatch(), CodedRows::n_words(n_rows, n_in));
    let rows = <Dispatch as RowCodeOps>::coded_rows(x.clone(), grid != ActivationGrid::Asymmetric, n_words);
    let rows = Tensor::<1, Int>::from_dispatch(rows);
    let product = |CodedLinear { weights, bias }: &CodedLinear| {
        let mut dims = dims;
        dims[D - 1] = weights.n_out();
        let of = RowOutput { shape: Shape::new(dims), dtype, has_bias: bias.is_some() };
        let bias = bias.clone().map_or_else(|| x.clone(), Tensor::into_dispatch);
        let rows = rows.clone().into_dispatch();
        Tensor::from_dispatch(<Dispatch as RowCodeOps>::multiply_coded_rows(rows, bias, weights.clone(), of))
    };
    layers.iter().map(product).collect()
}
