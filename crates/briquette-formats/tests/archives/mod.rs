//! Builds archives like those of PyTorch.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

/// Options of an archive.
#[derive(Debug, Clone, Copy, Default)]
pub struct How<'a> {
    /// Entries that are deflated (as stored blocks).
    pub deflated: &'a [&'a str],
    /// Whether sizes and offsets are in 64-bit fields.
    pub is_wide: bool,
}

/// Builds a zip archive of stored entries, like `torch.save`.
pub fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    zip_as(How::default(), entries)
}

/// Builds a zip archive.
pub fn zip_as(how: How, entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let is_deflated = how.deflated.contains(name);
        let packed = if is_deflated { deflate(bytes) } else { bytes.to_vec() };
        let method = if is_deflated { 8_u16 } else { 0 }.to_le_bytes();
        let sizes = [narrow(packed.len(), how), narrow(bytes.len(), how)].concat();
        let n_name = (name.len() as u16).to_le_bytes();
        let common =
            [&[20, 0, 0, 0], method.as_slice(), &[0; 4], &checksum(bytes).to_le_bytes(), &sizes, &n_name].concat();
        let start = file.len();
        let extra = wide(&[bytes.len(), packed.len()], how);
        let n_extra = (extra.len() as u16).to_le_bytes();
        file.extend([b"PK\x03\x04", common.as_slice(), &n_extra, name.as_bytes(), &extra, &packed].concat());
        let extra = wide(&[bytes.len(), packed.len(), start], how);
        let n_extra = (extra.len() as u16).to_le_bytes();
        directory.extend([b"PK\x01\x02\x14\0", common.as_slice(), &n_extra, &[0; 10], &narrow(start, how)].concat());
        directory.extend([name.as_bytes(), &extra].concat());
    }
    let (start, n_directory) = (file.len(), directory.len());
    file.extend(directory);
    end(&mut file, entries.len(), n_directory, start, how);
    file
}

/// Builds a tar archive of regular files, like Python's `tarfile`.
pub fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    for (name, bytes) in entries {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        file.extend(header);
        file.extend(*bytes);
        file.resize(file.len().next_multiple_of(512), 0);
    }
    file.resize(file.len() + 1024, 0);
    file
}

/// Appends the records at the end of an archive.
fn end(file: &mut Vec<u8>, n: usize, n_directory: usize, start: usize, how: How) {
    let longs = |values: &[usize]| values.iter().flat_map(|&value| (value as u64).to_le_bytes()).collect::<Vec<u8>>();
    let at = file.len();
    if how.is_wide {
        let places = longs(&[n, n, n_directory, start]);
        file.extend([b"PK\x06\x06", longs(&[44]).as_slice(), &[45, 0, 45, 0], &[0; 8], &places].concat());
        file.extend([b"PK\x06\x07\0\0\0\0", longs(&[at]).as_slice(), &[1, 0, 0, 0]].concat());
    }
    let n = if how.is_wide { u16::MAX } else { n as u16 }.to_le_bytes();
    file.extend(
        [b"PK\x05\x06\0\0\0\0", n.as_slice(), &n, &narrow(n_directory, how), &narrow(start, how), &[0; 2]].concat(),
    );
}

fn narrow(value: usize, how: How) -> [u8; 4] {
    if how.is_wide { u32::MAX } else { value as u32 }.to_le_bytes()
}

/// Builds the extra field with 64-bit values.
fn wide(values: &[usize], how: How) -> Vec<u8> {
    if !how.is_wide {
        return Vec::new();
    }
    let head = [1_u16.to_le_bytes(), (8 * values.len() as u16).to_le_bytes()].concat();
    head.into_iter().chain(values.iter().flat_map(|&value| (value as u64).to_le_bytes())).collect()
}

/// Deflates bytes as one stored block.
fn deflate(bytes: &[u8]) -> Vec<u8> {
    let n = u16::try_from(bytes.len()).unwrap();
    [&[1], n.to_le_bytes().as_slice(), &(!n).to_le_bytes(), bytes].concat()
}

/// Computes the CRC-32.
pub fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), step))
}

/// Builds a pickle of one dictionary with these items.
pub fn dict(items: &[u8]) -> Vec<u8> {
    [b"\x80\x02}(", items, b"u."].concat()
}

/// Encodes the key of an item.
pub fn key(name: &str) -> Vec<u8> {
    [b"X", (name.len() as u32).to_le_bytes().as_slice(), name.as_bytes()].concat()
}

/// Encodes a view of storage 0, which has two f32; `view` has the opcodes for first element, shape and strides.
pub fn tensor(view: &[u8]) -> Vec<u8> {
    let storage = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ";
    [storage, view, b"\x89ccollections\nOrderedDict\n)RtR"].concat()
}

/// Encodes a key and a tensor of two f32 in storage 0, with an offset and a stride.
pub fn item(name: &str, offset: u8, step: u8) -> Vec<u8> {
    [key(name), tensor(&[b'K', offset, b'K', 2, 0x85, b'K', step, 0x85])].concat()
}
