//! Codes that are kept in entropy-coded blocks.

use super::read_block::ReadBlock;
use super::{DecodeBuffers, StoredDir};
use briquette_core::encoded::{CodeBlocks, Part};
use briquette_core::{Error, Result, Storage};
use briquette_entropy::read_block;
use std::ops::Range;

impl StoredDir {
    /// Reads the codes of some rows into the elements, a byte each.
    pub(super) fn read_blocks(&self, index: usize, range: Range<usize>, scratch: &mut DecodeBuffers) -> Result<()> {
        let rows = self.tensors[index].rows();
        let blocks = CodeBlocks::new(rows.n_rows, rows.n_cols);
        scratch.elements.clear();
        for number in blocks.of_rows(&range) {
            let its = blocks.rows(number);
            self.read_block(index, number, &blocks, &mut scratch.block)?;
            let wanted = range.start.max(its.start) - its.start..range.end.min(its.end) - its.start;
            let codes = &scratch.block.codes[wanted.start * rows.n_cols..wanted.end * rows.n_cols];
            scratch.elements.extend_from_slice(bytemuck::cast_slice(codes));
        }
        Ok(())
    }

    fn read_block(&self, index: usize, number: usize, blocks: &CodeBlocks, block: &mut ReadBlock) -> Result<()> {
        let (tensor, of) = (&self.tensors[index], (self.number, index, number));
        if block.of == Some(of) {
            return Ok(());
        }
        block.of = None;
        // It starts where the one before it ends.
        self.read_part(tensor, Part::BlockEnds, 8 * number.saturating_sub(1)..8 * (number + 1), &mut block.ends)?;
        let ends = block.ends.as_chunks::<8>().0;
        let end = |bytes: &[u8; 8]| usize::try_from(i64::from_le_bytes(*bytes)).ok();
        let start = if number == 0 { Some(0) } else { ends.first().and_then(end) };
        let (Some(start), Some(end)) = (start, ends.last().and_then(end)) else {
            return Err(tensor.damaged("a block of its codes ends before it starts"));
        };
        let n_bits = tensor.coding.codes.map_or(8, |codes| codes.bits);
        let Storage::Entropy { n_bytes: n_whole } = tensor.coding.storage else {
            return Err(Error::bug(format!("tensor {:?} is not kept in blocks", tensor.info.name)));
        };
        if start > end || end - start > blocks.packed_bytes(number, n_bits) || end > n_whole {
            let message = format!("block {number} of its codes lies at bytes {start} to {end} of {n_whole}");
            return Err(tensor.damaged(&message));
        }
        self.read_part(tensor, Part::Blocks, start..end, &mut block.coded)?;
        block.codes.resize(blocks.n_codes(number), 0);
        read_block(&block.coded, n_bits, &mut block.codes)
            .map_err(|error| error.at(format_args!("tensor {:?}, block {number}", tensor.info.name)))?;
        block.of = Some(of);
        Ok(())
    }
}
