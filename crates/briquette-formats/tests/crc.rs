//! PyTorch archives with wrong CRC-32s are refused while they are read.

#![allow(clippy::unwrap_used)]

mod archives;

use archives::{How, dict, item, key, tensor, zip, zip_as};
use briquette_core::{Error, ErrorKind};
use briquette_formats::{Checkpoint, TensorSource};

const N: usize = 100_000;

/// Encodes a tensor of `N` f32 in storage 0, which has `N` elements.
fn large(name: &str) -> Vec<u8> {
    let count = (N as u32).to_le_bytes();
    let opcodes = tensor(&[b"K\0J".as_slice(), &count, &[0x85], b"K\x01\x85"].concat());
    // The helper declares a storage of two elements.
    let declared = b"K\x02tQ";
    let at = opcodes.windows(declared.len()).position(|window| window == declared).unwrap();
    [key(name).as_slice(), &opcodes[..at], b"J", &count, b"tQ", &opcodes[at + declared.len()..]].concat()
}

fn data() -> Vec<u8> {
    (0..4 * N as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// Flips a bit of the entry `of` of an archive.
fn with_flip(archive: &[u8], of: &[u8], at: usize) -> Vec<u8> {
    let start = archive.windows(of.len()).position(|window| window == of).unwrap();
    let mut bytes = archive.to_vec();
    bytes[start + at] ^= 0x10;
    bytes
}

fn open(bytes: &[u8]) -> (tempfile::TempDir, Result<Checkpoint, Error>) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.pt"), bytes).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("m.pt"));
    (dir, checkpoint)
}

fn assert_is_crc(error: &Error) {
    let is_named = error.message.contains("m.pt: ") && error.message.contains("m/data/0");
    assert!(error.kind == ErrorKind::Input && is_named && error.message.contains("CRC-32"), "{error}");
}

#[test]
fn a_flipped_bit_is_found_by_the_last_read_of_an_entry() {
    let data = data();
    let good = zip(&[("m/data.pkl", &dict(&large("a"))), ("m/data/0", &data)]);
    for piece in [4 * N, 65_536, 9_999] {
        let starts: Vec<usize> = (0..4 * N).step_by(piece).collect();
        for (bytes, is_good) in [(good.clone(), true), (with_flip(&good, &data, 123_456), false)] {
            for is_reversed in [false, true] {
                let (_dir, checkpoint) = open(&bytes);
                let checkpoint = checkpoint.unwrap();
                let mut starts = starts.clone();
                if is_reversed {
                    starts.reverse();
                }
                let read = |start: usize| checkpoint.read(0, start, &mut vec![0; piece.min(4 * N - start)]);
                let (last, others) = starts.split_last().unwrap();
                others.iter().for_each(|&start| read(start).unwrap());
                match read(*last) {
                    Ok(()) => assert!(is_good),
                    Err(error) => assert_is_crc(&error),
                }
                assert_eq!(checkpoint.check_unchanged().is_ok(), is_good);
            }
        }
    }
}

#[test]
fn entries_read_in_part_are_checked_at_the_end_and_unread_ones_are_not() {
    let data = data();
    let bytes = with_flip(&zip(&[("m/data.pkl", &dict(&large("a"))), ("m/data/0", &data)]), &data, 200_000);
    let (_dir, checkpoint) = open(&bytes);
    let checkpoint = checkpoint.unwrap();
    checkpoint.check_unchanged().unwrap();
    checkpoint.read(0, 1000, &mut [0; 64]).unwrap();
    checkpoint.read(0, 300_000, &mut [0; 64]).unwrap();
    for _ in 0..2 {
        assert_is_crc(&checkpoint.check_unchanged().unwrap_err());
    }
}

#[test]
fn an_entry_shared_by_tensors_is_checked_for_each() {
    let pickle = dict(&[item("a", 0, 1), item("b", 0, 1)].concat());
    let good = zip(&[("m/data.pkl", &pickle), ("m/data/0", b"abcdefgh")]);
    let (_dir, checkpoint) = open(&with_flip(&good, b"abcdefgh", 5));
    let checkpoint = checkpoint.unwrap();
    for index in [0, 1] {
        assert_is_crc(&checkpoint.read(index, 0, &mut [0; 8]).unwrap_err());
    }
}

#[test]
fn strided_views_and_deflated_entries_are_checked_as_a_whole() {
    // Elements 0 and 2 of three: a flip between them is damage too.
    let strided = [key("a").as_slice(), &tensor(b"K\0K\x02\x85K\x02\x85")].concat();
    let declared = b"K\x02tQ";
    let at = strided.windows(declared.len()).position(|window| window == declared).unwrap();
    let strided = [&strided[..at], b"K\x03tQ", &strided[at + declared.len()..]].concat();
    for deflated in [&[][..], &["m/data/0"]] {
        let entries: [(&str, &[u8]); 2] = [("m/data.pkl", &dict(&strided)), ("m/data/0", b"abcdefghijkl")];
        let good = zip_as(How { deflated, is_wide: false }, &entries);
        let (_dir, checkpoint) = open(&good);
        let mut found = [0; 8];
        checkpoint.unwrap().read(0, 0, &mut found).unwrap();
        assert_eq!(&found, b"abcdijkl");
        for at in [1, 6, 11] {
            let (_dir, checkpoint) = open(&with_flip(&good, b"abcdefghijkl", at));
            let error = checkpoint.unwrap().read(0, 0, &mut found).unwrap_err();
            assert!(error.kind == ErrorKind::Input && error.message.contains("CRC-32"), "{deflated:?} {at}: {error}");
        }
    }
}

#[test]
fn a_damaged_pickle_is_refused_and_an_entry_without_a_sum_is_accepted() {
    let pickle = dict(&item("abc", 0, 1));
    let entries: [(&str, &[u8]); 2] = [("m/data.pkl", &pickle), ("m/data/0", b"abcdefgh")];
    let good = zip(&entries);
    let error = open(&with_flip(&good, b"abc", 1)).1.unwrap_err();
    assert!(error.kind == ErrorKind::Input && error.message.contains("data.pkl has the CRC-32"), "{error}");
    // An archive saved with `torch.serialization.set_crc32_options(False)`.
    let sums: Vec<[u8; 4]> = entries.iter().map(|(_, bytes)| archives::checksum(bytes).to_le_bytes()).collect();
    let mut without = with_flip(&good, b"abcdefgh", 5);
    for at in 0..without.len() - 4 {
        if sums.iter().any(|sum| without[at..at + 4] == *sum) {
            without[at..at + 4].fill(0);
        }
    }
    let (_dir, checkpoint) = open(&without);
    checkpoint.unwrap().read(0, 0, &mut [0; 8]).unwrap();
}
