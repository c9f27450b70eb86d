//! Writes and hashes dense tensors whose outputs are not their first axis.
//!
//! Such a tensor is stored and hashed in its own order, `[in, out]`. A piece of it has only some outputs, so it holds a
//! part of every block. The parts are hashed when they are encoded. Once all pieces are written, each block is read
//! back, its parts are compared with their hashes, and the block is hashed.

use super::writes::{Sink, Writes};
use crate::context::Workers;
use crate::piece::PieceBuffer;
use crate::plan::TensorPlan;
use crate::survey::PieceStart;
use briquette_core::encoded::{Part, Parts};
use briquette_core::{Error, Hash128, Result, Rows, TensorHasher};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks that one thread reads back at a time.
const BLOCKS_PER_TASK: usize = 8;

/// The hashes of the parts of each block, for each piece of a tensor.
pub(super) type PieceDigests = Vec<Vec<Hash128>>;

/// The bytes that a piece has of each input: those of its outputs.
fn input_bytes(tensor: &TensorPlan, n_rows: usize) -> usize {
    n_rows * tensor.rows().run.max(1) * tensor.stored_dtype().n_bits() / 8
}

/// Transposes the encoded rows of a piece back to the tensor's own order, and hashes its part of every block.
///
/// `buffer` holds the piece for a moment.
pub(super) fn turn_back(
    tensor: &TensorPlan,
    piece: &Range<usize>,
    parts: &mut Parts,
    buffer: &mut PieceBuffer,
    digests: &mut Vec<Hash128>,
) {
    let rows = Rows { n_rows: piece.len(), ..tensor.rows() };
    let weight = &mut parts[Part::Weight];
    let own_order = buffer.bytes_mut(weight.len());
    rows.turn_back(weight, own_order, tensor.stored_dtype().n_bits() / 8);
    weight.copy_from_slice(own_order);
    let n = input_bytes(tensor, piece.len());
    let blocks = tensor.rows_as_stored().blocks();
    digests.extend(blocks.map(|inputs| Hash128::of_block(&weight[inputs.start * n..inputs.end * n])));
}

/// Writes a piece in the tensor's own order between the other pieces, and clears it.
pub(super) fn put(
    tensor: &TensorPlan,
    piece: &Range<usize>,
    parts: &mut Parts,
    writes: &mut Writes,
    index: usize,
) -> Result<()> {
    let weight = &mut parts[Part::Weight];
    let (whole, before) = (input_bytes(tensor, tensor.rows().n_rows), input_bytes(tensor, piece.start));
    for (input, bytes) in weight.chunks(input_bytes(tensor, piece.len()).max(1)).enumerate() {
        writes.put(index, Part::Weight, (input * whole + before) as u64, bytes)?;
    }
    weight.clear();
    Ok(())
}

/// A tensor that was written in several pieces.
pub(super) struct CutTensor<'a> {
    pub(super) index: usize,
    pub(super) tensor: &'a TensorPlan<'a>,
    pub(super) pieces: &'a [PieceStart],
    pub(super) digests: PieceDigests,
}

/// Reads the blocks of tensors back, and returns the hash of each tensor by its index.
///
/// # Errors
/// - Input: a block differs from what was encoded.
/// - Io: a file cannot be read.
pub(super) fn hashes(cut: &[CutTensor], sink: &dyn Sink, workers: &Workers) -> Result<BTreeMap<usize, Hash128>> {
    let of_tensor = |cut: &CutTensor| cut.tensor.rows_as_stored().blocks().collect::<Vec<_>>();
    let blocks: Vec<Vec<Range<usize>>> = cut.iter().map(of_tensor).collect();
    let tasks: Vec<(usize, Range<usize>)> = (blocks.iter().enumerate())
        .flat_map(|(nth, blocks)| {
            let starts = (0..blocks.len()).step_by(BLOCKS_PER_TASK);
            starts.map(move |start| (nth, start..(start + BLOCKS_PER_TASK).min(blocks.len())))
        })
        .collect();
    let found = workers.map(&tasks, <(Vec<u8>, Vec<u8>)>::default, |buffers, (nth, numbers)| {
        workers.check_stop()?;
        numbers.clone().map(|number| cut[*nth].hash(number, &blocks[*nth][number], sink, buffers)).collect()
    })?;
    let mut hashers: Vec<TensorHasher> = cut.iter().map(|_| TensorHasher::default()).collect();
    for ((nth, _), digests) in tasks.iter().zip::<Vec<Vec<Hash128>>>(found) {
        digests.into_iter().for_each(|digest| hashers[*nth].push(digest));
    }
    Ok(cut.iter().zip(hashers).map(|(cut, hasher)| (cut.index, hasher.finish())).collect())
}

impl CutTensor<'_> {
    /// Returns the hash of a block, after its parts were compared.
    fn hash(
        &self,
        number: usize,
        inputs: &Range<usize>,
        sink: &dyn Sink,
        (block, part): &mut (Vec<u8>, Vec<u8>),
    ) -> Result<Hash128> {
        let whole = input_bytes(self.tensor, self.tensor.rows().n_rows);
        block.resize(inputs.len() * whole, 0);
        let place = sink.place(self.index, Part::Weight)?.ok_or_else(|| Error::bug("the tensor was not written"))?;
        sink.read(place.file, place.start + (inputs.start * whole) as u64, block)?;
        for (piece, digests) in self.pieces.iter().zip(&self.digests) {
            let of_piece = input_bytes(self.tensor, piece.rows.start)..input_bytes(self.tensor, piece.rows.end);
            part.clear();
            block.chunks(whole.max(1)).for_each(|input| part.extend_from_slice(&input[of_piece.clone()]));
            if digests.get(number) != Some(&Hash128::of_block(part)) {
                let message = "its bytes differ from those that were written; check the disk, and run it again";
                return Err(Error::input(message).at(self.tensor.culprit()));
            }
        }
        Ok(Hash128::of_block(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::RunOptions;
    use crate::encode::{FilePlace, Outcomes, encode};
    use crate::layout::FileLayouts;
    use crate::piece_sizes::PieceSizes;
    use crate::plan::{Nonfinite, Plan};
    use crate::survey::survey;
    use crate::treatment::{Cut, Pruning};
    use briquette_core::{DType, OutputAxis};
    use briquette_formats::{InputFile, OutputFormat, TensorInfo, TensorSource};
    use briquette_methods::prune::{Score, SparsityPattern, score};
    use std::sync::Mutex;

    /// A matrix and a stack of kernels, `[in, out]`, as f32.
    struct Model(Vec<TensorInfo>, Vec<Vec<f32>>);

    impl Model {
        fn new() -> Self {
            let info = |(name, shape): (&str, Vec<usize>)| TensorInfo::checked(name.into(), DType::F32, shape).unwrap();
            let infos: Vec<TensorInfo> =
                [("matrix", vec![700, 1900]), ("kernels", vec![300, 401, 9])].into_iter().map(info).collect();
            let values = |(seed, info): (usize, &TensorInfo)| {
                let mut values = vec![0.0; info.n_elements()];
                score::random(seed as u64, 0, &mut values);
                values.iter_mut().for_each(|value| *value -= 0.5);
                values
            };
            let values = infos.iter().enumerate().map(values).collect();
            Self(infos, values)
        }

        /// Prunes half of each tensor, and casts it to f16.
        fn plan(&self, piece_sizes: PieceSizes) -> Plan<'_> {
            let mut plan = Plan::unchanged(&self.0, OutputFormat::Dense, Nonfinite::Refused);
            plan.piece_sizes = piece_sizes;
            for (tensor, axis) in plan.tensors.iter_mut().zip([OutputAxis::Last, OutputAxis::Second]) {
                let pattern = SparsityPattern::Unstructured(tensor.info.n_elements() / 2);
                tensor.output_rows = Rows::of(&tensor.info.shape, axis);
                tensor.prune = Some(Pruning { score: Score::Magnitude, cut: Cut::Pattern(pattern) });
                tensor.cast = Some(DType::F16);
            }
            plan
        }
    }

    impl TensorSource for Model {
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }

        fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&bytemuck::cast_slice(&self.1[index])[start..start + out.len()]);
            Ok(())
        }

        fn reads_ranges(&self, _index: usize) -> bool {
            true
        }

        fn files(&self) -> Vec<&InputFile> {
            Vec::new()
        }
    }

    /// A sink that keeps the bytes of each tensor. One byte of the last may be wrong when it is read.
    #[derive(Default)]
    struct Kept {
        tensors: Mutex<[Vec<u8>; 2]>,
        is_damaged: bool,
    }

    impl Sink for Kept {
        fn place(&self, tensor: usize, _part: Part) -> Result<Option<FilePlace>> {
            Ok(Some(FilePlace { file: tensor, start: 0, layout: None }))
        }

        fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
            let (kept, start) = (&mut self.tensors.lock().unwrap()[file], offset as usize);
            kept.resize(kept.len().max(start + bytes.len()), 0);
            kept[start..start + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&self.tensors.lock().unwrap()[file][offset as usize..offset as usize + out.len()]);
            if self.is_damaged && file == 1 && offset > 0 {
                out[7] ^= 1;
            }
            Ok(())
        }
    }

    fn encoded(model: &Model, piece_sizes: PieceSizes, sink: &Kept) -> Result<Outcomes> {
        let workers = Workers::new(&RunOptions { threads: 2, ..RunOptions::default() })?;
        let mut plan = model.plan(piece_sizes);
        let surveys = survey(&mut plan, model, &workers)?;
        let n_pieces: Vec<bool> = surveys.iter().map(|survey| survey.n_pieces() > 1).collect();
        assert_eq!(n_pieces, [piece_sizes == PieceSizes::SMALL; 2], "{piece_sizes:?}");
        let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
        let layout = FileLayouts::new(&plan, &n_kept)?;
        encode(&plan, &surveys, &layout.tensors, model, sink, &workers)
    }

    #[test]
    fn pieces_of_outputs_are_written_and_hashed_as_the_whole_tensor() {
        let (model, whole, cut) = (Model::new(), Kept::default(), Kept::default());
        let expected = encoded(&model, PieceSizes::LARGE, &whole).unwrap();
        let found = encoded(&model, PieceSizes::SMALL, &cut).unwrap();
        assert_eq!(found.hashes, expected.hashes);
        assert_eq!(found.stats, expected.stats);
        let (whole, cut) = (whole.tensors.into_inner().unwrap(), cut.tensors.into_inner().unwrap());
        assert!(whole == cut, "the same bytes");
        assert_eq!(cut.each_ref().map(Vec::len), [700 * 1900 * 2, 300 * 401 * 9 * 2]);
    }

    #[test]
    fn bytes_that_change_after_writing_are_found() {
        let sink = Kept { is_damaged: true, ..Kept::default() };
        let error = encoded(&Model::new(), PieceSizes::SMALL, &sink).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(
            error.to_string().contains("tensor \"kernels\": its bytes differ from those that were written"),
            "{error}"
        );
    }
}
