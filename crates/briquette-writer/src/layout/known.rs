//! The bytes of files that are known before encoding: headers, and parts with constant bytes.

use super::order::Order;
use super::parts::{PartSizes, TensorParts};
use super::{FileLayouts, ListedHeader, in_place};
use crate::plan::Plan;
use briquette_core::{Error, Result};
use briquette_formats::DraftFile;
use briquette_formats::output_format::Container;
use std::io::{self, BufWriter, Write};

/// Bytes of a header that are written at a time.
const BUFFER_BYTES: usize = 1 << 18;

/// The known bytes of all files of a layout, written entry by entry, as a header may have 100 MB.
pub(crate) struct FileHeaders<'a> {
    plan: &'a Plan<'a>,
    parts: TensorParts<'a>,
    order: Order,
}

impl FileLayouts {
    /// Takes what the headers are written from, so that it can be dropped afterwards.
    ///
    /// # Errors
    /// Bug: it was taken before.
    pub(crate) fn take_headers<'a>(&mut self, plan: &'a Plan, parts: TensorParts<'a>) -> Result<FileHeaders<'a>> {
        let order = self.order.take().ok_or_else(|| Error::bug("the headers were written before"))?;
        Ok(FileHeaders { plan, parts, order })
    }
}

impl FileHeaders<'_> {
    /// Writes the known bytes of a file of a layout.
    ///
    /// # Errors
    /// Io: the file cannot be written. Also errors of listing parts.
    pub(crate) fn write(&self, layout: &FileLayouts, number: usize, out: &DraftFile) -> Result<()> {
        let placed = &layout.tensors;
        let n_kept = |index: usize| placed.of(index).n_kept;
        let sizes = PartSizes { plan: self.plan, n_kept: &n_kept, parts: self.parts };
        if self.plan.profile.is_in_place() {
            return in_place::copy_rest(&sizes, number, out);
        }
        let tensors = &self.order.files[number];
        let mut failed = Ok(());
        match self.plan.profile.container() {
            Container::Listed(write) => {
                let ListedHeader { bytes, .. } = sizes.listed_header(tensors, &self.order, write)?;
                out.write_at(0, &bytes)?;
            }
            Container::InPlace => return Err(Error::bug("an ONNX model has no header of its own")),
            Container::Safetensors(strings) => {
                let n_json = layout.files[number].n_header - 8;
                out.write_at(0, &n_json.to_le_bytes())?;
                let header = HeaderOut { out, next: 8, failed: None };
                let header = BufWriter::with_capacity(BUFFER_BYTES, header);
                let mut header = sizes.header(tensors, &self.order, strings, header)?.finish();
                let flushed = header.flush();
                let HeaderOut { next, failed, .. } =
                    header.into_inner().map_err(|error| Error::bug(format!("a header was not flushed: {error}")))?;
                failed.map_or(Ok(()), Err)?;
                flushed.map_err(|error| Error::bug(format!("a header was not written: {error}")))?;
                let n_spaces = (8 + n_json).checked_sub(next).filter(|n| *n < 8);
                let n_spaces = n_spaces.ok_or_else(|| Error::bug("a header has another size than was counted"))?;
                out.write_at(next, &b"        "[..n_spaces as usize])?;
            }
        }
        sizes.each_by_name(tensors, &self.order, |record, _, part| {
            if let (Some(bytes), Ok(())) = (part.holds.constant(), &failed) {
                failed = out.write_at(placed.of(record.tensor as usize).start(record.nth), bytes);
            }
        })?;
        failed
    }
}

/// A file behind a header. A failed write is reported at the end, as headers are written like memory.
struct HeaderOut<'a> {
    out: &'a DraftFile,
    next: u64,
    failed: Option<Error>,
}

impl Write for HeaderOut<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed.is_none() {
            self.failed = self.out.write_at(self.next, bytes).err();
        }
        self.next += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
