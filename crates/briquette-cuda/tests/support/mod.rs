//! Kernels without a GPU: their CUDA C++, and an emulator that runs it on the CPU.
//!
//! ```ignore
//! let gpu = Gpu::sm(80);
//! let kernel = Box::new(Scale::new(gpu.settings(CubeDim::new_1d(64)), gpu.properties(), gpu.target(), buffer(), ()));
//! let Some(kernel) = Emulated::new(gpu, kernel) else { return };
//! let out = kernel.run([4, 1, 1], [Buffer::of(&x), Buffer::poisoned::<f32>(256)], [ByValue::of(n)]);
//! assert_eq!(out[1].to_vec::<f32>(), expected);
//! ```
#![allow(dead_code, unused_imports, reason = "each test uses a part of this module")]

/// Creates a kernel for a GPU, with one `b` for each buffer argument: `kernel!(gpu, block, Kernel::new, [b b],
/// (), dtype)`.
macro_rules! kernel {
    ($gpu:expr, $block:expr, $new:path, [$($buffer:tt)*] $(, $rest:expr)* $(,)?) => {{
        let gpu: $crate::support::cuda::Gpu = $gpu;
        $new(gpu.settings($block), gpu.properties(), gpu.target() $(, kernel!(@ $buffer))* $(, $rest)*)
    }};
    (@ b) => { $crate::support::cuda::buffer() };
}
pub(crate) use kernel;

pub(crate) mod cuda;
pub(crate) mod emulator;
pub(crate) mod registry;

use briquette_cuda::ElemType;
use briquette_cuda::attention::AttentionLayoutCompilationArg;
use briquette_cuda::conv::ConvGeometryCompilationArg;
use briquette_cuda::epilogue::OutputLayoutCompilationArg;
use cubecl_core::ir::FloatKind;

/// The element type of most tests.
pub(crate) const F32: ElemType = ElemType::Float(FloatKind::F32);

/// Returns pseudorandom numbers of 31 bits.
pub(crate) fn numbers(n: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed | 1;
    (0..n).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    })
}

/// Returns pseudorandom floats from -1 to 1.
pub(crate) fn floats(n: usize, seed: u64) -> Vec<f32> {
    numbers(n, seed * 0x9e37_79b9).map(|bits| bits as f32 / (1_u64 << 30) as f32 - 1.0).collect()
}

/// Returns pseudorandom codes; about one in `zero_each` is zero.
pub(crate) fn codes(n: usize, zero_each: u64, seed: u64) -> Vec<i8> {
    let is_zero = |bits: u64| zero_each > 0 && (bits >> 8).is_multiple_of(zero_each);
    numbers(n, seed * 0x9e37_79b9).map(|bits| if is_zero(bits) { 0 } else { bits as i8 }).collect()
}

/// Returns the compilation argument of an output layout.
pub(crate) const fn target() -> OutputLayoutCompilationArg {
    OutputLayoutCompilationArg {
        image_rows: (),
        scale_rows: (),
        image_stride: (),
        row_stride: (),
        col_stride: (),
        first_row: (),
        first_col: (),
    }
}

/// Returns the compilation argument of a convolution geometry.
pub(crate) const fn steps() -> ConvGeometryCompilationArg {
    ConvGeometryCompilationArg {
        channels: (),
        height: (),
        width: (),
        image_words: (),
        out_height: (),
        out_width: (),
        kernel_height: (),
        kernel_width: (),
        stride_y: (),
        stride_x: (),
        top: (),
        left: (),
        dilation_y: (),
        dilation_x: (),
    }
}

/// Returns the compilation argument of an attention's layout.
pub(crate) const fn attention_layout() -> AttentionLayoutCompilationArg {
    AttentionLayoutCompilationArg {
        heads: (),
        kept_heads: (),
        length: (),
        first: (),
        n_keys: (),
        image_stride: (),
        head_stride: (),
        token_stride: (),
        window: (),
    }
}
