//! Rows that are looked up, as those of an embedding are.

use crate::compressed::cube::{self, CudaTable};
use crate::compressed::host_or_cuda::{HostOrCuda, WeightInfo};
use briquette_cpu::code_rows::CodeRows;
use briquette_cpu::embedding::Int8Embedding;
use burn::tensor::Device;
use std::sync::Arc;

/// Rows that are looked up.
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
    /// A table for the CPU.
    pub fn new(table: Int8Embedding) -> Self {
        Self { placed: HostOrCuda::Host(Arc::new(table)) }
    }

    /// Lays out row-major `codes` `[n_rows, n_cols]`, worth `codes[r, c] * scales[r]` each, for `device`.
    ///
    /// # Panics
    /// If the lengths disagree with the shape.
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

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.placed.dims()[0]
    }

    /// Columns.
    pub fn n_cols(&self) -> usize {
        self.placed.dims()[1]
    }

    /// Whether zeros are left out.
    pub fn is_sparse(&self) -> bool {
        self.placed.is_sparse()
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        self.placed.n_bytes()
    }
}
