//! Tied weights: tensors that are stored under two names and are equal byte for byte.

use crate::context::Stop;
use briquette_core::{Hash128, Result};
use briquette_formats::{TensorInfo, TensorSource};
use std::collections::BTreeMap;

/// Bytes of a tensor that are compared before reading all of it.
const SAMPLE: usize = 4096;
const PIECE: usize = 1 << 20;

/// Maps the index of a tensor to that of an earlier tensor that equals it.
pub type Ties = BTreeMap<usize, usize>;

/// Finds tensors that equal an earlier one; there are few, if any, among weights of rank 2 and more.
///
/// Only tensors of one type, shape and beginning are read whole, so this costs next to nothing where nothing is tied.
///
/// # Errors
/// As [`TensorSource::read`]; Interrupted.
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
        // Eight bytes for each sample, as there may be millions. Tensors whose samples agree by chance are told apart below.
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

/// A short hash of a tensor's sample: equal tensors have equal ones.
fn sample(source: &dyn TensorSource, index: usize, info: &TensorInfo, bytes: &mut Vec<u8>) -> Result<u32> {
    // The sample is from the middle, as tables often start with a row of zeros.
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
