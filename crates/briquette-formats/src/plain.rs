//! Checkpoints whose tensors lie in files as they are: safetensors and burnpack, one file or many.

use crate::sniff::Kind;
use crate::tensor::{TensorInfo, TensorSource};
use crate::{InputFile, burnpack, safetensors};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// Tensors at known places in open files.
#[derive(Debug, Default)]
pub struct PlainFiles {
    files: Vec<InputFile>,
    infos: Vec<TensorInfo>,
    places: Vec<(usize, u64)>,
    /// Free-form strings of the headers; of equal keys the first file's counts.
    pub metadata: BTreeMap<String, String>,
}

impl PlainFiles {
    /// Reads the header of one more file. Returns the names of its tensors.
    ///
    /// # Errors
    /// Input where the file is damaged, or has a tensor that an earlier one has too.
    pub fn push(&mut self, file: InputFile, kind: Kind) -> Result<Vec<String>> {
        let header = match kind {
            Kind::Burnpack => burnpack::read_header(&file)?,
            Kind::Safetensors | Kind::PyTorch => safetensors::Header::read(&file)?,
        };
        let names: Vec<String> = header.tensors.iter().map(|(info, _)| info.name.clone()).collect();
        for (info, offset) in header.tensors {
            self.places.push((self.files.len(), offset));
            self.infos.push(info);
        }
        for (key, value) in header.metadata {
            self.metadata.entry(key).or_insert(value);
        }
        self.files.push(file);
        Ok(names)
    }

    /// Refuses a name that two files have.
    ///
    /// # Errors
    /// Input, naming the tensor and both files.
    pub fn check_unique(&self) -> Result<()> {
        let mut seen = BTreeMap::new();
        for (info, (file, _)) in self.infos.iter().zip(&self.places) {
            if let Some(other) = seen.insert(&info.name, *file) {
                let (a, b) = (self.files[other].path().display(), self.files[*file].path().display());
                return Err(Error::input(format!("is in both {a} and {b}; remove one"))
                    .at(format_args!("tensor {:?}", info.name)));
            }
        }
        Ok(())
    }

    /// Each tensor with its file's index and its offset there, by name.
    pub fn by_name(&self) -> BTreeMap<&str, (&TensorInfo, usize, u64)> {
        let places = self.infos.iter().zip(&self.places);
        places.map(|(info, (file, offset))| (info.name.as_str(), (info, *file, *offset))).collect()
    }

    /// Gives up the files, in the order of the indices in [`by_name`](Self::by_name).
    pub fn into_files(self) -> Vec<InputFile> {
        self.files
    }
}

impl TensorSource for PlainFiles {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        assert!(start + out.len() <= self.infos[index].n_bytes(), "bytes of the tensor");
        let (file, offset) = self.places[index];
        self.files[file].read_at(offset + start as u64, out)
    }

    fn reads_ranges(&self, _index: usize) -> bool {
        true
    }

    fn files(&self) -> Vec<&InputFile> {
        self.files.iter().collect()
    }
}
