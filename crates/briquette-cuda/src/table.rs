//! Lookup tables on a device.

use crate::gpu::{DeviceBuffer, Gpu};
use crate::launch::{self, Floats, Ids};
use crate::pack;
use crate::stored::{DeviceBitmask, DeviceCodes};
use cubecl_core::ir::ElemType;

/// A table `[n_rows, n_cols]` of int8 codes with a scale for each row.
#[derive(Debug, Clone)]
pub struct DeviceTable {
    gpu: Gpu,
    n_rows: usize,
    n_cols: usize,
    kept: DeviceCodes,
    scales: DeviceBuffer,
}

impl DeviceTable {
    /// Copies row-major `codes` with the values `codes[r, c] * scales[r]` to the device.
    ///
    /// # Panics
    /// If the lengths do not match the shape.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], [n_rows, n_cols]: [usize; 2], is_sparse: bool) -> Self {
        assert_eq!((codes.len(), scales.len()), (n_rows * n_cols, n_rows), "codes and scales of [{n_rows}, {n_cols}]");
        let kept = match is_sparse {
            true => DeviceCodes::Bitmask(DeviceBitmask::new(gpu, &pack::row_bitmasks(codes, n_cols))),
            false => DeviceCodes::Dense(gpu.keep(&pack::rows(codes, n_rows, n_cols))),
        };
        Self { gpu: gpu.clone(), n_rows, n_cols, kept, scales: gpu.keep(scales) }
    }

    /// Returns the number of rows.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the number of columns.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns whether zeros are omitted.
    pub const fn is_sparse(&self) -> bool {
        self.kept.is_sparse()
    }

    /// Returns the size on the device in bytes.
    pub fn n_bytes(&self) -> usize {
        self.kept.n_bytes() + self.scales.n_bytes()
    }

    /// Returns a row of floats for each id; NaN for an invalid id.
    pub fn lookup(&self, ids: &Ids, dtype: ElemType) -> Floats {
        let out = Floats::empty(&self.gpu, dtype, ids.n(), self.n_cols);
        if ids.n() * self.n_rows * self.n_cols > 0 {
            match &self.kept {
                DeviceCodes::Dense(words) => launch::lookup(&self.gpu, ids, words, &self.scales, self.n_rows, &out),
                DeviceCodes::Bitmask(rows) => {
                    launch::lookup_bitmask(&self.gpu, ids, rows, &self.scales, self.n_rows, &out)
                }
            }
        }
        out
    }

    /// Returns all rows as floats.
    pub fn decode(&self, dtype: ElemType) -> Floats {
        let all: Vec<u32> = (0..self.n_rows as u32).collect();
        let buffer = self.gpu.copy(&all);
        self.lookup(&Ids { buffer, dtype: ElemType::UInt(cubecl_core::ir::UIntKind::U32) }, dtype)
    }
}
