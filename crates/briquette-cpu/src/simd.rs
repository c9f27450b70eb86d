//! The inner loops, and most `unsafe` code of this crate.
//!
//! [`mod@scalar`] defines every function. The other versions are tested against it and give the same bits.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod code_panels;
mod column_quantizers;
mod dispatch;
#[cfg(target_arch = "x86_64")]
mod float_panel;
mod int4;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operands;
#[cfg(target_arch = "x86_64")]
mod peak;
mod product;
mod rounded_rows;
mod row_quantizer;
mod scalar;
mod sparse_panels;
mod tap_blocks;
mod turn;
mod w4a8;
mod weight_only;

pub(crate) use block::OutputBlock;
pub(crate) use code_panels::{turn_rows, weave_rows};
pub(crate) use column_quantizers::{COLUMNS, ColumnRanges};
pub(crate) use dispatch::{
    add_to_ranges, depthwise, depthwise_row, dot, expand_panel, has_code_product, has_depthwise_row,
    multiply_float_panel, multiply_int4_panel, multiply_to_codes, multiply_weight_rows, quantize, quantize_columns,
    quantize_row, requantize, turn_bytes, turn_square, value_range,
};
pub(crate) use int4::Int4Panel;
pub(crate) use kernel::Kernel;
pub(crate) use operands::{PANEL, PanelColumns, PatchRows, RowBlock};
#[cfg(target_arch = "x86_64")]
pub use peak::register_peak;
pub(crate) use product::{MatrixView, multiply};
pub(crate) use rounded_rows::{CodeRounding, RoundedRows};
pub(crate) use row_quantizer::{RowQuantizer, ValueRange};
pub(crate) use scalar::rounded;
pub(crate) use sparse_panels::SparsePanels;
pub(crate) use tap_blocks::{SEGMENT, TapBlocks, TapRow, TapWeights};
pub(crate) use turn::SIDE;
pub(crate) use w4a8::{GroupedBlock, W4A8Panel, group_codes, multiply_w4a8_panel};

/// Returns `None`: the peak is measured with AVX-512 VNNI, which only x86-64 has.
#[cfg(not(target_arch = "x86_64"))]
pub fn register_peak() -> Option<f64> {
    None
}
