//! All kernels, in the variants that are launched.

use briquette_cuda::attention::{self, AttentionForm, attend_few};
use briquette_cuda::attention_mma::{self, attend_mma};
use briquette_cuda::conv::{depthwise, patches};
use briquette_cuda::decode::{decode, lookup, lookup_bitmask};
use briquette_cuda::epilogue::EpilogueFlags;
use briquette_cuda::mma::{MmaTile, product_mma};
use briquette_cuda::norm::{self, NormSteps, norm_rows};
use briquette_cuda::quantize_rows::{encode, quantize_narrow_rows, quantize_rows, row_scales, spans};
use briquette_cuda::rotary::{self, rotate_rows};
use briquette_cuda::softmax::{self, ScoreSteps, softmax_rows};
use briquette_cuda::{bitmask, conv, dp4a, few_rows, few_rows_sparse as sparse, quantize_rows as quantize, wgmma};
use cubecl_core::ir::{ElemType, FloatKind, IntKind, UIntKind};
use cubecl_core::prelude::*;
use cubecl_runtime::kernel::CubeKernel;

use super::cuda::Gpu;
use super::{attention_layout, steps, target};

/// The instruction that a kernel is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// `mma.sync` for int8.
    Matrices,
    /// `mma.sync` for TF32.
    FloatMatrices,
    /// `wgmma` for int8, of compute capability 9.0 only.
    Warpgroups,
    /// `dp4a`.
    Dots,
    /// Neither of them.
    Plain,
}

/// A kernel with its name and required instruction.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) kernel: Box<dyn CubeKernel>,
    pub(crate) uses: Instruction,
}

const F32: ElemType = ElemType::Float(FloatKind::F32);
const FLOATS: [ElemType; 3] = [F32, ElemType::Float(FloatKind::F16), ElemType::Float(FloatKind::BF16)];

const PLAIN: EpilogueFlags = EpilogueFlags { scale: false, shift: false, adds: false, relu: false };
/// The epilogue of a linear layer with a bias.
const BIAS: EpilogueFlags = EpilogueFlags { shift: true, ..PLAIN };
/// The epilogue of a convolution with a norm, added to existing outputs.
const ALL: EpilogueFlags = EpilogueFlags { scale: true, shift: true, adds: true, relu: true };

/// Returns all kernels for a device.
pub(crate) fn kernels(gpu: Gpu) -> Vec<Listed> {
    let of = Forms { gpu };
    let mut all = vec![of.expand(), of.patches()];
    all.extend([false, true].map(|symmetric| of.row_scales(symmetric)));
    for dtype in FLOATS {
        for lanes in [1, 4] {
            all.extend([false, true].map(|symmetric| of.quantize_rows(lanes, symmetric, dtype)));
            all.extend([false, true].map(|symmetric| of.quantize_narrow_rows(lanes, symmetric, dtype)));
            all.extend([of.spans(lanes, dtype), of.encode(lanes, dtype)]);
        }
        all.extend([PLAIN, ALL].map(|finish| of.product_dp4a(finish, dtype)));
        all.extend([PLAIN, ALL].map(|finish| of.depthwise(finish, dtype)));
        for rows in [1, 2, 4, 8] {
            all.push(of.few_rows_sparse(rows, dtype));
            all.extend([of.few_rows_codes(rows, dtype), of.few_rows_int8(rows, dtype), of.few_rows_int4(rows, dtype)]);
        }
        all.extend([4, 8].map(|bits| of.decode(bits, dtype)));
        all.extend([of.norm_rows(dtype), of.softmax_rows(dtype), of.rotate_rows(dtype)]);
        let vectors = if dtype == F32 { &[8, 20, 32][..] } else { &[16] };
        all.extend(vectors.iter().map(|&vectors| of.attend_mma(vectors, dtype)));
        let rows = if dtype == F32 { &[1, 2, 4, 8][..] } else { &[1] };
        all.extend(rows.iter().map(|&rows| of.attend_few(rows, dtype)));
        let finishes = if dtype == F32 { &[BIAS, ALL][..] } else { &[ALL] };
        for (&finish, tile) in
            finishes.iter().flat_map(|f| [MmaTile::LARGE, MmaTile::MEDIUM, MmaTile::SMALL].map(|t| (f, t)))
        {
            all.extend([false, true].map(|sparse| of.product_mma(tile, sparse, finish, dtype)));
        }
        all.extend(finishes.iter().filter(|_| gpu.has_warpgroup_matrices()).map(|&f| of.product_wgmma(f, dtype)));
        all.extend(of.lookups(ElemType::UInt(UIntKind::U32), dtype));
    }
    for ids in [IntKind::I32, IntKind::I64] {
        all.extend(of.lookups(ElemType::Int(ids), F32));
    }
    all
}

fn plain(name: String, kernel: impl CubeKernel) -> Listed {
    Listed { name, kernel: Box::new(kernel), uses: Instruction::Plain }
}

/// Returns the names of the flags, such as `shift relu`.
fn words(finish: EpilogueFlags) -> String {
    let words = [(finish.scale, "scale"), (finish.shift, "shift"), (finish.adds, "adds"), (finish.relu, "relu")];
    words.iter().filter(|(is_there, _)| *is_there).map(|(_, word)| format!(" {word}")).collect()
}

/// Kernels for a device.
#[derive(Clone, Copy)]
struct Forms {
    gpu: Gpu,
}

impl Forms {
    fn expand(self) -> Listed {
        let block = CubeDim::new_2d(32, bitmask::BLOCKS as u32);
        plain("expand".into(), kernel!(self.gpu, block, bitmask::expand::Expand::new, [b b b b], (), (), (), ()))
    }

    fn patches(self) -> Listed {
        let block = CubeDim::new_1d(conv::UNITS as u32);
        let kernel = kernel!(self.gpu, block, patches::Patches::new, [b b b], (), (), (), (), (), steps());
        plain("patches".into(), kernel)
    }

    fn quantize_rows(self, lanes: usize, symmetric: bool, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(quantize::UNITS as u32);
        let new = quantize_rows::QuantizeRows::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b], (), (), lanes, symmetric, dtype);
        plain(format!("quantize_rows {dtype} by {lanes} symmetric={symmetric}"), kernel)
    }

    fn quantize_narrow_rows(self, lanes: usize, symmetric: bool, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(quantize::UNITS as u32);
        let new = quantize_narrow_rows::QuantizeNarrowRows::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b], (), (), (), lanes, symmetric, dtype);
        plain(format!("quantize_narrow_rows {dtype} by {lanes} symmetric={symmetric}"), kernel)
    }

    fn spans(self, lanes: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(quantize::UNITS as u32);
        let kernel = kernel!(self.gpu, block, spans::Spans::new, [b b b b], (), (), lanes, dtype);
        plain(format!("spans {dtype} by {lanes}"), kernel)
    }

    fn row_scales(self, symmetric: bool) -> Listed {
        let block = CubeDim::new_1d(quantize::UNITS as u32);
        let kernel = kernel!(self.gpu, block, row_scales::RowScales::new, [b b b b b b], (), (), symmetric);
        plain(format!("row_scales symmetric={symmetric}"), kernel)
    }

    fn encode(self, lanes: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(quantize::UNITS as u32);
        let kernel = kernel!(self.gpu, block, encode::Encode::new, [b b b b b], (), (), (), lanes, dtype);
        plain(format!("encode {dtype} by {lanes}"), kernel)
    }

    fn product_mma(self, tile: MmaTile, sparse: bool, finish: EpilogueFlags, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, tile.n_warps() as u32);
        let new = product_mma::ProductMma::new;
        let kernel =
            kernel!(self.gpu, block, new, [b b b b b b b b b b b b], (), (), (), target(), tile, sparse, finish, dtype);
        let [rows, cols] = tile.extents();
        let kept = if sparse { "sparse" } else { "dense" };
        let name = format!("product_mma {dtype} {rows}x{cols} {kept}{}", words(finish));
        Listed { name, kernel: Box::new(kernel), uses: Instruction::Matrices }
    }

    fn product_wgmma(self, finish: EpilogueFlags, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(wgmma::UNITS as u32);
        let new = wgmma::product_wgmma::ProductWgmma::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b b b b b b], (), (), (), target(), finish, dtype);
        let name = format!("product_wgmma {dtype}{}", words(finish));
        Listed { name, kernel: Box::new(kernel), uses: Instruction::Warpgroups }
    }

    fn product_dp4a(self, finish: EpilogueFlags, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(dp4a::UNITS as u32);
        let new = dp4a::product_dp4a::ProductDp4a::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b b b b b b], (), (), (), target(), finish, dtype);
        let name = format!("product_dp4a {dtype}{}", words(finish));
        Listed { name, kernel: Box::new(kernel), uses: Instruction::Dots }
    }

    fn few_rows_codes(self, rows: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, few_rows::WARPS as u32);
        let new = few_rows::few_rows_codes::FewRowsCodes::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b b b b b b], (), (), (), target(), rows, ALL, dtype);
        let name = format!("few_rows_codes {dtype} rows={rows}{}", words(ALL));
        Listed { name, kernel: Box::new(kernel), uses: Instruction::Dots }
    }

    fn few_rows_sparse(self, rows: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, sparse::WARPS as u32);
        let new = sparse::few_rows_sparse::FewRowsSparse::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b b b b b b b b], (), (), (), target(), rows, ALL, dtype);
        let name = format!("few_rows_sparse {dtype} rows={rows}{}", words(ALL));
        Listed { name, kernel: Box::new(kernel), uses: Instruction::Dots }
    }

    fn few_rows_int8(self, rows: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, few_rows::WARPS as u32);
        let new = few_rows::few_rows_int8::FewRowsInt8::new;
        plain(
            format!("few_rows_int8 {dtype} rows={rows}"),
            kernel!(self.gpu, block, new, [b b b b b], (), (), (), (), rows, true, dtype),
        )
    }

    fn few_rows_int4(self, rows: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, few_rows::WARPS as u32);
        let new = few_rows::few_rows_int4::FewRowsInt4::new;
        plain(
            format!("few_rows_int4 {dtype} rows={rows}"),
            kernel!(self.gpu, block, new, [b b b b b], (), (), (), (), rows, true, dtype),
        )
    }

    fn norm_rows(self, dtype: ElemType) -> Listed {
        let (block, steps) =
            (CubeDim::new_2d(32, norm::ROWS as u32), NormSteps { adds: true, centers: true, shifts: true });
        let kernel = kernel!(self.gpu, block, norm_rows::NormRows::new, [b b b b b], (), (), (), steps, dtype);
        plain(format!("norm_rows {dtype}"), kernel)
    }

    fn softmax_rows(self, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, softmax::ROWS as u32);
        let steps = ScoreSteps { hides: true, is_causal: true, has_window: true, has_cap: true };
        let new = softmax_rows::SoftmaxRows::new;
        let kernel = kernel!(self.gpu, block, new, [b b b], (), (), (), (), (), (), (), (), steps, dtype);
        plain(format!("softmax_rows {dtype}"), kernel)
    }

    fn attend_mma(self, vectors: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, attention_mma::WARPS as u32);
        let steps = ScoreSteps { hides: true, is_causal: true, has_window: true, has_cap: true };
        let form = AttentionForm { steps, vectors, rows: 16 };
        let new = attend_mma::AttendMma::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b b], attention_layout(), (), (), form, dtype);
        Listed { uses: Instruction::FloatMatrices, ..plain(format!("attend_mma {vectors} vectors {dtype}"), kernel) }
    }

    fn attend_few(self, rows: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_2d(32, attention::WARPS as u32);
        let steps = ScoreSteps { hides: false, is_causal: true, has_window: true, has_cap: true };
        let form = AttentionForm { steps, vectors: 32, rows };
        let new = attend_few::AttendFew::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b b], attention_layout(), (), (), form, dtype);
        plain(format!("attend_few {rows} rows {dtype}"), kernel)
    }

    fn rotate_rows(self, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(rotary::UNITS as u32);
        let kernel = kernel!(self.gpu, block, rotate_rows::RotateRows::new, [b b b b], (), (), (), (), dtype);
        plain(format!("rotate_rows {dtype}"), kernel)
    }

    fn lookups(self, ids: ElemType, dtype: ElemType) -> [Listed; 2] {
        let block = CubeDim::new_1d(briquette_cuda::decode::UNITS as u32);
        let dense = kernel!(self.gpu, block, lookup::Lookup::new, [b b b b], (), (), (), [ids, dtype]);
        let new = lookup_bitmask::LookupBitmask::new;
        let sparse = kernel!(self.gpu, CubeDim::new_1d(32), new, [b b b b b b], (), (), (), [ids, dtype]);
        [plain(format!("lookup {dtype} by {ids}"), dense), plain(format!("lookup_bitmask {dtype} by {ids}"), sparse)]
    }

    fn decode(self, bits: usize, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(briquette_cuda::decode::UNITS as u32);
        let kernel = kernel!(self.gpu, block, decode::Decode::new, [b b b], (), (), (), (), bits, dtype);
        plain(format!("decode {dtype} of {bits} bits"), kernel)
    }

    fn depthwise(self, finish: EpilogueFlags, dtype: ElemType) -> Listed {
        let block = CubeDim::new_1d(conv::UNITS as u32);
        let new = depthwise::Depthwise::new;
        let kernel = kernel!(self.gpu, block, new, [b b b b b b b b], (), (), steps(), finish, dtype);
        plain(format!("depthwise {dtype}{}", words(finish)), kernel)
    }
}
