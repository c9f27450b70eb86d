//! Losses on hidden states of paired layers.

use super::{cosines, mean_of_tokens, wide};
use burn::tensor::{Bool, Tensor};

/// Returns `mean over tokens and width of (student - teacher)²`; both are `[batch, length, width]`.
///
/// Tokens where `padding` `[batch, length]` is true do not count. If widths differ, project the student's
/// states first: [`Projections`](crate::Projections). Source: Jiao et al., "TinyBERT", 2020, eq. 8.
///
/// # Panics
/// If the shapes disagree.
pub fn mse(student: Tensor<3>, teacher: Tensor<3>, padding: Option<Tensor<2, Bool>>) -> Tensor<1> {
    assert_eq!(student.dims(), teacher.dims(), "states have the same shape");
    let squares = (wide(student) - wide(teacher)).square();
    mean_of_tokens(squares.mean_dim(2).squeeze_dim(2), padding)
}

/// Returns `1 - mean over tokens of cos(student, teacher)`; shapes and padding as in [`mse`].
///
/// Source: Sanh et al., "DistilBERT", 2019, section 3.
///
/// # Panics
/// If the shapes disagree.
pub fn cosine(student: Tensor<3>, teacher: Tensor<3>, padding: Option<Tensor<2, Bool>>) -> Tensor<1> {
    assert_eq!(student.dims(), teacher.dims(), "states have the same shape");
    let [batch, length, width] = student.dims();
    let rows = |states: Tensor<3>| wide(states).reshape([batch * length, width]);
    let each = cosines(rows(student), rows(teacher)).reshape([batch, length]);
    mean_of_tokens(each, padding).neg() + 1.0
}
