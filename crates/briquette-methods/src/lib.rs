//! Methods that prune, quantize and update weights, as pure functions over rows.
//!
//! - [`prune`] scores weights and chooses the mask.
//! - [`quant`] chooses scales and zero points.
//! - [`reconstruct`] updates the remaining weights from layer inputs (GPTQ, SparseGPT, ADMM).
//! - [`rotation`] makes orthogonal matrices that spread outliers.
//!
//! `prune` and `quant` do not import each other; `scripts/circles.py` checks that. Non-goals: files
//! (`briquette-formats`), encodings (`briquette-core`), recipes (`briquette-recipe`).

pub mod prune;
pub mod quant;
pub mod reconstruct;
pub mod rotation;
