//! Serves consecutive small reads of a file from one larger read.
//!
//! A model may have millions of small tensors. One system call per tensor would take longer than all other work
//! on it.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longer reads go directly to the system.
const MAX_SMALL: usize = 4 << 10;
/// Bytes of a larger read.
const WINDOW: u64 = 64 << 10;
/// A read that starts at most this far after the end of another continues it. The gap is read too.
const NEAR: u64 = 16 << 10;
/// Positions in files that a thread may read ahead from: codes, scales and zero points of a tensor are apart.
const N_STREAMS: usize = 6;

/// A unique number per opened file, so that read-ahead bytes of two files are never mixed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(u64);

impl FileId {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Consecutive reads of one thread in a file.
#[derive(Debug)]
struct Stream {
    file: FileId,
    /// The end of the last read.
    end: u64,
    /// The start of the bytes that were read ahead.
    start: u64,
    bytes: Vec<u8>,
}

thread_local! {
    /// Most recently used first; a new stream replaces the last.
    static STREAMS: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// Fills `out` from `offset` of a file of `n_file` bytes; `read` makes the system call.
///
/// # Errors
/// Errors of `read`.
pub(crate) fn read(
    file: FileId,
    offset: u64,
    out: &mut [u8],
    n_file: u64,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    if out.len() > MAX_SMALL {
        return read(offset, out);
    }
    STREAMS.with_borrow_mut(|streams| {
        let end = offset + out.len() as u64;
        let follows = |stream: &Stream| stream.file == file && (stream.start..=stream.end + NEAR).contains(&offset);
        let Some(place) = streams.iter().position(follows) else {
            streams.truncate(N_STREAMS - 1);
            streams.insert(0, Stream { file, end, start: offset, bytes: Vec::new() });
            return read(offset, out);
        };
        streams[..=place].rotate_right(1);
        let stream = &mut streams[0];
        if end > stream.start + stream.bytes.len() as u64 || offset < stream.start {
            let n = WINDOW.min(n_file.saturating_sub(offset)) as usize;
            stream.bytes.resize(n.max(out.len()), 0);
            // The file may have become shorter, yet still have the bytes of this read.
            if read(offset, &mut stream.bytes).is_err() {
                streams.remove(0);
                return read(offset, out);
            }
            stream.start = offset;
        }
        stream.end = end;
        let at = (offset - stream.start) as usize;
        out.copy_from_slice(&stream.bytes[at..at + out.len()]);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Reads ranges of a file whose bytes encode their position. Returns the number of system calls and of
    /// bytes read.
    fn count(n_file: u64, ranges: impl IntoIterator<Item = std::ops::Range<u64>>) -> (usize, usize) {
        let (id, calls) = (FileId::new(), Cell::new((0, 0)));
        let byte = |at: u64| (at * 31 % 251) as u8;
        let system = |offset: u64, out: &mut [u8]| {
            assert!(offset + out.len() as u64 <= n_file, "beyond the end");
            calls.set((calls.get().0 + 1, calls.get().1 + out.len()));
            out.iter_mut().zip(offset..).for_each(|(out, at)| *out = byte(at));
            Ok(())
        };
        for range in ranges {
            let mut out = vec![0; (range.end - range.start) as usize];
            read(id, range.start, &mut out, n_file, system).unwrap();
            assert!(out.iter().zip(range.clone()).all(|(out, at)| *out == byte(at)), "{range:?}");
        }
        calls.get()
    }

    #[test]
    fn consecutive_reads_are_combined_and_others_are_not() {
        let n = 1 << 20;
        let small = |i: u64| i * 256..(i + 1) * 256;
        assert_eq!(count(n, (0..n / 256).map(small)), (17, n as usize));
        // Alternating between three positions, every second range of each.
        let places = (0..500).flat_map(|i| [0, 300_000, 600_000].map(|start| start + i * 512..start + i * 512 + 256));
        assert!(count(n, places).0 < 30);
        let far = (0..200).map(|i| i * 7919 * 3 % 50 * 20_000).map(|start| start..start + 256);
        assert_eq!(count(n, far), (200, 200 * 256));
        assert_eq!(count(n, (0..4).map(|i| i * 200_000..i * 200_000 + 100_000)), (4, 400_000));
        assert_eq!(count(300, [0..256, 256..300, 0..10, 290..300]).0, 4);
    }

    #[test]
    fn a_truncated_file_gives_its_bytes_and_then_an_error() {
        let id = FileId::new();
        let left = 300;
        let system = |offset: u64, out: &mut [u8]| match offset + out.len() as u64 <= left {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        };
        let mut out = [0; 100];
        assert!(read(id, 0, &mut out, 1 << 20, system).is_ok());
        assert!(read(id, 100, &mut out, 1 << 20, system).is_ok());
        assert!(read(id, 250, &mut out, 1 << 20, system).is_err());
    }
}
