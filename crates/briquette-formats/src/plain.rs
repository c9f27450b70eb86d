//! Checkpoints with plain tensors: safetensors, PyTorch, burnpack and ONNX, in one file or many.

mod by_name;

#[cfg(feature = "pytorch")]
use crate::pytorch::TensorPlace;
use crate::sniff::FileKind;
use crate::tensor::{self, TensorInfo, TensorSource};
use crate::{Choice, InputFile, LeftOut, burnpack, name_prefix, onnx, safetensors};
use briquette_core::{Error, Result};
pub use by_name::{FoundTensor, TensorsByName};
use std::collections::BTreeMap;

/// Tensors at known offsets of open files.
#[derive(Debug, Default)]
pub struct PlainFiles {
    files: Vec<InputFile>,
    infos: Vec<TensorInfo>,
    /// The offset of each tensor in its file; 0 if it is gathered.
    offsets: Vec<u64>,
    /// Tensors that are gathered on each read, by index.
    #[cfg(feature = "pytorch")]
    gathered: BTreeMap<usize, Box<crate::pytorch::Gathered>>,
    /// The index of the first tensor of each file. There may be millions of tensors, but few files.
    firsts: Vec<usize>,
    n_bytes: u64,
    left_out: Vec<LeftOut>,
    stripped: Vec<String>,
    transposed: Vec<String>,
    /// Free-form strings of the headers. For equal keys, the first file has priority.
    pub metadata: BTreeMap<String, String>,
}

impl PlainFiles {
    /// Reads the header of one more file. Returns its tensors.
    ///
    /// # Errors
    /// - Input: the file is damaged.
    /// - Config: the file does not have the chosen key.
    pub fn push(&mut self, file: InputFile, kind: FileKind, choice: &Choice) -> Result<&[TensorInfo]> {
        let before = self.infos.len();
        if kind == FileKind::Onnx {
            self.push_onnx(file)?;
            return Ok(&self.infos[before..]);
        }
        self.firsts.push(before);
        let n_bytes = file.len();
        let file = match kind {
            FileKind::Burnpack => self.push_header(burnpack::read_header(&file)?, file),
            FileKind::Safetensors => self.push_header(safetensors::FileHeader::read(&file)?, file),
            FileKind::PyTorch => self.push_pytorch(file, choice)?,
            FileKind::Onnx => return Err(Error::bug("an ONNX model has several files")),
        };
        if kind != FileKind::PyTorch {
            self.n_bytes += n_bytes;
        }
        self.files.push(file);
        Ok(&self.infos[before..])
    }

    /// Adds a model and the files with its external data.
    fn push_onnx(&mut self, file: InputFile) -> Result<()> {
        let (files, left_out) = onnx::tensors_of(file)?;
        self.left_out.extend(left_out);
        for (header, file) in files {
            self.firsts.push(self.infos.len());
            self.n_bytes += file.len();
            let file = self.push_header(header, file);
            self.files.push(file);
        }
        Ok(())
    }

    #[cfg(feature = "pytorch")]
    fn push_pytorch(&mut self, file: InputFile, choice: &Choice) -> Result<InputFile> {
        let (file, found) = crate::pytorch::read(file, choice.key.as_deref())?;
        for (info, place) in found.tensors {
            self.offsets.push(match place {
                TensorPlace::At(offset) => offset,
                TensorPlace::Gathered(tensor) => {
                    self.gathered.insert(self.infos.len(), tensor);
                    0
                }
            });
            self.infos.push(info);
        }
        self.left_out.extend(found.left_out);
        self.transposed.extend(found.transposed_layers);
        // Other contents of the file are not part of the model.
        self.n_bytes += found.n_bytes;
        Ok(file)
    }

    #[cfg(not(feature = "pytorch"))]
    fn push_pytorch(&mut self, file: InputFile, _choice: &Choice) -> Result<InputFile> {
        Err(Error::lacks_feature("pytorch", "read PyTorch files").at(file.path().display()))
    }

    fn push_header(&mut self, header: safetensors::FileHeader, file: InputFile) -> InputFile {
        self.infos.reserve(header.tensors.len());
        self.offsets.reserve(header.tensors.len());
        for (info, offset) in header.tensors {
            self.offsets.push(offset);
            self.infos.push(info);
        }
        for (key, value) in header.metadata {
            self.metadata.entry(key).or_insert(value);
        }
        file
    }

    /// Returns whether a tensor is gathered on each read.
    fn is_gathered(&self, _index: usize) -> bool {
        #[cfg(feature = "pytorch")]
        return self.gathered.contains_key(&_index);
        #[cfg(not(feature = "pytorch"))]
        false
    }

    /// Returns the index of the file of a tensor.
    fn file_of(&self, index: usize) -> usize {
        self.firsts.partition_point(|&first| first <= index).saturating_sub(1)
    }

    /// Removes prefixes from tensor names: the chosen prefix, or those of module wrappers in PyTorch files.
    ///
    /// # Errors
    /// - Config: no name has the chosen prefix.
    /// - Input: two names become equal.
    pub fn strip(&mut self, choice: &Choice, kind: FileKind) -> Result<()> {
        self.stripped = match choice.strip_prefix.as_deref() {
            Some("") => Vec::new(),
            Some(prefix) => name_prefix::strip(&mut self.infos, prefix, choice.is_for_one_of_two)?,
            None if kind == FileKind::PyTorch => name_prefix::unwrap(&mut self.infos),
            None => Vec::new(),
        };
        for prefix in &self.stripped {
            self.transposed.iter_mut().for_each(|layer| {
                if let Some(rest) = layer.strip_prefix(prefix.as_str()) {
                    *layer = rest.to_string();
                }
            });
        }
        match self.stripped.is_empty() {
            true => Ok(()),
            false => name_prefix::check_unique(&self.infos),
        }
    }

    /// Returns the size of the model in bytes.
    ///
    /// This is the size of its files, or of its tensors if a file holds more than the model.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the contents of the files that are not part of the model.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Returns the layers that are transposed convolutions by their class.
    pub fn transposed_layers(&self) -> &[String] {
        &self.transposed
    }

    /// Returns the prefixes removed from the names.
    pub fn stripped(&self) -> &[String] {
        &self.stripped
    }

    /// Refuses a name that occurs in two files. Repeated names within a file were refused when it was read.
    ///
    /// # Errors
    /// Input: a tensor is in two files. The error names both.
    pub fn check_unique(&self) -> Result<()> {
        if self.files.len() < 2 {
            return Ok(());
        }
        let Some((first, second)) = tensor::first_repeated(self.infos.len(), |index| &self.infos[index].name) else {
            return Ok(());
        };
        let path = |index: usize| self.files[self.file_of(index)].path().display();
        let message = format!("is in both {} and {}; remove one", path(first), path(second));
        Err(Error::input(message).at(format_args!("tensor {:?}", self.infos[first].name)))
    }

    /// Returns the files, in the order of the indices in [`by_name`](Self::by_name).
    pub fn into_files(self) -> Vec<InputFile> {
        self.files
    }
}

impl TensorSource for PlainFiles {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        assert!(start + out.len() <= self.infos[index].n_bytes(), "the range is inside the tensor");
        let file = &self.files[self.file_of(index)];
        #[cfg(feature = "pytorch")]
        if let Some(tensor) = self.gathered.get(&index) {
            let bytes = tensor.read(file)?;
            let found = bytes.get(start..start + out.len());
            out.copy_from_slice(found.ok_or_else(|| Error::bug("a gathered tensor is too short"))?);
            return Ok(());
        }
        file.read_at(self.offsets[index] + start as u64, out)
    }

    fn reads_ranges(&self, index: usize) -> bool {
        !self.is_gathered(index)
    }

    fn files(&self) -> Vec<&InputFile> {
        self.files.iter().collect()
    }
}
