//! Where the parts of a tensor are.

use crate::foreign::ForeignLayout;
use briquette_core::{DType, Shape};
use std::sync::Arc;

/// The location of the bytes of a part.
#[derive(Debug, Clone)]
pub enum PartBytes {
    /// In a file, at an offset.
    File {
        /// Index of the file.
        file: usize,
        /// First byte.
        offset: u64,
    },
    /// In a file, at an offset, in the layout of another program.
    Foreign {
        /// Index of the file.
        file: usize,
        /// First byte.
        offset: u64,
        /// The layout. It is boxed, as there may be millions of tensors and few have one.
        layout: Box<ForeignLayout>,
    },
}

/// A tensor of a file, which may be a part of a tensor of the model.
#[derive(Debug, Clone)]
pub struct FoundPart {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Arc<Shape>,
    /// Index of the file.
    pub file: usize,
    /// First byte.
    pub offset: u64,
}
