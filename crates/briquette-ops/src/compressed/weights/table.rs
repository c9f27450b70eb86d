//! Lookup tables, such as embeddings.

use crate::compressed::cube::{self, CudaTable};
use crate::compressed::host_or_cuda::{HostOrCuda, WeightInfo};
use briquette_cpu::code_rows::CodeRows;
use briquette_cpu::embedding::Int8Embedding;
use burn::tensor::Device;
use std::sync::Arc;

/// A quantized lookup table.
#[derive(Debug, Clone)]
pub struct Table {
    pub(in crate::compressed) placed: HostOrCuda<Arc<Int8Embedding>, CudaTable>,
}

impl WeightInfo for Int8Embedding {
    fn dims(&self) -> [usize; 2] {
        [self.n_rows(), self.n_cols()]
    }

    fn is_sparse(&self) -> bool {
        self.is_sparse()
    }

    fn n_bytes(&self) -> usize {
        self.n_bytes()
    }
}

impl Table {
    /// Returns a table on the CPU.
    pub fn new(table: Int8Embedding) -> Self {
        Self { placed: HostOrCuda::Host(Arc::new(table)) }
    }

    /// Packs row-major `codes` `[n_rows, n_cols]` with the values `codes[r, c] * scales[r]` for `device`.
    ///
    /// # Panics
    /// If the lengths do not match the shape.
    pub fn on(device: &Device, codes: Vec<i8>, scales: &[f32], [n_rows, n_cols]: [usize; 2], is_sparse: bool) -> Self {
        if let Some(table) = cube::table(device, &codes, scales, [n_rows, n_cols], is_sparse) {
            return Self { placed: HostOrCuda::Cuda(table, scales.into()) };
        }
        let rows = match is_sparse {
            true => CodeRows::bitmask(&codes, n_rows, n_cols),
            false => CodeRows::dense(codes, n_rows, n_cols),
        };
        Self::new(Int8Embedding::new(rows, scales.to_vec()))
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.placed.dims()[0]
    }

    /// Returns the number of columns.
    pub fn n_cols(&self) -> usize {
        self.placed.dims()[1]
    }

    /// Returns whether zeros are omitted.
    pub fn is_sparse(&self) -> bool {
        self.placed.is_sparse()
    }

    /// Returns the size in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        self.placed.n_bytes()
    }
}
