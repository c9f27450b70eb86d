//! Losses on embeddings of whole inputs, as of sentence encoders.

use super::{cosines, unit, wide};
use burn::tensor::Tensor;

/// Returns `1 - mean over rows of cos(student, teacher)`; both are `[n, width]`.
///
/// # Panics
/// If the shapes disagree.
pub fn cosine(student: Tensor<2>, teacher: Tensor<2>) -> Tensor<1> {
    assert_eq!(student.dims(), teacher.dims(), "embeddings have the same shape");
    cosines(wide(student), wide(teacher)).mean().neg() + 1.0
}

/// Returns `mean over pairs (i, j) of (cos(sᵢ, sⱼ) - cos(tᵢ, tⱼ))²`, over all n² pairs of a batch `[n, width]`.
///
/// Only similarities within each network count, so widths may differ. Source: Tung and Mori,
/// "Similarity-Preserving Knowledge Distillation", 2019, eq. 4, with cosines instead of normalized rows.
///
/// # Panics
/// If the numbers of rows differ.
pub fn similarity(student: Tensor<2>, teacher: Tensor<2>) -> Tensor<1> {
    assert_eq!(student.dims()[0], teacher.dims()[0], "embeddings have the same number of rows");
    let [student, teacher] = [student, teacher].map(|rows| {
        let rows = unit(wide(rows));
        rows.clone().matmul(rows.transpose())
    });
    (student - teacher).square().mean()
}
