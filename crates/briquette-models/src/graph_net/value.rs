//! Tensors of any rank, as operations of a graph exchange them.

use briquette_core::Result;
use briquette_graph::ValueId;
use briquette_nn::module::read_f32;
use briquette_ops::compressed::ImageCodes;
use burn::tensor::{Device, FloatDType, Gradients, Int, Tensor, TensorData};
use std::sync::Arc;

/// A tensor between two operations of a graph.
#[derive(Debug, Clone)]
pub enum AnyTensor {
    /// Rank 1.
    One(Tensor<1>),
    /// Rank 2.
    Two(Tensor<2>),
    /// Rank 3.
    Three(Tensor<3>),
    /// Rank 4.
    Four(Tensor<4>),
    /// Rank 5.
    Five(Tensor<5>),
    /// Rank 6.
    Six(Tensor<6>),
    /// Indices `[batch, length]`.
    Ids(Tensor<2, Int>),
    /// Codes of images on the CPU, and the device of their tensors.
    Codes(Arc<ImageCodes>, Device),
}

/// Takes a value of a run.
pub type ValueObserver<'a> = dyn FnMut(ValueId, &AnyTensor) -> Result<()> + 'a;

/// Evaluates an expression with the float tensor of a value, whatever its rank.
///
/// # Panics
/// If the value has indices.
macro_rules! with_tensor {
    ($value:expr, $x:ident => $body:expr) => {
        match $value {
            $crate::graph_net::value::AnyTensor::One($x) => $body,
            $crate::graph_net::value::AnyTensor::Two($x) => $body,
            $crate::graph_net::value::AnyTensor::Three($x) => $body,
            $crate::graph_net::value::AnyTensor::Four($x) => $body,
            $crate::graph_net::value::AnyTensor::Five($x) => $body,
            $crate::graph_net::value::AnyTensor::Six($x) => $body,
            $crate::graph_net::value::AnyTensor::Ids(_) => panic!("found indices, expected floats"),
            $crate::graph_net::value::AnyTensor::Codes(..) => panic!("found codes, expected floats"),
        }
    };
}
pub(super) use with_tensor;

macro_rules! of_rank {
    ($rank:literal, $variant:ident, $get:ident) => {
        impl From<Tensor<$rank>> for AnyTensor {
            fn from(tensor: Tensor<$rank>) -> Self {
                Self::$variant(tensor)
            }
        }

        impl AnyTensor {
            #[doc = concat!("Returns the tensor of a value of rank ", stringify!($rank), ".")]
            ///
            /// # Panics
            /// If the value has another rank.
            #[track_caller]
            pub fn $get(self) -> Tensor<$rank> {
                match self {
                    Self::$variant(tensor) => tensor,
                    other => panic!("found {:?}, expected rank {}", other.dims(), $rank),
                }
            }
        }
    };
}
of_rank!(1, One, one);
of_rank!(2, Two, two);
of_rank!(3, Three, three);
of_rank!(4, Four, four);
of_rank!(5, Five, five);
of_rank!(6, Six, six);

impl From<Tensor<2, Int>> for AnyTensor {
    fn from(ids: Tensor<2, Int>) -> Self {
        Self::Ids(ids)
    }
}

impl AnyTensor {
    /// Returns the device.
    pub(super) fn device(&self) -> Device {
        match self {
            Self::Ids(ids) => ids.device(),
            Self::Codes(_, device) => device.clone(),
            floats => with_tensor!(floats, x => x.device()),
        }
    }

    /// Returns the extents.
    pub fn dims(&self) -> Vec<usize> {
        match self {
            Self::Ids(ids) => ids.dims().to_vec(),
            Self::Codes(codes, _) => codes.dims.to_vec(),
            floats => with_tensor!(floats, x => x.dims().to_vec()),
        }
    }

    /// Copies the elements to the host, in f32.
    ///
    /// # Errors
    /// Io: the device fails.
    ///
    /// # Panics
    /// If the value has indices.
    pub fn to_f32(&self, what: &str) -> Result<Vec<f32>> {
        with_tensor!(self, x => read_f32(x.clone().cast(FloatDType::F32), what))
    }

    /// Decodes codes to floats.
    pub(super) fn decoded(self) -> Self {
        match self {
            Self::Codes(codes, device) => {
                Tensor::<4>::from_data(TensorData::new(codes.to_floats(), codes.dims), &device).into()
            }
            other => other,
        }
    }

    /// Returns a leaf of an autodiff graph with these elements.
    pub(crate) fn leaf(self) -> Self {
        with_tensor!(self, x => Tensor::from_inner(x).require_grad().into())
    }

    /// Returns the gradient of a leaf; zeros if it has none.
    pub(crate) fn gradient(&self, gradients: &Gradients) -> Self {
        with_tensor!(self, x => x.grad(gradients).unwrap_or_else(|| x.clone().inner().zeros_like()).into())
    }

    /// Returns the sum of the products with other values, which are not differentiated.
    pub(crate) fn dot(self, other: Self) -> Tensor<1> {
        let other = with_tensor!(other, x => Self::from(Tensor::from_inner(x)));
        with_tensor!(self.zip(other, BinaryFunction::Mul), x => x.sum())
    }

    /// Returns the indices.
    ///
    /// # Panics
    /// If the value has floats.
    pub fn ids(self) -> Tensor<2, Int> {
        match self {
            Self::Ids(ids) => ids,
            other => panic!("found floats {:?}, expected indices", other.dims()),
        }
    }

    /// Returns the elements as indices, `[n]`.
    pub(super) fn flat_ids(self) -> Tensor<1, Int> {
        match self {
            Self::Ids(ids) => ids.flatten::<1>(0, 1),
            floats => with_tensor!(floats, x => {
                let n = x.shape().num_elements();
                x.reshape([n]).int()
            }),
        }
    }

    /// Returns indices as floats.
    pub(super) fn floats(self) -> Self {
        match self {
            Self::Ids(ids) => ids.float().into(),
            floats => floats,
        }
    }

    /// Returns the same elements in another shape.
    ///
    /// # Panics
    /// If the number of elements differs, or the rank is not 1 to 6.
    pub fn reshaped(self, shape: &[usize]) -> Self {
        with_tensor!(self, x => match *shape {
            [a] => x.reshape([a]).into(),
            [a, b] => x.reshape([a, b]).into(),
            [a, b, c] => x.reshape([a, b, c]).into(),
            [a, b, c, d] => x.reshape([a, b, c, d]).into(),
            [a, b, c, d, e] => x.reshape([a, b, c, d, e]).into(),
            [a, b, c, d, e, f] => x.reshape([a, b, c, d, e, f]).into(),
            _ => panic!("found rank {}, expected 1 to 6", shape.len()),
        })
    }

    /// Repeats axes of extent 1 up to `shape`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub(super) fn expanded(self, shape: &[usize]) -> Self {
        match self.with_rank(shape.len()) {
            Self::One(x) => x.expand(array::<1>(shape)).into(),
            Self::Two(x) => x.expand(array::<2>(shape)).into(),
            Self::Three(x) => x.expand(array::<3>(shape)).into(),
            Self::Four(x) => x.expand(array::<4>(shape)).into(),
            Self::Five(x) => x.expand(array::<5>(shape)).into(),
            Self::Six(x) => x.expand(array::<6>(shape)).into(),
            Self::Ids(_) | Self::Codes(..) => panic!("found indices or codes, expected floats"),
        }
    }

    /// Reorders the axes: axis `i` of the result is axis `permutation[i]`.
    ///
    /// # Panics
    /// If this is no permutation of the axes.
    pub(super) fn permuted(self, permutation: &[usize]) -> Self {
        match self {
            Self::One(x) => x.permute(signed::<1>(permutation)).into(),
            Self::Two(x) => x.permute(signed::<2>(permutation)).into(),
            Self::Three(x) => x.permute(signed::<3>(permutation)).into(),
            Self::Four(x) => x.permute(signed::<4>(permutation)).into(),
            Self::Five(x) => x.permute(signed::<5>(permutation)).into(),
            Self::Six(x) => x.permute(signed::<6>(permutation)).into(),
            Self::Codes(..) => panic!("found codes, expected floats"),
            Self::Ids(_) => panic!("found indices, expected floats"),
        }
    }

    /// Returns `len` elements of an axis from `start` on.
    pub(super) fn narrowed(self, axis: usize, start: usize, len: usize) -> Self {
        with_tensor!(self, x => x.narrow(axis, start, len).into())
    }

    /// Adds axes of extent 1 in front, up to this rank.
    pub(super) fn with_rank(self, rank: usize) -> Self {
        let dims = self.dims();
        if dims.len() >= rank {
            return self;
        }
        let shape: Vec<usize> = std::iter::repeat_n(1, rank - dims.len()).chain(dims).collect();
        self.reshaped(&shape)
    }

    /// Applies a function to two values, which broadcast.
    pub(super) fn zip(self, other: Self, op: BinaryFunction) -> Self {
        let rank = self.dims().len().max(other.dims().len());
        match (self.with_rank(rank), other.with_rank(rank)) {
            (Self::One(a), Self::One(b)) => op.apply(a, b).into(),
            (Self::Two(a), Self::Two(b)) => op.apply(a, b).into(),
            (Self::Three(a), Self::Three(b)) => op.apply(a, b).into(),
            (Self::Four(a), Self::Four(b)) => op.apply(a, b).into(),
            (Self::Five(a), Self::Five(b)) => op.apply(a, b).into(),
            (Self::Six(a), Self::Six(b)) => op.apply(a, b).into(),
            _ => panic!("found indices, expected floats"),
        }
    }

    /// Joins values along an axis.
    ///
    /// # Panics
    /// If the ranks differ or there is no value.
    pub(super) fn joined(values: Vec<Self>, axis: usize) -> Self {
        let rank = values.first().expect("values to join").dims().len();
        match rank {
            1 => Tensor::cat(values.into_iter().map(Self::one).collect(), axis).into(),
            2 => Tensor::cat(values.into_iter().map(Self::two).collect(), axis).into(),
            3 => Tensor::cat(values.into_iter().map(Self::three).collect(), axis).into(),
            4 => Tensor::cat(values.into_iter().map(Self::four).collect(), axis).into(),
            5 => Tensor::cat(values.into_iter().map(Self::five).collect(), axis).into(),
            _ => Tensor::cat(values.into_iter().map(Self::six).collect(), axis).into(),
        }
    }
}

/// A function of two tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryFunction {
    Add,
    Sub,
    Mul,
    /// `[.., m, k] · [.., k, n]`.
    MatMul,
    /// `[.., m, k] · [.., n, k]ᵀ`.
    MatMulTransposed,
}

impl BinaryFunction {
    fn apply<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::MatMul => a.matmul(b),
            Self::MatMulTransposed => a.matmul(b.swap_dims(D - 2, D - 1)),
        }
    }
}

fn array<const D: usize>(shape: &[usize]) -> [usize; D] {
    shape.try_into().expect("a shape of this rank")
}

fn signed<const D: usize>(permutation: &[usize]) -> [isize; D] {
    array(permutation).map(|axis: usize| axis as isize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn values_keep_their_elements_through_shapes_and_broadcast() {
        let x: AnyTensor = Tensor::<1, Int>::arange(0..24, &Device::flex()).float().into();
        let cube = x.reshaped(&[2, 3, 4]);
        let turned = cube.clone().permuted(&[2, 0, 1]);
        assert_eq!(turned.dims(), [4, 2, 3]);
        assert_eq!(turned.permuted(&[1, 2, 0]).three().into_data(), cube.clone().three().into_data());
        let row: AnyTensor = Tensor::<1>::ones([4], &Device::flex()).into();
        let sum = cube.clone().zip(row, BinaryFunction::Add);
        assert_eq!(sum.three().into_data(), (cube.clone().three() + 1.0).into_data());
        let halves = vec![cube.clone().narrowed(2, 0, 1), cube.clone().narrowed(2, 1, 3)];
        assert_eq!(AnyTensor::joined(halves, 2).three().into_data(), cube.three().into_data());
    }
}
