//! Reads codes from entropy-coded blocks.

use super::read_block::ReadBlock;
use super::{DecodeBuffers, StoredDir};
use briquette_core::encoded::{CodeBlocks, Part};
use briquette_core::entropy::{read_block, read_trellis_block};
use briquette_core::{Error, Result, Rows, Storage};
use std::ops::Range;

impl StoredDir {
    /// Reads the codes of rows into the elements, one byte each.
    pub(super) fn read_blocks(&self, index: usize, range: Range<usize>, scratch: &mut DecodeBuffers) -> Result<()> {
        let n_cols = self.tensors[index].rows().n_cols;
        let mut elements = std::mem::take(&mut scratch.elements);
        elements.resize(range.len() * n_cols, 0);
        let read = self.decode_blocks(index, range, &mut scratch.block, bytemuck::cast_slice_mut(&mut elements));
        scratch.elements = elements;
        read
    }

    /// Reads the codes of rows into `out`. A block that is needed as a whole is decoded in place.
    pub(super) fn decode_blocks(
        &self,
        index: usize,
        range: Range<usize>,
        block: &mut ReadBlock,
        mut out: &mut [i8],
    ) -> Result<()> {
        let Rows { n_rows, n_cols, .. } = self.tensors[index].rows();
        let blocks = CodeBlocks::new(n_rows, n_cols);
        for number in blocks.of_rows(&range) {
            let its = blocks.rows(number);
            let wanted = range.start.max(its.start) - its.start..range.end.min(its.end) - its.start;
            let (now, later) = out.split_at_mut(wanted.len() * n_cols);
            let of = (self.number, index, number);
            if wanted.len() == its.len() && block.of != Some(of) {
                self.decode_block((index, number), &blocks, (&mut block.ends, &mut block.coded), now)?;
            } else {
                if block.of != Some(of) {
                    block.of = None;
                    block.codes.resize(blocks.n_codes(number), 0);
                    let ReadBlock { codes, coded, ends, .. } = block;
                    self.decode_block((index, number), &blocks, (ends, coded), codes)?;
                    block.of = Some(of);
                }
                now.copy_from_slice(&block.codes[wanted.start * n_cols..wanted.end * n_cols]);
            }
            out = later;
        }
        Ok(())
    }

    /// Decodes one block of a tensor into `codes`.
    fn decode_block(
        &self,
        (index, number): (usize, usize),
        blocks: &CodeBlocks,
        (ends, coded): (&mut Vec<u8>, &mut Vec<u8>),
        codes: &mut [i8],
    ) -> Result<()> {
        let tensor = &self.tensors[index];
        // A block starts where the previous block ends.
        self.read_part(tensor, Part::BlockEnds, 8 * number.saturating_sub(1)..8 * (number + 1), ends)?;
        let ends = ends.as_chunks::<8>().0;
        let end = |bytes: &[u8; 8]| usize::try_from(i64::from_le_bytes(*bytes)).ok();
        let start = if number == 0 { Some(0) } else { ends.first().and_then(end) };
        let (Some(start), Some(end)) = (start, ends.last().and_then(end)) else {
            return Err(tensor.damaged("a block of its codes ends before it starts"));
        };
        let n_bits = tensor.coding.codes.map_or(8, |codes| codes.bits);
        let Storage::Entropy { n_bytes: n_whole, has_trellis } = tensor.coding.storage else {
            return Err(Error::bug(format!("tensor {:?} is not entropy-coded", tensor.info.name)));
        };
        if start > end || end - start > blocks.packed_bytes(number, n_bits) || end > n_whole {
            let message = format!("found block {number} of its codes at bytes {start}..{end} of {n_whole}");
            return Err(tensor.damaged(&message));
        }
        self.read_part(tensor, Part::Blocks, start..end, coded)?;
        let read = match has_trellis {
            true => read_trellis_block(coded, tensor.rows().n_cols, codes),
            false => read_block(coded, n_bits, codes),
        };
        read.map_err(|error| error.at(format_args!("tensor {:?}, block {number}", tensor.info.name)))
    }
}
