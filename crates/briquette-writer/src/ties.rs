//! Tied weights: tensors with equal bytes under two names.

use crate::context::Stop;
use briquette_core::{Hash128, Result};
use briquette_formats::{TensorInfo, TensorSource};
use std::collections::BTreeMap;

/// Bytes of a tensor that are compared before all of it is read.
const SAMPLE: usize = 4096;
const PIECE: usize = 1 << 20;

/// Maps the index of a tensor to that of an earlier equal tensor.
pub type Ties = BTreeMap<usize, usize>;

/// Finds tensors that equal an earlier one, among weights of rank 2 or more.
///
/// Only tensors with equal type, shape and sample are read as a whole. Without ties, this costs almost nothing.
///
/// # Errors
/// Interrupted: a stop was requested. Also see [`TensorSource::read`].
pub fn ties_of(source: &dyn TensorSource, stop: &Stop) -> Result<Ties> {
    let tensors = source.tensors();
    let mut ties = Ties::new();
    let mut alike: BTreeMap<(&str, &[usize]), Vec<u32>> = BTreeMap::new();
    for (info, index) in tensors.iter().zip(0..) {
        if info.dtype.is_weight() && info.shape.rank() >= 2 && info.n_elements() > 0 {
            alike.entry((info.dtype.name(), info.shape.0.as_slice())).or_default().push(index);
        }
    }
    let mut bytes = Vec::new();
    for group in alike.values().filter(|group| group.len() > 1) {
        // Eight bytes per sample, as there may be millions. Samples that are equal by chance are distinguished
        // below.
        let mut samples: Vec<(u32, u32)> = Vec::with_capacity(group.len());
        for &index in group {
            stop.check()?;
            samples.push((sample(source, index as usize, &tensors[index as usize], &mut bytes)?, index));
        }
        samples.sort_unstable();
        for candidates in samples.chunk_by(|a, b| a.0 == b.0).filter(|candidates| candidates.len() > 1) {
            let mut first_of: BTreeMap<Hash128, usize> = BTreeMap::new();
            for index in candidates.iter().map(|(_, index)| *index as usize) {
                let first = *first_of.entry(hash(source, index, &tensors[index], stop)?).or_insert(index);
                ties.extend((first != index).then_some((index, first)));
            }
        }
    }
    Ok(ties)
}

/// Returns a short hash of a tensor's sample. Equal tensors have equal hashes.
fn sample(source: &dyn TensorSource, index: usize, info: &TensorInfo, bytes: &mut Vec<u8>) -> Result<u32> {
    // The sample is from the middle, because tables often start with a row of zeros.
    let n = info.n_bytes().min(SAMPLE);
    bytes.resize(n, 0);
    source.read(index, (info.n_bytes() - n) / 2, bytes)?;
    Ok(Hash128::of_block(bytes).0 as u32)
}

fn hash(source: &dyn TensorSource, index: usize, info: &TensorInfo, stop: &Stop) -> Result<Hash128> {
    let piece = if source.reads_ranges(index) { PIECE } else { info.n_bytes() };
    let mut hasher = briquette_core::TensorHasher::default();
    let mut bytes = vec![0; piece.min(info.n_bytes())];
    for start in (0..info.n_bytes()).step_by(piece) {
        stop.check()?;
        let n = piece.min(info.n_bytes() - start);
        source.read(index, start, &mut bytes[..n])?;
        hasher.push(Hash128::of_block(&bytes[..n]));
    }
    Ok(hasher.finish())
}
