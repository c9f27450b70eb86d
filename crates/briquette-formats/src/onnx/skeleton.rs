//! The tensors of a model with their places in its files. Everything else of the files can be copied.

use super::external;
use super::graph::{AttributeValue, Node};
use super::model::Model;
use super::tensor::{Tensor, TensorData};
use crate::safetensors::FileHeader;
use crate::{InputFile, LeftOut, TensorInfo, tensor};
use briquette_core::{DType, Error, Result};
use std::collections::BTreeMap;

/// The name of a rewritten model in an output directory.
pub const FILE_NAME: &str = "model.onnx";

/// The files of a model, and the places of its tensors.
#[derive(Debug)]
pub struct Skeleton {
    /// The model, then the files with external data.
    pub files: Vec<SkeletonFile>,
    /// The tensors with the index of their file and the offset of their first byte, in the order of files and offsets.
    pub tensors: Vec<(TensorInfo, usize, u64)>,
    /// Weights whose elements have no fixed length or place. They are not read.
    pub left_out: Vec<LeftOut>,
    /// Free-form strings of the model.
    pub metadata: BTreeMap<String, String>,
}

/// A file of a model.
#[derive(Debug)]
pub struct SkeletonFile {
    /// The path in an output directory: [`FILE_NAME`], or the path by which the model refers to the file.
    pub name: String,
    /// The file.
    pub input: InputFile,
}

impl Skeleton {
    /// Reads a model. Its tensors are the initializers of its graph, and its constants of rank 2 and more.
    ///
    /// Initializers with the same bytes of an external file are one tensor, with the first name.
    ///
    /// # Errors
    /// - Input: the model is damaged, or two initializers have one name.
    /// - Input: the data of a tensor has another size than its shape, overlaps another's, or is outside of the model's directory.
    /// - Io: a file cannot be read.
    pub fn read(file: InputFile) -> Result<Self> {
        let model = Model::read(&file)?;
        let path = file.path().display().to_string();
        let main = SkeletonFile { name: FILE_NAME.into(), input: file };
        let mut found = Self { files: vec![main], tensors: Vec::new(), left_out: Vec::new(), metadata: model.metadata };
        let tensors = &model.graph.initializers;
        let named = |index: usize| tensors.get(index).map_or("", |tensor| tensor.name.as_str());
        if let Some((first, _)) = tensor::first_repeated(tensors.len(), named) {
            let message = "is the name of two initializers; the file is damaged";
            return Err(Error::input(message).at(format_args!("tensor {:?}", named(first))).at(path));
        }
        let constants = model.graph.nodes.iter().filter_map(constant);
        for (name, tensor) in tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).chain(constants) {
            let placed = found.push(name, tensor).map_err(|error| error.at(format_args!("tensor {name:?}")));
            placed.map_err(|error| error.at(&path))?;
        }
        found.order().map_err(|error| error.at(&path))?;
        Ok(found)
    }

    /// Adds a tensor, if its elements have a fixed length and place.
    fn push(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        if name.is_empty() {
            return Err(Error::input("an initializer has no name; the file is damaged"));
        }
        let Some((dtype, shape)) = tensor.listed() else { return Ok(()) };
        let info = TensorInfo::checked(name.into(), dtype, shape)?;
        let n_bytes = info.n_bytes() as u64;
        let (file, span) = match &tensor.data {
            TensorData::Span(span) => (0, span.clone()),
            TensorData::Absent => (0, 0..0),
            TensorData::External { location, offset, length } => {
                let file = self.file(location)?;
                let length = length.unwrap_or(n_bytes);
                let end = offset
                    .checked_add(length)
                    .filter(|end| self.files.get(file).is_some_and(|file| *end <= file.input.len()));
                let short =
                    || Error::input(format!("its data is outside of {location:?}, which is cut short; copy it again"));
                (file, *offset..end.ok_or_else(short)?)
            }
            TensorData::Spans(_) | TensorData::Varints(_) if dtype.is_weight() => {
                self.left_out.push(LeftOut { key: name.into(), n_bytes, is_model: false, is_unread: true });
                return Ok(());
            }
            TensorData::Spans(_) | TensorData::Varints(_) | TensorData::Texts => return Ok(()),
        };
        if span.end - span.start != n_bytes {
            let found = span.end - span.start;
            let message =
                format!("found {found} bytes, expected {n_bytes} for {dtype} {}; the file is damaged", info.shape);
            return Err(Error::input(message));
        }
        self.tensors.push((info, file, span.start));
        Ok(())
    }

    /// Returns the index of a file with external data.
    fn file(&mut self, location: &str) -> Result<usize> {
        let name = external::plain_name(location);
        if let Some(known) = self.files.iter().skip(1).position(|file| file.name == name) {
            return Ok(known + 1);
        }
        let main = self.files.first().ok_or_else(|| Error::bug("a model without its own file"))?;
        let input = external::open(&main.input, location)?;
        self.files.push(SkeletonFile { name: name.into(), input });
        Ok(self.files.len() - 1)
    }

    /// Sorts tensors by place, joins those with the same bytes, and refuses those that overlap.
    fn order(&mut self) -> Result<()> {
        self.tensors.sort_by_key(|(info, file, start)| (*file, *start, info.n_bytes()));
        let (mut is_tied, mut end) = (vec![false; self.tensors.len()], (0, 0));
        for (at, pair) in self.tensors.windows(2).enumerate() {
            let [(before, file, start), (info, next_file, next)] = pair else { continue };
            end = end.max((*file, start + before.n_bytes() as u64));
            if (*next_file, *next) >= end || info.n_bytes() == 0 {
                continue;
            }
            if (file, start, before.dtype, &before.shape) != (next_file, next, info.dtype, &info.shape) {
                let message = format!("overlaps tensor {:?}; the file is damaged", before.name);
                return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
            }
            if let Some(is_tied) = is_tied.get_mut(at + 1) {
                *is_tied = true;
            }
        }
        let mut is_tied = is_tied.into_iter();
        self.tensors.retain(|_| !is_tied.next().unwrap_or(false));
        Ok(())
    }
}

/// Returns the tensor of a constant that counts as a weight, with the name of its value.
pub(super) fn constant(node: &Node) -> Option<(&str, &Tensor)> {
    if node.op_type != "Constant" || !node.domain.is_empty() {
        return None;
    }
    match (node.attribute("value")?, node.outputs.as_slice()) {
        (AttributeValue::Tensor(tensor), [name]) => {
            let is_weight = tensor.dtype().is_some_and(DType::is_weight) && tensor.shape.len() > 1;
            // A network beside an output has none of the elements.
            let has_place = matches!(tensor.data, TensorData::Span(_) | TensorData::Absent);
            (is_weight && has_place).then_some((name.as_str(), tensor))
        }
        _ => None,
    }
}

/// The files of a model with their tensors, and what was left out.
pub(crate) type ListedFiles = (Vec<(FileHeader, InputFile)>, Vec<LeftOut>);

/// Reads a model as a list of files with their tensors, and what was left out.
///
/// # Errors
/// See [`Skeleton::read`].
pub(crate) fn tensors_of(file: InputFile) -> Result<ListedFiles> {
    let Skeleton { files, tensors, left_out, metadata } = Skeleton::read(file)?;
    let header = |metadata| FileHeader { tensors: Vec::new(), metadata };
    let mut metadata = Some(metadata);
    let mut found: Vec<(FileHeader, InputFile)> =
        files.into_iter().map(|file| (header(metadata.take().unwrap_or_default()), file.input)).collect();
    for (info, file, start) in tensors {
        if let Some((header, _)) = found.get_mut(file) {
            header.tensors.push((info, start));
        }
    }
    Ok((found, left_out))
}
