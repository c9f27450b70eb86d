//! Lists the tensors of a model.

use crate::report::numbers::bytes;
use briquette_core::Role;
use briquette_core::{DType, Result, Storage};
use briquette_formats::{Checkpoint, Choice, Compressed, LeftOut, TensorInfo, TensorSource};
use briquette_recipe::plan::role::RoleContext;
use briquette_recipe::plan::topology::Topology;
use briquette_writer::context::{RunOptions, Workers};
use briquette_writer::decode::count_zeros;
use briquette_writer::known::Known;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::path::Path;

/// Bytes to scan at a time.
const PIECE: usize = 4 << 20;

/// A model, tensor by tensor.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// The path.
    pub path: String,
    /// The format.
    pub format: String,
    /// Existing compression: "none", "pruned" or "quantized".
    pub compressed: &'static str,
    /// Bytes of the weight files.
    pub file_bytes: u64,
    /// Bytes of the decoded tensors.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_elements: u64,
    /// Entries of the files that are not part of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutInspection>,
    /// Prefixes of the file's tensor names that were removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stripped_prefixes: Vec<String>,
    /// Other files that are copied to an output.
    pub companions: Vec<String>,
    /// The evidence for the roles.
    pub roles: RoleEvidence,
    /// The tensors.
    pub tensors: TensorInspections,
}

/// The evidence for the roles of a model: the graph of its network, or names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoleEvidence {
    /// "graph" or "names".
    pub from: &'static str,
    /// The family of the graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The reason why there is no graph, although a family fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Number of weights whose names decide.
    pub n_by_name: usize,
}

/// The tensors of a model, built on demand because there may be millions.
#[derive(Debug)]
pub struct TensorInspections {
    checkpoint: Checkpoint,
    known: Vec<Known>,
    zeros: Option<Vec<u64>>,
}

/// An entry of a file that is not part of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftOutInspection {
    /// The key.
    pub key: String,
    /// Bytes of its tensors.
    pub n_bytes: u64,
    /// Whether the key can be selected as the model.
    pub is_model: bool,
    /// Whether it is a weight of the model that is not read.
    pub is_unread: bool,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorInspection<'a> {
    /// The name.
    pub name: &'a str,
    /// The role that `plan` uses.
    pub role: Role,
    /// The evidence for the role.
    pub why: &'static str,
    /// The type.
    pub dtype: DType,
    /// The shape.
    pub shape: &'a [usize],
    /// Decoded size in bytes.
    pub n_bytes: u64,
    /// How it is stored.
    pub encoding: Cow<'static, str>,
    /// Number of zeros, if they were counted.
    pub n_zeros: Option<u64>,
}

/// Inspects a model: only the headers, or with `count_zeros` every element.
///
/// `choice` selects the entry of a file that is the model.
///
/// # Errors
/// - Config: `choice` does not fit.
/// - Input: the model is invalid.
/// - Io: the model cannot be read.
/// - Interrupted: the run was stopped.
pub fn inspect(path: &Path, choice: &Choice, count_zeros: bool, options: &RunOptions) -> Result<Inspection> {
    let checkpoint = Checkpoint::open_as(path, choice)?;
    choice.check_used(&[&checkpoint])?;
    let zeros = if count_zeros { Some(zeros_of(&checkpoint, options)?) } else { None };
    let topology = Topology::of(&checkpoint, checkpoint.layout())?;
    let roles = RoleContext::of_model(&checkpoint, &topology, checkpoint.layout(), &[])?;
    let evidence = RoleEvidence::of(topology, checkpoint.tensors(), &roles);
    let known = checkpoint.tensors().iter().map(|info| roles.of(info)).collect();
    Ok(Inspection {
        path: path.display().to_string(),
        format: checkpoint.format().to_string(),
        compressed: match checkpoint.compressed() {
            Compressed::No => "none",
            Compressed::Pruned => "pruned",
            Compressed::Quantized => "quantized",
        },
        file_bytes: checkpoint.weight_bytes(),
        tensor_bytes: checkpoint.tensors().iter().map(|info| info.n_bytes() as u64).sum(),
        n_elements: checkpoint.tensors().iter().map(|info| info.n_elements() as u64).sum(),
        left_out: checkpoint.left_out().iter().map(LeftOutInspection::of).collect(),
        stripped_prefixes: checkpoint.stripped_prefixes().to_vec(),
        companions: checkpoint.companions().iter().map(|path| path.display().to_string()).collect(),
        roles: evidence,
        tensors: TensorInspections { checkpoint, known, zeros },
    })
}

impl RoleEvidence {
    fn of(topology: Topology, tensors: &[TensorInfo], roles: &RoleContext) -> Self {
        let is_by_name = |info: &&TensorInfo| info.dtype.is_weight() && !roles.is_by_graph(info);
        let n_by_name = tensors.iter().filter(is_by_name).count();
        match topology {
            Topology::Graph(graph) => Self { from: "graph", family: Some(graph.family), why: None, n_by_name },
            Topology::Names(why) => Self { from: "names", family: None, why, n_by_name },
        }
    }

    /// Returns the evidence as a line.
    pub fn words(&self) -> String {
        match (&self.family, &self.why) {
            (Some(family), _) if self.n_by_name == 0 => format!("roles: from the graph of family {family}"),
            (Some(family), _) => {
                format!("roles: from the graph of family {family}; {} from names", self.n_by_name)
            }
            (None, Some(why)) => format!("roles: from names, because there is no graph: {why}"),
            (None, None) => "roles: from names".into(),
        }
    }
}

impl LeftOutInspection {
    fn of(left: &LeftOut) -> Self {
        Self { key: left.key.clone(), n_bytes: left.n_bytes, is_model: left.is_model, is_unread: left.is_unread }
    }
}

impl Inspection {
    /// Returns sentences about other entries of the files, and removed prefixes.
    pub fn notes(&self) -> Vec<String> {
        notes(&self.left_out, &self.stripped_prefixes)
    }
}

/// Returns the same sentences for an open model.
pub fn notes_of(checkpoint: &Checkpoint) -> Vec<String> {
    let left: Vec<LeftOutInspection> = checkpoint.left_out().iter().map(LeftOutInspection::of).collect();
    notes(&left, checkpoint.stripped_prefixes())
}

fn notes(left_out: &[LeftOutInspection], prefixes: &[String]) -> Vec<String> {
    let note = |left: &LeftOutInspection| {
        // A key from a file may contain any characters.
        let key = left.key.escape_debug();
        if left.is_unread {
            let n_bytes = bytes(left.n_bytes);
            return format!(
                "{key}, {n_bytes}: a weight that is not read, because it is stored as integers; save it as raw data."
            );
        }
        let hint = match left.is_model {
            true => format!("; key = {:?} selects it instead", left.key),
            false => String::new(),
        };
        format!("{key}, {}: skipped, not part of the model{hint}.", bytes(left.n_bytes))
    };
    let mut notes: Vec<String> = left_out.iter().map(note).collect();
    if !prefixes.is_empty() {
        let prefix = prefixes.concat();
        notes.push(format!("The prefix {prefix:?} is removed from tensor names."));
    }
    notes
}

impl TensorInspections {
    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.checkpoint.tensors().len()
    }

    /// Returns whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name of the tensor at `index`, in the order of the model.
    ///
    /// # Panics
    /// `index` is out of range.
    pub fn name(&self, index: usize) -> &str {
        &self.checkpoint.tensors()[index].name
    }

    /// Returns the tensor at `index`, in the order of the model.
    ///
    /// # Panics
    /// `index` is out of range.
    pub fn get(&self, index: usize) -> TensorInspection<'_> {
        let info = &self.checkpoint.tensors()[index];
        TensorInspection {
            name: &info.name,
            role: self.known[index].role,
            why: self.known[index].why.words(),
            dtype: info.dtype,
            shape: &info.shape.0,
            n_bytes: info.n_bytes() as u64,
            encoding: encoding_of(&self.checkpoint, index),
            n_zeros: self.zeros.as_ref().map(|zeros| zeros[index]),
        }
    }

    /// Returns all tensors, in the order of the model.
    pub fn iter(&self) -> impl Iterator<Item = TensorInspection<'_>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

impl Serialize for TensorInspections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

fn encoding_of(checkpoint: &Checkpoint, index: usize) -> Cow<'static, str> {
    let Some(stored) = checkpoint.stored() else { return "dense".into() };
    let coding = stored.tensors[index].coding;
    let values = coding.codes.map_or("dense".to_string(), |codes| format!("int{} {}", codes.bits, codes.grouping));
    match coding.storage {
        Storage::Dense => values.into(),
        Storage::Bitmask => format!("{values}, bitmask").into(),
        Storage::Entropy { has_trellis: false, .. } => format!("{values}, entropy-coded").into(),
        Storage::Entropy { has_trellis: true, .. } => format!("{values} on a trellis, entropy-coded").into(),
    }
}

fn zeros_of(checkpoint: &Checkpoint, options: &RunOptions) -> Result<Vec<u64>> {
    let workers = Workers::new(options)?;
    let indices: Vec<usize> = (0..checkpoint.tensors().len()).collect();
    workers.begin("count zeros", checkpoint.tensors().iter().map(|info| info.n_bytes()).sum());
    let zeros = workers.map(&indices, Vec::new, |bytes, &index| {
        let info = &checkpoint.tensors()[index];
        let width = (info.dtype.n_bits() / 8).max(1);
        let piece = if checkpoint.reads_ranges(index) { PIECE } else { info.n_bytes().max(1) };
        let mut n_zeros = 0;
        for start in (0..info.n_bytes()).step_by(piece) {
            bytes.resize(piece.min(info.n_bytes() - start), 0);
            checkpoint.read(index, start, bytes)?;
            let n = match info.dtype.is_weight() {
                true => count_zeros(bytes, width),
                false => bytes.chunks_exact(width).filter(|element| element.iter().all(|&byte| byte == 0)).count(),
            };
            n_zeros += n as u64;
            workers.advance(bytes.len());
            workers.check_stop()?;
        }
        Ok(n_zeros)
    })?;
    checkpoint.check_unchanged()?;
    Ok(zeros)
}
