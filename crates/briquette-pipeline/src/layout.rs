//! Where everything will lie in the output: decided once all sizes are known, before anything is written.

use crate::plan::{Plan, TensorPlan};
use crate::recipe::raw::RawLayout;
use briquette_core::encoded::Part;
use briquette_core::{Coding, DType, Error, Result, Shape};
use briquette_formats::foreign::Layout as ForeignLayout;
use briquette_formats::profile::FilePart;
use briquette_formats::{Profile, TensorInfo, burnpack, safetensors, weight_layout};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The weight files of an output.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The files, in order.
    pub files: Vec<FileLayout>,
    /// Where each tensor of the plan is; a tied one is where the other is.
    pub tensors: Vec<Placed>,
}

/// One weight file.
#[derive(Debug, Clone)]
pub struct FileLayout {
    /// Its name.
    pub name: String,
    /// Its first bytes.
    pub header: Vec<u8>,
    /// All of its bytes.
    pub n_bytes: u64,
    /// Parts whose bytes are known already.
    pub constants: Vec<(u64, Vec<u8>)>,
    /// Names of the tensors in it, parts counted one by one.
    pub names: Vec<String>,
}

/// Where a tensor is.
#[derive(Debug, Clone)]
pub struct Placed {
    /// How it is kept.
    pub coding: Coding,
    /// How many of its elements are.
    pub n_kept: usize,
    /// The index of its file.
    pub file: usize,
    /// Where each part starts, and how it is laid out where not as ours.
    pub parts: BTreeMap<Part, (u64, Option<ForeignLayout>)>,
}

struct Shard {
    parts: Vec<(usize, FilePart)>,
    n_bytes: u64,
}

impl Layout {
    /// Lays out the tensors of a plan, given how many elements of each are kept.
    ///
    /// # Errors
    /// Config where the profile cannot hold a tensor, Input where two parts would have one name.
    pub fn new(plan: &Plan, n_kept: &[usize]) -> Result<Self> {
        let codings: Vec<Coding> =
            plan.tensors.iter().zip(n_kept).map(|(tensor, &n)| tensor.coding(plan.profile, n)).collect();
        let shards = shards_of(plan, n_kept, &codings)?;
        let mut files = Vec::new();
        let mut placed: Vec<Placed> = codings
            .iter()
            .zip(n_kept)
            .map(|(&coding, &n_kept)| Placed { coding, n_kept, file: 0, parts: BTreeMap::new() })
            .collect();
        for (number, shard) in shards.iter().enumerate() {
            files.push(place(plan, number, shards.len(), shard, &mut placed)?);
        }
        for (index, tensor) in plan.tensors.iter().enumerate() {
            if let Some(main) = tensor.tied_to {
                placed[index] = placed[main].clone();
            }
        }
        Ok(Self { files, tensors: placed })
    }

    /// Bytes of all files.
    pub fn n_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.n_bytes).sum()
    }
}

fn shards_of(plan: &Plan, n_kept: &[usize], codings: &[Coding]) -> Result<Vec<Shard>> {
    let mut shards = vec![Shard { parts: Vec::new(), n_bytes: 0 }];
    let mut names = BTreeSet::new();
    for (index, tensor) in plan.tensors.iter().enumerate().filter(|(_, tensor)| tensor.tied_to.is_none()) {
        let parts = tensor.file_parts(plan.profile, codings[index], n_kept[index])?;
        for part in &parts {
            if !names.insert(part.info.name.clone()) {
                let message = format!(
                    "its part would be called {:?}, and another tensor is; exclude one of them",
                    part.info.name
                );
                return Err(Error::input(message).at(tensor.culprit()));
            }
        }
        let n_bytes = parts.iter().map(|part| part.info.n_bytes() as u64).sum::<u64>();
        let is_full = |shard: &Shard| !shard.parts.is_empty() && shard.n_bytes + n_bytes > plan.max_shard_bytes;
        if plan.profile.shards() && shards.last().is_some_and(is_full) {
            shards.push(Shard { parts: Vec::new(), n_bytes: 0 });
        }
        if let Some(shard) = shards.last_mut() {
            shard.n_bytes += n_bytes;
            shard.parts.extend(parts.into_iter().map(|part| (index, part)));
        }
    }
    Ok(shards)
}

/// Orders the parts of a file by the width of their elements, widest first, so that each is aligned, then by name.
fn place(plan: &Plan, number: usize, n_shards: usize, shard: &Shard, placed: &mut [Placed]) -> Result<FileLayout> {
    let mut parts: Vec<&(usize, FilePart)> = shard.parts.iter().collect();
    parts.sort_by(|(_, a), (_, b)| (b.info.dtype.n_bits(), &a.info.name).cmp(&(a.info.dtype.n_bits(), &b.info.name)));
    let infos: Vec<TensorInfo> = parts.iter().map(|(_, part)| part.info.clone()).collect();
    let (header, starts) = match plan.profile {
        Profile::Burnpack => {
            let mut metadata = plan.metadata.clone();
            // What other programs read of a safetensors file has no meaning here.
            metadata.remove("format");
            metadata.insert(weight_layout::KEY.into(), plan.layout.said().name().into());
            burnpack::write_header(&infos, &metadata)?
        }
        _ => safetensors::write_header(&infos, &metadata_of(plan, shard, placed)?),
    };
    let mut constants = Vec::new();
    let mut n_bytes = header.len() as u64;
    for ((index, part), start) in parts.iter().zip(starts) {
        placed[*index].file = number;
        if let Some(kind) = part.part {
            placed[*index].parts.insert(kind, (start, part.layout));
        }
        if let Some(bytes) = &part.constant {
            constants.push((start, bytes.clone()));
        }
        n_bytes = n_bytes.max(start + part.info.n_bytes() as u64);
    }
    let names = infos.into_iter().map(|info| info.name).collect();
    Ok(FileLayout { name: plan.profile.file_name(number, n_shards), header, n_bytes, constants, names })
}

/// What transformers looks for; or a word it will not take for its own, and what the parts of each tensor stand for, so
/// that the file explains itself.
fn metadata_of(plan: &Plan, shard: &Shard, placed: &[Placed]) -> Result<BTreeMap<String, String>> {
    if plan.profile != Profile::Briquette {
        let mut metadata = plan.metadata.clone();
        metadata.entry("format".into()).or_insert_with(|| "pt".into());
        metadata.remove(weight_layout::KEY);
        if plan.layout == RawLayout::Burn {
            metadata.insert(weight_layout::KEY.into(), plan.layout.said().name().into());
        }
        return Ok(metadata);
    }
    let mut metadata = BTreeMap::from([("format".to_string(), "briquette".to_string())]);
    let coded: BTreeSet<usize> = shard.parts.iter().map(|(index, _)| *index).collect();
    for index in coded.into_iter().filter(|&index| placed[index].coding != Coding::DENSE) {
        let info = plan.tensors[index].stored_info();
        let meaning = Meaning { dtype: info.dtype, shape: &info.shape, coding: placed[index].coding };
        let json = serde_json::to_string(&meaning).map_err(|error| Error::bug(format!("the metadata: {error}")))?;
        metadata.insert(format!("tensor {}", info.name), json);
    }
    Ok(metadata)
}

/// What parts stand for.
#[derive(Serialize)]
struct Meaning<'a> {
    dtype: DType,
    shape: &'a Shape,
    coding: Coding,
}

impl TensorPlan {
    /// The tensors of a file that it is kept as.
    ///
    /// # Errors
    /// Config, where the profile cannot hold it.
    pub(crate) fn file_parts(&self, profile: Profile, coding: Coding, n_kept: usize) -> Result<Vec<FilePart>> {
        profile.file_parts(&self.stored_info(), self.stored_axis(coding), coding, n_kept, self.activations())
    }

    /// The tensor's name as errors give it.
    pub fn culprit(&self) -> String {
        format!("tensor {:?}", self.info.name)
    }
}
