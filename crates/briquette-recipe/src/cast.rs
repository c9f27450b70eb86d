//! The stage that stores floats in another type.

use crate::keys::check_keys;
use crate::raw::RawStage;
use crate::selection::Selection;
use crate::words::one_of;
use briquette_core::{DType, Error, Result, Role};

/// Store floats in another type: `v = round_to(dtype, w)`, to the nearest, ties to even.
///
/// What an earlier stage prunes is cast after it is masked; what one quantizes is no float any more and is left alone.
#[derive(Debug, Clone)]
pub struct CastStage {
    /// Which tensors.
    pub selection: Selection,
    /// Their type from here on.
    pub dtype: DType,
}

impl CastStage {
    pub(crate) fn from_raw(raw: &RawStage) -> Result<Self> {
        check_keys(raw, &["dtype"])?;
        let name = raw.dtype.as_ref().ok_or_else(|| Error::config("dtype: missing; name one, such as \"f16\""))?;
        let known = [("f16", DType::F16), ("bf16", DType::BF16), ("f32", DType::F32)];
        // Every role that a float can have, unless told otherwise.
        Ok(Self { selection: Selection::from_raw(raw, &Role::ALL)?, dtype: one_of("dtype", name, &known)? })
    }
}
