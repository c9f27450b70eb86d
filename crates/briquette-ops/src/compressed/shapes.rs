//! Output shapes of operations.

use super::weights::{Conv2dCall, LinearWeights, Table};
use burn::tensor::Shape;

/// Maps `[.., n_in]` to `[.., n_out]`.
pub(super) fn linear_shape(x: &Shape, weights: &LinearWeights) -> Shape {
    let mut shape = x.clone();
    let last = shape.num_dims() - 1;
    shape[last] = weights.n_out();
    shape
}

/// Maps `[n, in, height, width]` to `[n, out, height, width]`.
pub(super) fn conv2d_shape(x: &Shape, call: &Conv2dCall) -> Shape {
    let [height, width] = call.shape.out_size([x[2], x[3]]);
    Shape::new([x[0], call.shape.n_out, height, width])
}

/// Maps `[..]` to `[.., n_cols]`.
pub(super) fn embedding_shape(ids: &Shape, table: &Table) -> Shape {
    Shape::from((0..ids.num_dims()).map(|i| ids[i]).chain([table.n_cols()]).collect::<Vec<_>>())
}
