//! The golden file of a family: inputs of a tiny random model, and the reference outputs.

#![allow(clippy::unwrap_used)]

use briquette_core::DType;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::graph_net::RunInputs;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arrays of a golden file as floats, with their shapes.
pub(crate) struct Golden(pub(crate) BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Golden {
    pub(crate) fn of(folder: &Path) -> Self {
        let file = Checkpoint::open(&folder.join("golden.safetensors")).unwrap();
        let one = |(index, info): (usize, &briquette_formats::TensorInfo)| {
            let mut bytes = vec![0; info.n_bytes()];
            file.read(index, 0, &mut bytes).unwrap();
            let words = || bytes.chunks_exact(4).map(|four| <[u8; 4]>::try_from(four).unwrap());
            let halves = || bytes.chunks_exact(2).map(|two| half::f16::from_le_bytes([two[0], two[1]]).to_f32());
            let values = match info.dtype {
                DType::F16 => halves().collect(),
                dtype if dtype.is_weight() => words().map(f32::from_le_bytes).collect(),
                _ => words().map(|four| i32::from_le_bytes(four) as f32).collect(),
            };
            (info.name.to_string(), (info.shape.0.clone(), values))
        };
        Self(file.tensors().iter().enumerate().map(one).collect())
    }

    pub(crate) fn floats<const D: usize>(&self, name: &str) -> Tensor<D> {
        let (shape, values) = &self.0[name];
        Tensor::from_data(TensorData::new(values.clone(), shape.clone()), &Device::flex())
    }

    pub(crate) fn ids(&self, name: &str) -> Option<Tensor<2, Int>> {
        let (shape, values) = self.0.get(name)?;
        let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        let shape = if shape.len() == 1 { vec![1, shape[0]] } else { shape.clone() };
        Some(Tensor::from_data(TensorData::new(values, shape), &Device::flex()))
    }

    /// The source and the target of an encoder-decoder.
    pub(crate) fn pair(&self) -> RunInputs {
        let source = match self.ids("ids") {
            Some(ids) => RunInputs::padded(ids, self.padding()),
            None => RunInputs::sounds(self.floats("features")),
        };
        source.with_target(self.ids("target").unwrap())
    }

    /// All inputs of a run.
    pub(crate) fn inputs(&self) -> RunInputs {
        if self.0.contains_key("target") {
            return self.pair();
        }
        let Some(ids) = self.ids("ids") else {
            return RunInputs::images(self.floats("images"));
        };
        let inputs = RunInputs::padded(ids, self.padding());
        match self.ids("types") {
            Some(types) => inputs.with_types(types),
            None => inputs,
        }
    }

    /// True at padding tokens.
    pub(crate) fn padding(&self) -> Tensor<2, Bool> {
        self.ids("mask").unwrap().equal_elem(0)
    }
}

/// Returns the folder of each family.
pub(crate) fn folders() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 30);
    folders
}
