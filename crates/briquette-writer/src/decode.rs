//! Decodes every tensor of an output directory, and compares the hash of its values with the manifest.

use crate::context::Workers;
use briquette_core::{BlockHasher, Error, Hash128, Result, Rows, TensorHasher};
use briquette_formats::stored::DecodeBuffers;
use briquette_formats::{OutputFiles, StoredDir, TensorInfo};
use std::ops::Range;

/// Blocks that one thread reads and decodes at a time. Their stored bytes fit into the cache of a core.
const BLOCKS_PER_TASK: usize = 8;

/// Returns the rows that one thread decodes at a time: a single row if a row is longer than the usual blocks.
pub(crate) fn rows_per_task(rows: Rows) -> usize {
    let block = rows.rows_per_block();
    if block == 1 { 1 } else { block * BLOCKS_PER_TASK }
}

/// The decoded values of a tensor, as a hash and a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedTensor {
    /// Hash of the values row by row. The manifest may have another hash: see [`StoredDir::hash_of`].
    pub hash: Hash128,
    /// Number of zeros; counted for weights only.
    pub n_zeros: usize,
}

/// The results of reading an output back.
#[derive(Debug)]
pub struct ReadBack {
    /// The zeros of each tensor, sorted by name; counted for weights only.
    pub n_zeros: Vec<u64>,
    /// The requested tensors, for reading.
    pub kept: StoredDir,
}

/// Decodes every tensor of an output, and compares its values with the manifest.
///
/// Millions of tensors are decoded in batches, so that they are never all in memory. Tensors for which `is_kept`
/// returns true are returned.
///
/// # Errors
/// Input: a file is damaged, or a hash differs. Also errors of reading.
pub fn read_back(files: OutputFiles, workers: &Workers, is_kept: &dyn Fn(&TensorInfo) -> bool) -> Result<ReadBack> {
    workers.begin("verify", files.n_value_bytes() as usize);
    let (mut n_zeros, mut kept) = (Vec::with_capacity(files.n_tensors()), Vec::new());
    let files = files.for_each_batch(&mut |first, stored| {
        if first == 0 {
            // The files may be read once more from the start.
            n_zeros.clear();
            kept.clear();
        }
        let found = decode_all(stored, workers)?;
        compare(&found, stored)?;
        n_zeros.extend(found.iter().map(|found| found.n_zeros as u64));
        kept.extend(stored.tensors.iter().filter(|tensor| is_kept(&tensor.info)).cloned());
        Ok(())
    })?;
    Ok(ReadBack { n_zeros, kept: StoredDir::new(files, kept) })
}

/// Decodes every tensor and hashes its values, a few blocks at a time per thread.
///
/// # Errors
/// Input: parts contradict each other. Also errors of reading.
pub fn decode_all(stored: &StoredDir, workers: &Workers) -> Result<Vec<DecodedTensor>> {
    let mut tasks: Vec<(usize, Range<usize>)> = Vec::new();
    for (index, tensor) in stored.tensors.iter().enumerate() {
        let (rows, step) = (tensor.rows(), rows_per_task(tensor.rows()));
        let n_rows = if rows.n_cols == 0 { 0 } else { rows.n_rows };
        tasks.extend((0..n_rows).step_by(step).map(|start| (index, start..(start + step).min(n_rows))));
    }
    let row_bytes = |index: usize| stored.tensors[index].rows().n_cols * stored.tensors[index].value_width();
    let n_bytes = |(index, rows): &(usize, Range<usize>)| rows.len() * row_bytes(*index);
    let decoded =
        workers.map_small(&tasks, n_bytes, <(DecodeBuffers, BlockHasher)>::default, |(scratch, hasher), task| {
            let (index, rows) = task;
            let tensor = &stored.tensors[*index];
            // Other types are hashed as bytes, and a zero byte is not a zero element.
            let (is_counted, width) = (tensor.info.dtype.is_weight(), tensor.value_width());
            let (mut digests, mut n_zeros) =
                (Vec::with_capacity(rows.len().div_ceil(tensor.rows().rows_per_block())), 0);
            stored.for_each_strip(*index, rows.clone(), scratch, |values, ends_block| {
                hasher.push(values);
                if is_counted {
                    n_zeros += count_zeros(values, width);
                }
                if ends_block {
                    digests.push((hasher.take(), std::mem::take(&mut n_zeros)));
                }
            })?;
            workers.advance(n_bytes(task));
            Ok(digests)
        })?;
    let mut decoded = tasks.iter().map(|(index, _)| *index).zip(decoded).peekable();
    let found = |index: usize| {
        let (mut hasher, mut n_zeros) = (TensorHasher::default(), 0);
        while let Some((_, digests)) = decoded.next_if(|(of, _)| *of == index) {
            digests.iter().for_each(|(digest, n)| {
                hasher.push(*digest);
                n_zeros += n;
            });
        }
        DecodedTensor { hash: hasher.finish(), n_zeros }
    };
    Ok((0..stored.tensors.len()).map(found).collect())
}

/// Counts the floats of `width` bytes that are 0.0 or -0.0.
pub fn count_zeros(values: &[u8], width: usize) -> usize {
    match width {
        4 if values.as_ptr().addr().is_multiple_of(4) => {
            briquette_core::simd::count_below(bytemuck::cast_slice(values), 1).0
        }
        2 => values.as_chunks::<2>().0.iter().filter(|value| matches!(value, [0, 0 | 0x80])).count(),
        // The sign is the highest bit of the last byte.
        _ => values
            .chunks_exact(width)
            .filter(|value| {
                value.split_last().is_some_and(|(last, rest)| last & 0x7f == 0 && rest.iter().all(|&byte| byte == 0))
            })
            .count(),
    }
}

/// Refuses the first tensor whose hash differs from the manifest.
///
/// # Errors
/// Input: a hash differs. The error names the tensor.
pub fn compare(found: &[DecodedTensor], stored: &StoredDir) -> Result<()> {
    for (index, (found, info)) in found.iter().zip(&stored.infos).enumerate() {
        let (expected, found) = (stored.expected_hash(index), stored.hash_of(index, found.hash));
        if expected != Some(found) {
            let expected = expected.map_or("none".to_string(), |hash| hash.to_string());
            let message =
                format!("its values hash to {found}, expected {expected}; the output is damaged, make it again");
            return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
        }
    }
    Ok(())
}
