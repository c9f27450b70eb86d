use super::*;
use crate::digests::Digests;
use crate::tensor::TensorInfo;
use briquette_core::encoded::{Codes, Part, ScaleType};
use briquette_core::{Coding, DType, GridKind, Grouping, OutputAxis, Storage, TensorHasher};

/// Rows per block, number of blocks, and columns.
const ROWS: usize = 32;
const BLOCKS: usize = 9;
const COLS: usize = 2048;

fn codes() -> Vec<u8> {
    (0..(BLOCKS * ROWS - 5) * COLS).map(|i| (i * 37 % 251) as u8).collect()
}

/// Creates a tensor of int8 codes with scale 1 in a file, and the hash of its values.
fn tensor_of(file: &std::path::Path, codes: &[u8]) -> StoredDir {
    let written: Vec<u8> = codes.iter().flat_map(|&code| f32::from(code as i8).to_le_bytes()).collect();
    let mut hasher = TensorHasher::default();
    written.chunks(ROWS * COLS * 4).for_each(|block| hasher.push(Hash128::of_block(block)));
    std::fs::write(file, [codes, &1_f32.to_le_bytes()].concat()).unwrap();
    let info = TensorInfo::checked("w".into(), DType::F32, vec![codes.len() / COLS, COLS]).unwrap();
    let of_8_bits = Codes {
        bits: 8,
        grid: GridKind::Symmetric,
        grouping: Grouping::Tensor,
        scale: ScaleType::F32,
        has_columns: false,
    };
    let coding = Coding { storage: Storage::Dense, codes: Some(of_8_bits) };
    let parts = [(Part::Codes, 0), (Part::Scale, codes.len() as u64)];
    let parts = parts.map(|(part, offset)| (part, PartBytes::File { file: 0, offset })).into();
    let tensor = StoredTensor { info, axis: OutputAxis::First, coding, n_kept: codes.len(), activations: None, parts };
    let mut dir = StoredDir::new(vec![InputFile::open(file).unwrap()], vec![tensor]);
    dir.digests = Some(Digests::new(vec![hasher.finish()], Default::default()));
    dir
}

fn read(dir: &StoredDir, rows: Range<usize>) -> Result<()> {
    dir.read_codes(0, rows.clone(), &mut DecodeBuffers::default(), &mut vec![0; rows.len() * COLS])
}

#[test]
fn blocks_read_by_several_threads_are_not_read_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let codes = codes();
    let (dir, n_rows) = (tensor_of(file.path(), &codes), codes.len() / COLS);
    let every_other = |first: usize| {
        let numbers = (first..BLOCKS).step_by(2);
        numbers.for_each(|number| read(&dir, block_rows(number, ROWS, n_rows)).unwrap());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| every_other(1));
        every_other(0);
    });
    assert!(!dir.is_unchecked(0) && dir.digests.as_ref().unwrap().begun().is_empty());
}

#[test]
fn partial_blocks_are_read_again_and_the_last_block_finds_a_flipped_bit() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let codes = codes();
    let (dir, n_rows) = (tensor_of(file.path(), &codes), codes.len() / COLS);
    for rows in [0..ROWS, ROWS + 3..2 * ROWS, 3 * ROWS..3 * ROWS + 1] {
        read(&dir, rows).unwrap();
    }
    assert!(dir.is_unchecked(0));
    dir.check_hashes().unwrap();
    assert!(!dir.is_unchecked(0));

    let mut flipped = codes.clone();
    flipped[5 * ROWS * COLS + 7] ^= 1;
    let dir = tensor_of(file.path(), &codes);
    std::fs::write(file.path(), [&flipped[..], &1_f32.to_le_bytes()].concat()).unwrap();
    for number in 0..BLOCKS {
        let found = read(&dir, block_rows(number, ROWS, n_rows));
        assert_eq!(found.is_err(), number == BLOCKS - 1, "{number}: {found:?}");
    }
}
