//! int8 products with the kernels of CubeK, which burn uses for floats.
//!
//! They give 32-bit sums, which [`sums`](crate::sums) converts to outputs.

use crate::gpu::{DeviceBuffer, Gpu};
use cubecl_core::ir::{ElemType, IntKind};
use cubecl_core::prelude::TensorBinding;
use cubek_matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek_matmul::launch::launch_ref;
use cubek_matmul::multi_level::Strategy;
use cubek_std::InputBinding;

/// Strategies of CubeK with int8 matrix instructions.
///
/// They are selected by name, because `Auto` requests more shared memory than available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cubek {
    /// `SimpleCyclicMma`: one stage of shared memory.
    Simple,
    /// `DoubleCyclicMma`: two stages.
    Double,
    /// `OrderedDoubleMma`: two stages; each warp reads its own left-hand sides.
    Ordered,
    /// `SpecializedCyclicMma`: some warps read, the rest multiply.
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

    /// Computes `a · bᵀ` of row-major codes `[m, k]` and `[n, k]`, as `[m, n]` i32.
    ///
    /// # Errors
    /// The strategy does not support the device or the extents.
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
