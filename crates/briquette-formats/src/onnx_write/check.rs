//! Reads a written model again: structure, sizes and hashes.

use super::encode::HASHES;
use super::model::OnnxType;
use super::walk::{FieldValue, WireFields};
use super::write::DATA_FILE;
use crate::io::contained;
use crate::{InputFile, limits, sums};
use briquette_core::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// The longest name of a value or tensor.
const MAX_NAME: u64 = 1 << 16;
const BUFFER: u64 = 1 << 20;

/// The contents of a model that passed the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedOnnx {
    /// Number of operations.
    pub n_nodes: usize,
    /// Number of constants.
    pub n_tensors: usize,
    /// Bytes of all constants.
    pub n_bytes: u64,
}

/// Reads a model that this program wrote, and checks it.
///
/// Every input of an operation must be an input of the model, a constant, or computed before. Every constant must have the bytes of
/// its type and shape, and streamed constants their SHA-256.
///
/// # Errors
/// - Input: the model is damaged. The message names the tensor or value.
/// - Io: a file cannot be read.
pub fn check_onnx(directory: &Path, name: &str, check_stop: &dyn Fn() -> Result<()>) -> Result<CheckedOnnx> {
    let file = contained::open(directory, Path::new(name))?;
    let mut fields = WireFields::new(&file, 0..file.len());
    let (mut graph, mut hashes) = (None, BTreeMap::new());
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (7, FieldValue::Bytes(place)) => graph = Some(place),
            (14, FieldValue::Bytes(place)) => {
                let [key, value] = pair(&file, &place)?;
                if key == HASHES {
                    hashes =
                        serde_json::from_str(&value).map_err(|error| damaged(&file, &format!("{HASHES}: {error}")))?;
                }
            }
            _ => {}
        }
    }
    let graph = graph.ok_or_else(|| damaged(&file, "found no graph"))?;
    let mut check = GraphCheck { directory, file: &file, hashes, data: None, known: BTreeSet::new(), check_stop };
    check.graph(graph)
}

fn damaged(file: &InputFile, what: &str) -> Error {
    Error::input(format!("{what}; the file is damaged, write it again")).at(file.path().display())
}

/// Reads a key and its value.
fn pair(file: &InputFile, place: &Range<u64>) -> Result<[String; 2]> {
    let (mut fields, mut found) = (WireFields::new(file, place.clone()), [String::new(), String::new()]);
    while let Some((field, value)) = fields.next()? {
        if let (1 | 2, FieldValue::Bytes(place)) = (field, value) {
            found[field as usize - 1] = fields.text(&place, limits::MAX_JSON_BYTES)?;
        }
    }
    Ok(found)
}

/// A tensor as its message declares it.
#[derive(Default)]
struct DeclaredTensor {
    name: String,
    number: i64,
    shape: Vec<u64>,
    raw: Option<Range<u64>>,
    /// Whether its elements are in a field of numbers, as only tensors of another file have.
    has_numbers: bool,
    external: BTreeMap<String, String>,
}

struct GraphCheck<'a> {
    directory: &'a Path,
    file: &'a InputFile,
    hashes: BTreeMap<String, String>,
    /// The second file, once a tensor needed it.
    data: Option<InputFile>,
    /// Names that operations may use so far.
    known: BTreeSet<String>,
    check_stop: &'a dyn Fn() -> Result<()>,
}

impl GraphCheck<'_> {
    fn graph(&mut self, place: Range<u64>) -> Result<CheckedOnnx> {
        let (mut nodes, mut outputs) = (Vec::new(), Vec::new());
        let mut found = CheckedOnnx { n_nodes: 0, n_tensors: 0, n_bytes: 0 };
        let mut fields = WireFields::new(self.file, place);
        while let Some((field, value)) = fields.next()? {
            let FieldValue::Bytes(place) = value else { continue };
            match field {
                1 => nodes.push(place),
                5 => {
                    found.n_tensors += 1;
                    found.n_bytes += self.tensor(place)?;
                }
                11 => {
                    let name = self.first_text(place)?;
                    self.learn(name)?;
                }
                12 => outputs.push(self.first_text(place)?),
                _ => {}
            }
        }
        found.n_nodes = nodes.len();
        nodes.into_iter().try_for_each(|node| self.node(node))?;
        if let Some(name) = self.hashes.keys().find(|name| !self.known.contains(*name)) {
            return Err(damaged(self.file, &format!("the tensor {name:?} is missing")));
        }
        match outputs.iter().find(|name| !self.known.contains(*name)) {
            Some(name) => Err(damaged(self.file, &format!("no operation computes the output {name:?}"))),
            None => Ok(found),
        }
    }

    fn learn(&mut self, name: String) -> Result<()> {
        match self.known.contains(&name) {
            true => Err(damaged(self.file, &format!("{name:?} has two values"))),
            false => {
                self.known.insert(name);
                Ok(())
            }
        }
    }

    fn first_text(&self, place: Range<u64>) -> Result<String> {
        let mut fields = WireFields::new(self.file, place);
        while let Some((field, value)) = fields.next()? {
            if let (1, FieldValue::Bytes(place)) = (field, value) {
                return fields.text(&place, MAX_NAME);
            }
        }
        Err(damaged(self.file, "found an input or output without a name"))
    }

    fn node(&mut self, place: Range<u64>) -> Result<()> {
        let mut fields = WireFields::new(self.file, place);
        let mut outputs = Vec::new();
        while let Some((field, value)) = fields.next()? {
            let (1 | 2, FieldValue::Bytes(place)) = (field, value) else { continue };
            let name = fields.text(&place, MAX_NAME)?;
            if field == 2 {
                outputs.push(name);
            } else if !name.is_empty() && !self.known.contains(&name) {
                return Err(damaged(self.file, &format!("an operation uses {name:?}, which no earlier one computes")));
            }
        }
        outputs.into_iter().try_for_each(|name| self.learn(name))
    }

    /// Checks a tensor and returns its size in bytes.
    fn tensor(&mut self, place: Range<u64>) -> Result<u64> {
        (self.check_stop)()?;
        let tensor = self.declared(place)?;
        if tensor.has_numbers {
            self.learn(tensor.name)?;
            return Ok(0);
        }
        let dtype = OnnxType::numbered(tensor.number);
        if dtype.is_none() && !self.hashes.contains_key(&tensor.name) {
            let n_bytes = tensor.raw.as_ref().map_or(0, |raw| raw.end - raw.start);
            self.learn(tensor.name)?;
            return Ok(n_bytes);
        }
        let width = dtype.map(OnnxType::n_bits);
        let n_bits = tensor.shape.iter().try_fold(width.unwrap_or(0), |n, &extent| n.checked_mul(extent));
        let n_bytes = n_bits.map(|n| n.div_ceil(8));
        let raw = match &tensor.raw {
            Some(raw) => raw.clone(),
            None if n_bytes == Some(0) && tensor.external.is_empty() => 0..0,
            None => self.external(&tensor)?,
        };
        if width.is_none() || n_bytes != Some(raw.end - raw.start) {
            let (number, shape) = (tensor.number, &tensor.shape);
            let what = format!("found {} bytes for type {number} and shape {shape:?}", raw.end - raw.start);
            return Err(damaged(self.file, &format!("tensor {:?}: {what}", tensor.name)));
        }
        if let Some(expected) = self.hashes.get(&tensor.name) {
            let file = if tensor.raw.is_some() { Some(self.file) } else { self.data.as_ref() };
            let found = sha256_at(file.unwrap_or(self.file), &raw, self.check_stop)?;
            if found != *expected {
                return Err(sums::differs(&found, expected).at(format_args!("tensor {:?}", tensor.name)));
            }
        }
        self.learn(tensor.name)?;
        Ok(raw.end - raw.start)
    }

    fn declared(&self, place: Range<u64>) -> Result<DeclaredTensor> {
        let (mut fields, mut tensor) = (WireFields::new(self.file, place), DeclaredTensor::default());
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, FieldValue::Int(extent)) => tensor.shape.push(extent),
                (2, FieldValue::Int(number)) => tensor.number = i64::try_from(number).unwrap_or(0),
                (8, FieldValue::Bytes(place)) => tensor.name = fields.text(&place, MAX_NAME)?,
                (9, FieldValue::Bytes(place)) => tensor.raw = Some(place),
                (4..=7 | 10 | 11, _) => tensor.has_numbers = true,
                (13, FieldValue::Bytes(place)) => {
                    let [key, value] = pair(self.file, &place)?;
                    tensor.external.insert(key, value);
                }
                _ => {}
            }
        }
        Ok(tensor)
    }

    /// The place of a tensor in the second file, which is opened once.
    fn external(&mut self, tensor: &DeclaredTensor) -> Result<Range<u64>> {
        let number = |key: &str| tensor.external.get(key).and_then(|text| text.parse::<u64>().ok());
        let is_ours = tensor.external.get("location").is_some_and(|name| name == DATA_FILE);
        let (Some(offset), Some(length), true) = (number("offset"), number("length"), is_ours) else {
            return Err(damaged(self.file, &format!("tensor {:?} has no bytes", tensor.name)));
        };
        if self.data.is_none() {
            self.data = Some(contained::open(self.directory, Path::new(DATA_FILE))?);
        }
        let n_bytes = self.data.as_ref().map_or(0, InputFile::len);
        match offset.checked_add(length).filter(|end| *end <= n_bytes) {
            Some(end) => Ok(offset..end),
            None => Err(damaged(self.file, &format!("tensor {:?} passes the end of {DATA_FILE}", tensor.name))),
        }
    }
}

fn sha256_at(file: &InputFile, place: &Range<u64>, check_stop: &dyn Fn() -> Result<()>) -> Result<String> {
    let (mut hasher, mut buffer) = (sums::Hasher::default(), Vec::new());
    let mut start = place.start;
    while start < place.end {
        check_stop()?;
        buffer.resize((place.end - start).min(BUFFER) as usize, 0);
        file.read_at(start, &mut buffer)?;
        hasher.update(&buffer);
        start += buffer.len() as u64;
    }
    Ok(hasher.finish())
}
