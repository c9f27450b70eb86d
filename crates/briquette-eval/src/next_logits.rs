//! Logits of the next token, and sequences sampled from them.

use crate::sampling::Sampling;
use briquette_core::{Error, Result};
use briquette_models::{CacheType, Decoder, KeyValues};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use std::path::Path;

/// Returns the logits after the last token of each sequence, `vocabulary` numbers per sequence.
///
/// `tokens` are `[batch, n]` and continue the cached sequences.
///
/// # Errors
/// Io: the device fails.
pub(crate) fn next_logits(
    decoder: &dyn Decoder,
    tokens: Tensor<2, Int>,
    caches: &mut [KeyValues],
) -> Result<Vec<Vec<f32>>> {
    let n = tokens.dims()[1];
    let state = decoder.next_state(tokens, caches);
    let logits = decoder.scores(state.narrow(1, n - 1, 1)).cast(FloatDType::F32);
    let width = logits.dims()[2];
    let data = logits.try_into_data().map_err(|error| failed(error.to_string()))?;
    let values = data.try_into_vec_as::<f32>().map_err(|error| failed(format!("{error:?}")))?;
    Ok(values.chunks(width).map(<[f32]>::to_vec).collect())
}

/// Returns prompts `[batch, n]` with `n_new` sampled tokens after each, `[batch, n + n_new]`.
///
/// Sequences continue after an end token. `sampling.seed` determines the tokens.
///
/// # Errors
/// - Refused: a logit is not finite.
/// - Io: the device fails.
pub fn sample_tokens(
    decoder: &dyn Decoder,
    prompts: Tensor<2, Int>,
    n_new: usize,
    sampling: Sampling,
) -> Result<Tensor<2, Int>> {
    let ([batch, _], device) = (prompts.dims(), prompts.device());
    let mut caches: Vec<KeyValues> = (0..batch).map(|_| decoder.key_values(CacheType::F32)).collect();
    let (mut parts, mut last) = (vec![prompts.clone()], prompts);
    for index in 0..n_new {
        let logits = next_logits(decoder, last, &mut caches)?;
        let place = |row: usize| (row as u64) << 32 | index as u64;
        let chosen = logits.iter().enumerate().map(|(row, logits)| sampling.choose(logits, place(row)));
        let chosen: Vec<i32> = chosen.map(|token| token.map(|token| token as i32)).collect::<Result<_>>()?;
        last = Tensor::from_data(TensorData::new(chosen, [batch, 1]), &device);
        parts.push(last.clone());
    }
    Ok(Tensor::cat(parts, 1))
}

fn failed(message: String) -> Error {
    Error::io("cannot run the model", Path::new("device"), std::io::Error::other(message))
}
