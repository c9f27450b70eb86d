//! Fuzzes safetensors headers: two bytes for the number of data bytes, then the JSON.
#![no_main]

use briquette::formats::TensorInfo;
use briquette::formats::safetensors::{FileHeader, write_header};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((n_data, json)) = input.split_first_chunk::<2>() else { return };
    let n_data = u64::from(u16::from_le_bytes(*n_data));
    let Ok(header) = FileHeader::parse(json, n_data) else { return };
    let infos: Vec<TensorInfo> = header.tensors.iter().map(|(info, _)| info.clone()).collect();
    assert_eq!(infos.iter().map(|info| info.n_bytes() as u64).sum::<u64>(), n_data);
    let (bytes, starts) = write_header(&infos, &header.metadata);
    let again = FileHeader::parse(&bytes[8..], n_data).expect("a written header can be read");
    assert_eq!((again.tensors.len(), again.metadata), (infos.len(), header.metadata));
    for (info, start) in infos.into_iter().zip(starts) {
        assert!(again.tensors.contains(&(info, start)));
    }
});
