//! Checkpoints whose tensors lie in files as they are: safetensors, PyTorch and burnpack, one file or many.

use crate::pytorch::{self, Place};
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
    places: Vec<(usize, Place)>,
    /// Free-form strings of the headers; of equal keys the first file's counts.
    pub metadata: BTreeMap<String, String>,
}

impl PlainFiles {
    /// Reads the header of one more file. Returns the names of its tensors.
    ///
    /// # Errors
    /// Input where the file is damaged, or has a tensor that an earlier one has too.
    pub fn push(&mut self, file: InputFile, kind: Kind) -> Result<Vec<String>> {
        let (found, metadata) = match kind {
            Kind::Burnpack => in_place(burnpack::read_header(&file)?),
            Kind::Safetensors => in_place(safetensors::Header::read(&file)?),
            Kind::PyTorch => (pytorch::read(&file)?, BTreeMap::new()),
        };
        let names: Vec<String> = found.iter().map(|(info, _)| info.name.clone()).collect();
        for (info, place) in found {
            self.places.push((self.files.len(), place));
            self.infos.push(info);
        }
        for (key, value) in metadata {
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

    /// Each tensor that lies in a file as it is, with its file's index and its offset there, by name.
    pub fn by_name(&self) -> BTreeMap<&str, (&TensorInfo, usize, u64)> {
        let mut found = BTreeMap::new();
        for (info, (file, place)) in self.infos.iter().zip(&self.places) {
            if let Place::At(offset) = place {
                found.insert(info.name.as_str(), (info, *file, *offset));
            }
        }
        found
    }

    /// Gives up the files, in the order of the indices in [`by_name`](Self::by_name).
    pub fn into_files(self) -> Vec<InputFile> {
        self.files
    }
}

type Found = (Vec<(TensorInfo, Place)>, BTreeMap<String, String>);

fn in_place(header: safetensors::Header) -> Found {
    let tensors = header.tensors.into_iter().map(|(info, offset)| (info, Place::At(offset)));
    (tensors.collect(), header.metadata)
}

impl TensorSource for PlainFiles {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        assert!(start + out.len() <= self.infos[index].n_bytes(), "bytes of the tensor");
        let (file, place) = &self.places[index];
        let file = &self.files[*file];
        match place {
            Place::At(offset) => file.read_at(offset + start as u64, out),
            Place::Gathered(tensor) => {
                let bytes = pytorch::gather(tensor, file)?;
                let found = bytes.get(start..start + out.len());
                out.copy_from_slice(found.ok_or_else(|| Error::bug("a gathered tensor is too short"))?);
                Ok(())
            }
        }
    }

    fn reads_ranges(&self, index: usize) -> bool {
        matches!(self.places[index].1, Place::At(_))
    }

    fn files(&self) -> Vec<&InputFile> {
        self.files.iter().collect()
    }
}
