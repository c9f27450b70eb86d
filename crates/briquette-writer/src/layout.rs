//! Computes all offsets of the output once the sizes are known, before anything is written.

mod in_place;
mod known;
mod order;
mod parts;
mod placed;

use crate::plan::Plan;
use briquette_core::{Coding, DType, Error, Result, Shape};
use briquette_formats::output_format::{Container, FilePart, HeaderStrings, WriteHeader};
use briquette_formats::safetensors::{Counted, HeaderJson};
use briquette_formats::{TensorInfo, TensorName, WeightLayout, limits, weight_layout};
use in_place::CopiedFile;
pub(crate) use known::FileHeaders;
use order::{Order, Record};
pub(crate) use parts::TensorParts;
use parts::{LastParts, PartSizes};
pub use placed::{PlacedTensor, PlacedTensors};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

/// The weight files of an output.
#[derive(Debug, Clone)]
pub struct FileLayouts {
    /// The files, in order.
    pub files: Vec<FileLayout>,
    /// The location of each tensor of the plan.
    pub tensors: PlacedTensors,
    /// The order of parts, until headers are written.
    order: Option<Order>,
}

/// One weight file.
#[derive(Debug, Clone)]
pub struct FileLayout {
    /// The file's name.
    pub name: String,
    /// Bytes of the file's header.
    pub n_header: u64,
    /// The size of the file in bytes, with its header.
    pub n_bytes: u64,
    /// Names of the parts in the file, for an index; empty if there is none.
    pub names: Vec<String>,
}

impl FileLayouts {
    /// Computes the layout of a plan from the number of kept elements of each tensor.
    ///
    /// # Errors
    /// - Config: the format does not support a tensor.
    /// - Input: two parts would have one name.
    pub fn new(plan: &Plan, n_kept: &[usize]) -> Result<Self> {
        Self::of_parts(plan, n_kept, &|tensor, coding, n_kept| tensor.file_parts(plan.profile, coding, n_kept))
    }

    /// Computes a layout in which `parts` returns the tensors of a file for a tensor of the plan: see
    /// [`new`](Self::new).
    pub(crate) fn of_parts(plan: &Plan, n_kept: &[usize], parts: TensorParts) -> Result<Self> {
        let sizes = PartSizes { plan, n_kept: &|index| n_kept[index], parts };
        let order = sizes.order()?;
        if plan.profile.is_in_place() {
            let (tensors, files) = in_place::layout(&sizes)?;
            let of_file = |CopiedFile { name, n_rest, n_bytes }| FileLayout {
                name,
                n_header: n_rest,
                n_bytes,
                names: Vec::new(),
            };
            return Ok(Self { files: files.into_iter().map(of_file).collect(), tensors, order: Some(order) });
        }
        let mut placed = sizes.unplaced(&order)?;
        let mut files = Vec::new();
        for (number, tensors) in order.files.iter().enumerate() {
            files.push(sizes.place(number, tensors, &order, &mut placed)?);
        }
        for (index, tensor) in plan.tensors.iter().enumerate() {
            if let Some(main) = tensor.tied_to() {
                placed.tie(index, main);
            }
        }
        Ok(Self { files, tensors: placed, order: Some(order) })
    }

    /// Returns the size of all files in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.n_bytes).sum()
    }

    /// Returns the [`n_bytes`](Self::n_bytes) of the layout, computed in little memory.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn n_bytes_of(plan: &Plan, n_kept: &dyn Fn(usize) -> usize) -> Result<u64> {
        let parts: TensorParts = &|tensor, coding, n_kept| tensor.file_parts(plan.profile, coding, n_kept);
        let sizes = PartSizes { plan, n_kept, parts };
        if plan.profile.is_in_place() {
            return in_place::n_bytes(&sizes);
        }
        let order = sizes.order()?;
        let of_file = |tensors: &Range<usize>| sizes.n_bytes(tensors, &order);
        order.files.iter().map(of_file).sum()
    }
}

/// A header written from a list of all tensors of a file, as some formats need.
struct ListedHeader {
    bytes: Vec<u8>,
    /// The start of the data of each of `infos`.
    starts: Vec<u64>,
    /// The tensors in the order of their data.
    infos: Vec<TensorInfo>,
}

impl PartSizes<'_> {
    fn order(&self) -> Result<Order> {
        Order::of(self.plan, &mut LastParts::of_none(self))
    }

    /// Calls `each` with every record of a file, sorted by name, with its data offset and its part.
    fn each_by_name(
        &self,
        tensors: &Range<usize>,
        order: &Order,
        mut each: impl FnMut(&Record, u64, &FilePart),
    ) -> Result<()> {
        let mut starts = order.starts(tensors);
        let mut parts = LastParts::of_none(self);
        for record in order.of_file(tensors) {
            each(record, starts.next(record), &parts.of(record.tensor as usize)?[usize::from(record.nth)]);
        }
        Ok(())
    }

    /// Writes the header of a safetensors file.
    fn header<W: Write>(
        &self,
        tensors: &Range<usize>,
        order: &Order,
        strings: HeaderStrings,
        out: W,
    ) -> Result<HeaderJson<'_, W>> {
        let coded = tensors.clone();
        let mut header = HeaderJson::new(out, move |each| match strings {
            HeaderStrings::OfModel => self.model_strings(each),
            HeaderStrings::Meanings => self.meanings(coded, each),
        });
        self.each_by_name(tensors, order, |_, start, part| header.tensor(&part.info, start))?;
        Ok(header)
    }

    /// Writes a header from a list of parts, sorted by element size, widest first, and then by name. So each is
    /// aligned.
    fn listed_header(&self, tensors: &Range<usize>, order: &Order, write: WriteHeader) -> Result<ListedHeader> {
        let mut infos: Vec<TensorInfo> = Vec::new();
        self.each_by_name(tensors, order, |_, _, part| infos.push(part.info.clone()))?;
        infos.sort_by_key(|info| std::cmp::Reverse(info.dtype.n_bits()));
        let (bytes, starts) = write(&infos, &self.plan.metadata, self.plan.layout)?;
        Ok(ListedHeader { bytes, starts, infos })
    }

    /// Returns the size of a file in bytes.
    fn n_bytes(&self, tensors: &Range<usize>, order: &Order) -> Result<u64> {
        match self.plan.profile.container() {
            Container::Listed(write) => {
                let ListedHeader { bytes, starts, infos } = self.listed_header(tensors, order, write)?;
                let ends = starts.iter().zip(&infos).map(|(start, info)| start + info.n_bytes() as u64);
                Ok(ends.max().unwrap_or(0).max(bytes.len() as u64))
            }
            Container::Safetensors(strings) => {
                let data: u64 = order.of_file(tensors).map(|record| record.n_bytes).sum();
                Ok(self.header(tensors, order, strings, Counted::default())?.n_bytes() + data)
            }
            Container::InPlace => in_place::n_bytes(self),
        }
    }

    /// Returns all tensors with their files, before their starts are known.
    fn unplaced(&self, order: &Order) -> Result<PlacedTensors> {
        let (mut placed, mut parts) = (PlacedTensors::with_capacity(self.plan.tensors.len()), LastParts::of_none(self));
        for (file, tensors) in order.files.iter().enumerate() {
            for index in tensors.clone() {
                let is_tied = self.plan.tensors[index].tied_to().is_some();
                let its = if is_tied { &[] } else { parts.of(index)? };
                placed.push(self.coding(index), (self.n_kept)(index), file, its);
            }
        }
        Ok(placed)
    }

    /// Computes the layout of a file.
    fn place(
        &self,
        number: usize,
        tensors: &Range<usize>,
        order: &Order,
        placed: &mut PlacedTensors,
    ) -> Result<FileLayout> {
        let (n_header, listed) = match self.plan.profile.container() {
            Container::Listed(write) => {
                let ListedHeader { bytes, starts, infos } = self.listed_header(tensors, order, write)?;
                let names = infos.into_iter().map(|info| info.name);
                (bytes.len() as u64, names.zip(starts).collect::<BTreeMap<TensorName, u64>>())
            }
            Container::Safetensors(strings) => {
                (self.header(tensors, order, strings, Counted::default())?.n_bytes(), BTreeMap::new())
            }
            Container::InPlace => return Err(Error::bug("tensors of an ONNX model have their places")),
        };
        let (mut names, mut n_bytes) = (Vec::new(), n_header);
        let has_names = order.files.len() > 1 && self.plan.profile.has_index();
        self.each_by_name(tensors, order, |record, start, part| {
            let start = listed.get(&part.info.name).copied().unwrap_or(n_header + start);
            placed.set_start(record.tensor as usize, record.nth.into(), start);
            names.extend(has_names.then(|| part.info.name.to_string()));
            n_bytes = n_bytes.max(start + record.n_bytes);
        })?;
        let name = self.plan.profile.file_name(number, order.files.len());
        Ok(FileLayout { name, n_header, n_bytes, names })
    }

    /// Passes the free-form strings of the model, and the one that transformers expects.
    fn model_strings(&self, each: &mut dyn FnMut(&str, &str)) {
        let mut metadata = self.plan.metadata.clone();
        metadata.entry("format".into()).or_insert_with(|| "pt".into());
        metadata.remove(weight_layout::KEY);
        if self.plan.layout == WeightLayout::Burn {
            metadata.insert(weight_layout::KEY.into(), self.plan.layout.name().into());
        }
        metadata.iter().for_each(|(key, value)| each(key, value));
    }

    /// Passes a marker that keeps transformers from loading the file, and the meaning of each coded tensor.
    ///
    /// So the file describes itself.
    fn meanings(&self, tensors: Range<usize>, each: &mut dyn FnMut(&str, &str)) {
        each("format", "briquette");
        let is_coded =
            |&index: &usize| self.plan.tensors[index].tied_to().is_none() && self.coding(index) != Coding::DENSE;
        let mut coded: Vec<usize> = tensors.filter(is_coded).collect();
        // A reader would refuse more strings, and the manifest has the same information.
        if coded.len() >= limits::MAX_METADATA {
            return;
        }
        coded.sort_unstable_by_key(|&index| self.plan.tensors[index].info.name.as_str());
        for index in coded {
            let tensor = &self.plan.tensors[index];
            let (dtype, shape, coding) = (tensor.stored_dtype(), &tensor.info.shape, self.coding(index));
            let meaning = serde_json::to_string(&Meaning { dtype, shape, coding }).unwrap_or_default();
            each(&format!("tensor {}", tensor.info.name), &meaning);
        }
    }
}

/// The meaning of a coded tensor's parts in a header.
#[derive(Serialize)]
struct Meaning<'a> {
    dtype: DType,
    shape: &'a Shape,
    coding: Coding,
}
