//! Embeddings of whole inputs, as sentence encoders give them.

use super::{cosines, unit, wide};
use burn::tensor::Tensor;

/// `1 - mean over rows of cos(student, teacher)`; both are `[n, width]`.
///
/// # Panics
/// If the shapes disagree.
pub fn cosine(student: Tensor<2>, teacher: Tensor<2>) -> Tensor<1> {
    assert_eq!(student.dims(), teacher.dims(), "embeddings of the same inputs and width");
    cosines(wide(student), wide(teacher)).mean().neg() + 1.0
}

/// `mean over pairs (i, j) of (cos(sᵢ, sⱼ) - cos(tᵢ, tⱼ))²`, over all n² pairs of a batch `[n, width]`.
///
/// Only what is near to what counts, so widths may differ. Source: Tung and Mori, "Similarity-Preserving Knowledge
/// Distillation", 2019, eq. 4, with cosines for their rows scaled to length 1.
///
/// # Panics
/// If the two do not have as many rows.
pub fn similarity(student: Tensor<2>, teacher: Tensor<2>) -> Tensor<1> {
    assert_eq!(student.dims()[0], teacher.dims()[0], "embeddings of the same inputs");
    let [student, teacher] = [student, teacher].map(|rows| {
        let rows = unit(wide(rows));
        rows.clone().matmul(rows.transpose())
    });
    (student - teacher).square().mean()
}
