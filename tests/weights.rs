//! Helpers that write models from literal values and read the values of models.

use briquette::core::DType;
use briquette::formats::{Checkpoint, InputFile, TensorInfo, TensorSource, safetensors};
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    /// Creates a tensor of f32.
    pub(crate) fn f32(name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(bytes.len(), 4 * shape.iter().product::<usize>(), "{name}");
        Self { name: name.into(), dtype: DType::F32, shape: shape.to_vec(), bytes }
    }

    /// Creates a tensor of f32 with values between -1 and 1 from a seed.
    pub(crate) fn random(name: &str, shape: &[usize], seed: u64) -> Self {
        let mut random = Random(seed);
        Self::f32(name, shape, (0..shape.iter().product()).map(|_| random.next_float()))
    }

    /// Returns the values of a tensor of f32.
    pub(crate) fn floats(&self) -> Vec<f32> {
        assert_eq!(self.dtype, DType::F32, "{}", self.name);
        self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// Returns the bytes of a safetensors file.
pub(crate) fn safetensors_of(tensors: &[Tensor]) -> Vec<u8> {
    let infos: Vec<TensorInfo> = tensors
        .iter()
        .map(|tensor| TensorInfo::checked(tensor.name.clone(), tensor.dtype, tensor.shape.clone()).unwrap())
        .collect();
    let (mut file, _) = safetensors::write_header(&infos, &BTreeMap::new());
    tensors.iter().for_each(|tensor| file.extend(&tensor.bytes));
    file
}

/// Returns the decoded tensors of any model, by name.
pub(crate) fn tensors_of(path: &Path) -> BTreeMap<String, Tensor> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let read = |(index, info): (usize, &TensorInfo)| {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes).unwrap();
        let tensor = Tensor { name: info.name.to_string(), dtype: info.dtype, shape: info.shape.0.clone(), bytes };
        (info.name.to_string(), tensor)
    };
    checkpoint.tensors().iter().enumerate().map(read).collect()
}

/// Returns the tensors of a safetensors file as stored, such as codes and scales.
pub(crate) fn stored_tensors_of(path: &Path) -> BTreeMap<String, Tensor> {
    let file = InputFile::open(path).unwrap();
    let read = |(info, start): (TensorInfo, u64)| {
        let mut bytes = vec![0; info.n_bytes()];
        file.read_at(start, &mut bytes).unwrap();
        (
            info.name.to_string(),
            Tensor { name: info.name.to_string(), dtype: info.dtype, shape: info.shape.0.clone(), bytes },
        )
    };
    safetensors::FileHeader::read(&file).unwrap().tensors.into_iter().map(read).collect()
}

/// A small network with a tensor of every role; its rows are multiples of 32.
pub(crate) fn tiny() -> Vec<Tensor> {
    let mut norm = Tensor::random("norm.weight", &[64], 4);
    norm.dtype = DType::BF16;
    norm.shape = vec![128];
    vec![
        Tensor::random("embed.weight", &[12, 32], 1),
        Tensor::random("up.weight", &[16, 32], 2),
        Tensor::random("up.bias", &[16], 3),
        norm,
        Tensor { name: "steps".into(), dtype: DType::I64, shape: vec![], bytes: vec![7, 0, 0, 0, 0, 0, 0, 0] },
    ]
}

/// A xorshift64* generator: the same numbers everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.max(1);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns the next number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Returns the next number from -1 to 1.
    pub(crate) fn next_float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
