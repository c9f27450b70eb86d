//! int8 products by the kernels of CubeK, which multiply burn's floats: sums of 32 bits, finished by [`sums`](crate::sums).

use crate::gpu::{DeviceBuffer, Gpu};
use cubecl_core::ir::{ElemType, IntKind};
use cubecl_core::prelude::TensorBinding;
use cubek_matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek_matmul::launch::launch_ref;
use cubek_matmul::multi_level::Strategy;
use cubek_std::InputBinding;

/// Strategies of CubeK that take int8 matrix instructions. They are asked for by name: `Auto` wants more shared memory than
/// there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cubek {
    /// `SimpleCyclicMma`: one stage of shared memory.
    Simple,
    /// `DoubleCyclicMma`: two.
    Double,
    /// `OrderedDoubleMma`: two, whose left sides each warp reads for itself.
    Ordered,
    /// `SpecializedCyclicMma`: some warps read, others multiply.
    Specialized,
}

impl Cubek {
    fn strategy(self) -> Strategy {
        match self {
            Self::Simple => Strategy::SimpleCyclicMma(Default::default()),
            Self::Double => Strategy::DoubleCyclicMma(Default::default()),
            Self::Ordered => Strategy::OrderedDoubleMma(Default::default()),
            Self::Specialized => Strategy::SpecializedCyclicMma(Default::default()),
        }
    }

    /// `a · bᵀ` of codes `[m, k]` and `[n, k]`, row-major: `[m, n]` i32.
    ///
    /// # Errors
    /// Where the strategy does not fit the device or the extents.
    pub(crate) fn sums(
        self,
        gpu: &Gpu,
        [a, b]: [&DeviceBuffer; 2],
        [m, n, k]: [usize; 3],
    ) -> Result<DeviceBuffer, String> {
        assert_eq!([a.n_bytes(), b.n_bytes()], [m * k, n * k], "codes of a product {m} x {n} x {k}");
        let sums = gpu.empty::<i32>(m * n);
        let [int8, int32] = [IntKind::I8, IntKind::I32].map(ElemType::Int);
        let mut elems = MatmulElems::from_globals(&MatmulGlobalElems { lhs: int8, rhs: int8, out: int32 });
        let bind = |buffer: &DeviceBuffer, shape: [usize; 2], strides: [usize; 2]| TensorBinding {
            handle: buffer.handle().clone().binding(),
            strides: strides.into(),
            shape: shape.into(),
            tiling: Default::default(),
        };
        let lhs = InputBinding::new(bind(a, [m, k], [k, 1]), int8);
        let rhs = InputBinding::new(bind(b, [k, n], [1, k]), int8);
        launch_ref(&self.strategy().into(), gpu.client(), lhs, rhs, bind(&sums, [m, n], [n, 1]), &mut elems)
            .map_err(|error| format!("{error:?}"))?;
        Ok(sums)
    }
}
