//! Writes files with entropy-coded blocks.
//!
//! Offsets in files depend on the lengths of blocks, which are only known after coding. So everything is first
//! encoded into a scratch file, with one byte reserved per code, and then copied to its final place.

use crate::context::Workers;
use crate::encode::{FilePlace, Outcomes, Sink};
use crate::layout::{FileLayouts, PlacedTensor, PlacedTensors};
use crate::plan::{Plan, TensorPlan};
use crate::treatment::BlockBytes;
use crate::weight_files::WeightFiles;
use briquette_core::coding::may_be_entropy_coded;
use briquette_core::encoded::{CodeBlocks, Part, PartSpec};
use briquette_core::{Error, Result};
use briquette_formats::{Draft, DraftFile};

/// Bytes that are copied at a time.
const COPIED: u64 = 1 << 20;

impl Plan<'_> {
    /// Returns whether the codes of a tensor are entropy-coded.
    pub(crate) fn has_blocks(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.blocks.is_some())
    }

    /// Records the lengths of blocks.
    ///
    /// Returns false if readers would refuse the blocks as too dense. Then nothing is entropy-coded.
    pub(crate) fn learn_blocks(&mut self, outcomes: &Outcomes) -> bool {
        let (mut n_codes, mut n_bytes) = (0_u64, 0_u64);
        for (&index, ends) in &outcomes.block_ends {
            let tensor = &mut self.tensors[index];
            if let Some(&end) = ends.last() {
                tensor.blocks = Some(BlockBytes::Exactly(end as usize));
                n_codes = n_codes.saturating_add(tensor.rows().n_elements() as u64);
                n_bytes = n_bytes.saturating_add(end);
            }
        }
        let may_be = may_be_entropy_coded(n_codes, n_bytes);
        if !may_be {
            self.tensors.iter_mut().for_each(|tensor| tensor.blocks = None);
        }
        may_be
    }
}

/// A scratch file for parts whose places in files are unknown.
pub(crate) struct Scratch {
    file: DraftFile,
    /// The start of the parts of each tensor, which follow each other.
    starts: Vec<u64>,
    /// The parts of each tensor.
    specs: Vec<Vec<PartSpec>>,
}

impl Scratch {
    /// Creates an empty scratch file for the parts of these tensors.
    pub(crate) fn create(draft: &Draft, plan: &Plan, tensors: &PlacedTensors) -> Result<Self> {
        let (mut starts, mut specs, mut end) = (Vec::with_capacity(plan.tensors.len()), Vec::new(), 0);
        for (tensor, placed) in plan.tensors.iter().zip(tensors.iter()) {
            let its = if tensor.tied_to().is_none() { uncoded_parts(tensor, &placed) } else { Vec::new() };
            starts.push(end);
            end += its.iter().map(|spec| spec.n_bytes() as u64).sum::<u64>();
            specs.push(its);
        }
        draft.check_space(end)?;
        Ok(Self { file: draft.create_scratch()?, starts, specs })
    }

    fn part_at(&self, tensor: usize, part: Part) -> Option<(u64, u64)> {
        let mut at = self.starts[tensor];
        for spec in &self.specs[tensor] {
            if spec.part == part {
                return Some((at, spec.n_bytes() as u64));
            }
            at += spec.n_bytes() as u64;
        }
        None
    }

    /// Copies everything into the files.
    pub(crate) fn copy_to(
        &self,
        files: &WeightFiles,
        layout: &FileLayouts,
        outcomes: &Outcomes,
        workers: &Workers,
    ) -> Result<()> {
        let tensors: Vec<usize> = (0..self.specs.len()).filter(|&tensor| !self.specs[tensor].is_empty()).collect();
        workers.map(&tensors, Vec::new, |buffer, &tensor| {
            let (placed, ends) = (layout.tensors.of(tensor), outcomes.block_ends(tensor));
            for spec in &self.specs[tensor] {
                let (start, _) = placed
                    .part(spec.part)
                    .ok_or_else(|| Error::bug(format!("part {:?} of tensor {tensor} has no place", spec.part)))?;
                let mut to = start;
                for from in self.stretches_of(tensor, spec.part, ends) {
                    to = self.copy(from, (files, placed.file, to), buffer)?;
                    workers.check_stop()?;
                }
            }
            if let Some((start, _)) = placed.part(Part::BlockEnds) {
                let bytes: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
                files.write(placed.file, start, &bytes)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Returns the ranges of the scratch file that a part consists of, as start and size.
    fn stretches_of(&self, tensor: usize, part: Part, ends: &[u64]) -> Vec<(u64, u64)> {
        let Some((start, n_bytes)) = self.part_at(tensor, part) else { return Vec::new() };
        let spec = self.specs[tensor].iter().find(|spec| spec.part == Part::Blocks && part == Part::Blocks);
        let Some(&[n_rows, n_cols]) = spec.map(|spec| spec.shape.as_slice()) else { return vec![(start, n_bytes)] };
        let step = CodeBlocks::new(n_rows, n_cols).n_codes(0) as u64;
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(ends).zip(0..).map(|((before, end), number)| (start + number * step, end - before)).collect()
    }

    fn copy(
        &self,
        (mut start, n_bytes): (u64, u64),
        to: (&WeightFiles, usize, u64),
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let (files, file, mut at) = to;
        let end = start + n_bytes;
        while start < end {
            let n = (end - start).min(COPIED);
            buffer.resize(n as usize, 0);
            self.file.read_at(start, buffer)?;
            files.write(file, at, buffer)?;
            (start, at) = (start + n, at + n);
        }
        Ok(at)
    }
}

/// Returns the parts of a tensor before entropy coding, with one byte per code.
fn uncoded_parts(tensor: &TensorPlan, placed: &PlacedTensor) -> Vec<PartSpec> {
    let (dtype, rows) = (tensor.value_dtype(), tensor.rows());
    let mut specs = placed.coding.parts(dtype, rows.n_rows, rows.n_cols, placed.n_kept);
    specs.retain(|spec| spec.part != Part::BlockEnds);
    for spec in specs.iter_mut().filter(|spec| spec.part == Part::Blocks) {
        spec.shape = vec![rows.n_rows, rows.n_cols];
    }
    specs
}

impl Sink for Scratch {
    fn place(&self, tensor: usize, part: Part) -> Result<Option<FilePlace>> {
        let no_place = || Error::bug(format!("part {part:?} of tensor {tensor} has no place"));
        let (start, _) = self.part_at(tensor, part).ok_or_else(no_place)?;
        Ok(Some(FilePlace { file: 0, start, layout: None }))
    }

    fn write(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read(&self, _file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, out)
    }
}
