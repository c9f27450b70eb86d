//! Tests formats that interleave scales and codes in blocks, with the production code. No current format does
//! so.

use super::*;
use crate::context::{RunOptions, Workers};
use crate::decode::decode_all;
use crate::encode::encode;
use crate::known::{Known, Reason};
use crate::plan::{Nonfinite, Plan, TensorPlan};
use crate::survey::survey;
use crate::treatment::{Quant, Treatment};
use briquette_core::encoded::ScaleType;
use briquette_core::{Coding, DType, Grid, GridKind, Grouping, OutputAxis, Role, Rows, Shape};
use briquette_formats::foreign::{BlockLayout, BlockOrder};
use briquette_formats::output_format::{FilePart, Holds};
use briquette_formats::plain::PlainFiles;
use briquette_formats::sniff::FileKind;
use briquette_formats::stored::{DecodeBuffers, PartBytes};
use briquette_formats::{Choice, InputFile, OutputFormat, StoredDir, StoredTensor, TensorInfo, TensorSource};
use briquette_methods::prune::score;
use briquette_methods::quant::{Activations, QuantSpec, ScaleSearch};

/// Weights that share a scale. Their codes form one block.
const GROUP: usize = 32;

/// Codes of 4 bits as in some programs: byte `j` of a block has code `j`, and code `j + 16` in its high half.
static HALVES: BlockOrder = BlockOrder { weave: to_halves, unweave: from_halves };

fn to_halves(ours: &[u8], block: &mut [u8]) {
    let code = |i: usize| ours[i / 2] >> (i % 2 * 4) & 0xf;
    block.iter_mut().enumerate().for_each(|(j, byte)| *byte = code(j) | code(j + GROUP / 2) << 4);
}

fn from_halves(block: &[u8], ours: &mut [u8]) {
    let code = |i: usize| block[i % (GROUP / 2)] >> (i / (GROUP / 2) * 4) & 0xf;
    ours.iter_mut().enumerate().for_each(|(j, byte)| *byte = code(2 * j) | code(2 * j + 1) << 4);
}

/// Returns the one tensor that such a format stores for a quantized tensor: rows of blocks of a scale and its
/// codes.
fn file_parts(tensor: &TensorPlan, coding: Coding, n_kept: usize) -> Result<Vec<FilePart>> {
    let Some(codes) = coding.codes else { return tensor.file_parts(OutputFormat::Briquette, coding, n_kept) };
    let n_codes = GROUP * usize::from(codes.bits) / 8;
    let block_bytes = 2 + n_codes;
    let scales = BlockLayout::new(block_bytes, 0, 2).unwrap();
    let words = BlockLayout::new(block_bytes, 2, n_codes).unwrap();
    let words = if codes.bits == 4 { words.in_order(&HALVES) } else { words };
    let shape = Shape(vec![tensor.rows().n_rows, tensor.rows().n_cols / GROUP * block_bytes]);
    let info = TensorInfo { name: tensor.info.name.clone(), dtype: DType::U8, shape: shape.into() };
    Ok(vec![FilePart { info, holds: Holds::Woven(vec![(Part::Codes, words), (Part::Scale, scales)]) }])
}

struct Model(Vec<TensorInfo>, Vec<Vec<f32>>);

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

impl Model {
    /// Creates a matrix of several pieces, a small one, one without rows, and a vector that stays unchanged.
    fn new() -> Self {
        let shapes = [("large", vec![90_000, 96]), ("small", vec![3, 64]), ("empty", vec![0, 32]), ("bias", vec![70])];
        let info = |(name, shape): (&str, Vec<usize>)| TensorInfo::checked(name.into(), DType::F32, shape).unwrap();
        let infos: Vec<TensorInfo> = shapes.into_iter().map(info).collect();
        let values = |(seed, info): (usize, &TensorInfo)| {
            let mut values = vec![0.0; info.n_elements()];
            score::random(seed as u64, 0, &mut values);
            values.iter_mut().for_each(|value| *value -= 0.5);
            values
        };
        let weights = infos.iter().enumerate().map(values).collect();
        Self(infos, weights)
    }

    /// Creates a plan that quantizes every matrix in groups, to codes of `n_bits`.
    fn plan(&self, n_bits: u8) -> Plan<'_> {
        let grid = Grid::new(n_bits, GridKind::Symmetric).unwrap();
        let spec = QuantSpec {
            grid,
            grouping: Grouping::Group(GROUP),
            range: ScaleSearch::AbsMax,
            scale: ScaleType::F16,
            has_columns: false,
            has_trellis: false,
        };
        let quant = Quant { spec, activations: Activations::Float, is_given: false, inputs: None };
        let tensor = |(index, info)| {
            let info: &TensorInfo = info;
            let known = Known { role: Role::Linear, axis: OutputAxis::First, why: Reason::Matrix };
            let none = Treatment::none(known, Rows::of(&info.shape, OutputAxis::First));
            let quant = (info.shape.rank() == 2).then_some(quant);
            TensorPlan::new(index, info, Treatment { quant, ..none })
        };
        Plan {
            piece_sizes: crate::piece_sizes::PieceSizes::LARGE,
            outlier_pools: Vec::new(),
            skeleton: None,
            norms: Default::default(),
            tensors: self.0.iter().enumerate().map(tensor).collect(),
            pools: Vec::new(),
            profile: OutputFormat::Briquette,
            max_shard_bytes: u64::MAX,
            nonfinite: Nonfinite::Refused,
            layout: briquette_formats::WeightLayout::Torch,
            untested: None,
            metadata: Default::default(),
            remarks: Vec::new(),
            inputs: Default::default(),
        }
    }
}

/// Opens a written file with the parts that the format declares.
fn open(path: &Path, plan: &Plan, layout: &FileLayouts) -> StoredDir {
    let mut plain = PlainFiles::default();
    plain.push(InputFile::open(path).unwrap(), FileKind::Safetensors, &Choice::default()).unwrap();
    let tensor = |tensor: &TensorPlan| {
        let (coding, n_kept) = (layout.tensors.of(tensor.index()).coding, tensor.info.n_elements());
        let (info, axis) = (tensor.info.clone(), OutputAxis::First);
        let mut stored = StoredTensor { info, axis, coding, n_kept, activations: None, parts: Vec::new() };
        let found = plain.by_name();
        stored.locate(file_parts(tensor, coding, n_kept).unwrap(), |name| found.part(name)).unwrap();
        stored
    };
    let tensors = plan.tensors.iter().map(tensor).collect();
    StoredDir::new(plain.into_files(), tensors)
}

/// Compares rows of a tensor, and its bytes in the file, with values computed from its weights.
fn check_rows(model: &Model, stored: &StoredDir, index: usize, n_bits: u8, first_row: usize) {
    let n_cols = model.0[index].shape.0[1];
    let weights = &model.1[index][first_row * n_cols..(first_row + 2) * n_cols];
    let (mut codes, mut values, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let offset = |code: i8| (code + 8) as u8;
    for group in weights.chunks(GROUP) {
        let most = group.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
        let scale = half::f16::from_f32(most / (2_f32.powi(i32::from(n_bits) - 1) - 1.0));
        let limit = 2_f32.powi(i32::from(n_bits) - 1) - 1.0;
        let rounded = |weight: &f32| (weight / scale.to_f32()).round_ties_even().clamp(-limit, limit) as i8;
        let group: Vec<i8> = group.iter().map(rounded).collect();
        bytes.extend(scale.to_le_bytes());
        match n_bits {
            8 => bytes.extend(group.iter().map(|code| *code as u8)),
            _ => bytes.extend((0..GROUP / 2).map(|j| offset(group[j]) | offset(group[j + GROUP / 2]) << 4)),
        }
        values.extend(group.iter().map(|code| f32::from(*code) * scale.to_f32()));
        codes.extend(group);
    }
    let (mut scratch, mut found, rows) = (DecodeBuffers::default(), vec![0; codes.len()], first_row..first_row + 2);
    stored.read_codes(index, rows, &mut scratch, &mut found).unwrap();
    assert_eq!(found, codes, "codes of {n_bits} bits from row {first_row}");
    let mut decoded = vec![0.0_f32; values.len()];
    stored.read(index, first_row * n_cols * 4, bytemuck::cast_slice_mut(&mut decoded)).unwrap();
    assert_eq!(decoded, values);
    let (_, PartBytes::Foreign { file, offset, .. }) = stored.tensors[index].parts[0] else {
        panic!("interleaved parts are foreign");
    };
    let mut written = vec![0; bytes.len()];
    stored.files[file].read_at(offset + (first_row / 2 * bytes.len()) as u64, &mut written).unwrap();
    assert_eq!(written, bytes, "rows follow each other");
}

#[test]
fn scales_and_codes_in_blocks_are_written_and_read_back() {
    for n_bits in [8, 4] {
        let (model, dir) = (Model::new(), tempfile::tempdir().unwrap());
        let mut plan = model.plan(n_bits);
        let workers = Workers::new(&RunOptions { threads: 2, ..RunOptions::default() }).unwrap();
        let surveys = survey(&mut plan, &model, &workers).unwrap();
        assert!(surveys[0].n_pieces() > 1, "the large tensor has several pieces");
        let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
        let mut layout = FileLayouts::of_parts(&plan, &n_kept, &file_parts).unwrap();
        let draft = Draft::create(&dir.path().join("out"), &[], false).unwrap();
        let headers = layout.take_headers(&plan, &file_parts).unwrap();
        let files = WeightFiles::create(&draft, &layout, &headers).unwrap();
        let outcomes = encode(&plan, &surveys, &layout.tensors, &model, &files, &workers).unwrap();
        let stored = open(&draft.path().join(&layout.files[0].name), &plan, &layout);
        let decoded = decode_all(&stored, &workers).unwrap();
        assert!(outcomes.hashes.iter().zip(&decoded).all(|(hash, decoded)| *hash == decoded.hash), "{n_bits} bits");
        for first_row in [0, 2, 45_000, 89_998] {
            check_rows(&model, &stored, 0, n_bits, first_row);
        }
        check_rows(&model, &stored, 1, n_bits, 0);
        assert_eq!(stored.tensors[0].parts.len(), 2);
    }
}
