//! A cached teacher: its outputs are computed once, stored on disk and looked up from then on.
//!
//! Of the logits, the `k` largest are stored in f16, with the total weight of the others; embeddings are stored
//! in full, in f16. Looking them up takes a fraction of the time of running the teacher, and the teacher need
//! not stay in memory.

use crate::grads::read;
use crate::traced::{Teacher, TrainingBatch, TrainingData};
use crate::{Outputs, Wanted};
use briquette_core::{DType, Error, Hash128, Result, rows};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, draft, safetensors};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::Path;

/// Embeddings, concatenated.
#[derive(Debug, Clone, PartialEq, Default)]
struct EmbeddingRows {
    width: usize,
    values: Vec<f32>,
}

/// The largest logits of each row.
///
/// All other classes get the logit `tail`, which preserves their total weight:
///
/// `tail = ln(Σ exp(other logits)) - ln(number of others)`
#[derive(Debug, Clone, PartialEq, Default)]
struct TopK {
    n_classes: usize,
    k: usize,
    /// The number of rows per item: more than one if each token has logits.
    per_item: usize,
    ids: Vec<u32>,
    scores: Vec<f32>,
    tail: Vec<f32>,
}

/// The tensors of a file: types, shapes and bytes.
type FileTensors = BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>;

/// The name of the tensor with the hash of all others.
const SUM: &str = "sum";

/// The outputs of a teacher for every item of the data, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cached {
    device: Device,
    embedding: Option<EmbeddingRows>,
    logits: Option<TopK>,
}

impl Cached {
    /// Runs a teacher on every item, and stores at most `k` logits per row.
    ///
    /// It runs `at_once` items at a time.
    ///
    /// # Errors
    /// - The first error of the teacher or the data.
    /// - Refused: an output is not finite.
    pub fn of<I>(
        teacher: &dyn Teacher<I>,
        data: &dyn TrainingData<Input = I>,
        k: usize,
        at_once: usize,
        device: &Device,
    ) -> Result<Self> {
        let mut found = Self { device: device.clone(), ..Self::default() };
        let all: Vec<usize> = (0..data.len()).collect();
        for some in all.chunks(at_once.max(1)) {
            let outputs = teacher.outputs(&data.batch(some, device)?, Wanted::default())?;
            if let Some(rows) = outputs.embedding {
                found.embedding.get_or_insert_default().push(rows)?;
            }
            if let Some(scores) = outputs.logits {
                found.logits.get_or_insert_default().push(scores, some.len(), k)?;
            }
        }
        Ok(found)
    }

    /// Writes the outputs as safetensors.
    ///
    /// - `embedding`: F16 `[n, width]`
    /// - `logits.ids`: U32 `[rows, k]`
    /// - `logits.scores`: F16 `[rows, k]`
    /// - `logits.tail`: F32 `[rows]`
    /// - `logits.classes` and `logits.per_item` (rows per item): U32 `[1]`
    /// - `sum`: U8 `[16]`, the hash of all others
    ///
    /// # Errors
    /// Io: the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut tensors = FileTensors::new();
        if let Some(rows) = &self.embedding {
            let shape = vec![rows.values.len() / rows.width.max(1), rows.width];
            tensors.insert("embedding".into(), (DType::F16, shape, to_bytes(&rows.values, DType::F16)));
        }
        if let Some(top) = &self.logits {
            let ids = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
            let shape = vec![top.tail.len(), top.k];
            tensors.insert("logits.ids".into(), (DType::U32, shape.clone(), ids(&top.ids)));
            tensors.insert("logits.scores".into(), (DType::F16, shape, to_bytes(&top.scores, DType::F16)));
            tensors.insert("logits.tail".into(), (DType::F32, vec![top.tail.len()], to_bytes(&top.tail, DType::F32)));
            tensors.insert("logits.classes".into(), (DType::U32, vec![1], ids(&[top.n_classes as u32])));
            tensors.insert("logits.per_item".into(), (DType::U32, vec![1], ids(&[top.per_item as u32])));
        }
        tensors.insert(SUM.into(), (DType::U8, vec![16], sum_of(&tensors)));
        draft::replace_file(path, &safetensors::to_file(&tensors)?)
    }

    /// Reads a file of [`write`](Self::write) for data of `n` items.
    ///
    /// # Errors
    /// - Input: the file has another format, is damaged, or belongs to other data; compute it again.
    /// - Io: the file cannot be read.
    pub fn read(path: &Path, n: usize, device: &Device) -> Result<Self> {
        let mut tensors = tensors_of(path)?;
        let ids = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect::<Vec<_>>();
        let mut found = Self { device: device.clone(), ..Self::default() };
        if let Some((dtype, shape, bytes)) = tensors.remove("embedding") {
            let width = shape.get(1).copied().unwrap_or(0);
            found.embedding = Some(EmbeddingRows { width, values: to_floats(&bytes, dtype) });
        }
        let mut part = |name: &str| tensors.remove(name);
        let mut number = |name: &str| Some(*ids(&part(name)?.2).first()? as usize);
        let (n_classes, per_item) = (number("logits.classes").unwrap_or(0), number("logits.per_item").unwrap_or(1));
        let parts = (part("logits.ids"), part("logits.scores"), part("logits.tail"));
        if let (Some((_, shape, id_bytes)), Some((dtype, _, scores)), Some((_, _, tail))) = parts {
            found.logits = Some(TopK {
                n_classes,
                per_item: per_item.max(1),
                k: shape.get(1).copied().unwrap_or(0),
                ids: ids(&id_bytes),
                scores: to_floats(&scores, dtype),
                tail: to_floats(&tail, DType::F32),
            });
        }
        let n_rows = found.embedding.iter().map(|rows| rows.values.len() / rows.width.max(1));
        let n_rows = n_rows.chain(found.logits.iter().map(|top| top.tail.len() / top.per_item)).min().unwrap_or(0);
        let is_sound = found.logits.iter().all(|top| top.ids.iter().all(|&id| (id as usize) < top.n_classes));
        if n_rows != n || !is_sound {
            let message = format!("found a teacher's outputs for {n_rows} items, expected {n}");
            return Err(Error::input(message).at(path.display()));
        }
        Ok(found)
    }
}

/// Reads the tensors of a file, and checks their hash.
fn tensors_of(path: &Path) -> Result<FileTensors> {
    let file = Checkpoint::open(path)?;
    let read = |(index, info): (usize, &TensorInfo)| {
        let mut bytes = vec![0; info.n_bytes()];
        file.read(index, 0, &mut bytes)?;
        Ok((info.name.to_string(), (info.dtype, info.shape.0.clone(), bytes)))
    };
    let mut tensors: FileTensors = file.tensors().iter().enumerate().map(read).collect::<Result<_>>()?;
    let expected = tensors.remove(SUM).map(|(_, _, sum)| sum);
    match expected == Some(sum_of(&tensors)) {
        true => Ok(tensors),
        false => Err(Error::input("the hash does not match the contents; the file is damaged").at(path.display())),
    }
}

/// Returns the hash of tensors with their names, types and shapes.
fn sum_of(tensors: &FileTensors) -> Vec<u8> {
    let line = |(name, (dtype, shape, bytes)): (&String, &(DType, Vec<usize>, Vec<u8>))| {
        format!("{name} {dtype} {shape:?} {}\n", Hash128::of_block(bytes))
    };
    Hash128::of_block(tensors.iter().map(line).collect::<String>().as_bytes()).0.to_le_bytes().to_vec()
}

fn to_bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.n_bits() / 8];
    rows::from_f32(values, dtype, &mut bytes);
    bytes
}

fn to_floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() * 8 / dtype.n_bits()];
    rows::to_f32(bytes, dtype, &mut values);
    values
}

/// Reads a tensor's rows to the host, and checks that all are finite.
fn on_host(rows: Tensor<2>) -> Result<(usize, Vec<f32>)> {
    let [n, width] = rows.dims();
    let values = read(rows.reshape([n * width]))?;
    match values.iter().all(|value| value.is_finite()) {
        true => Ok((width, values)),
        false => Err(Error::refused("an output of the teacher is not finite; its weights are damaged")),
    }
}

impl EmbeddingRows {
    fn push(&mut self, rows: Tensor<2>) -> Result<()> {
        let (width, values) = on_host(rows)?;
        self.width = width;
        self.values.extend(values);
        Ok(())
    }

    fn at(&self, rows: &[usize], device: &Device) -> Tensor<2> {
        let values: Vec<f32> =
            rows.iter().flat_map(|&row| &self.values[row * self.width..(row + 1) * self.width]).copied().collect();
        Tensor::from_data(TensorData::new(values, [rows.len(), self.width]), device)
    }
}

impl TopK {
    fn push(&mut self, scores: Tensor<2>, n_items: usize, k: usize) -> Result<()> {
        self.per_item = scores.dims()[0] / n_items.max(1);
        let (width, values) = on_host(scores)?;
        (self.n_classes, self.k) = (width, k.clamp(1, width));
        for row in values.chunks(width) {
            let mut order: Vec<usize> = (0..width).collect();
            // Ties go to the lower class, so that the result is reproducible.
            let larger = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
            order.select_nth_unstable_by(self.k - 1, larger);
            let (kept, others) = order.split_at_mut(self.k);
            kept.sort_unstable_by(larger);
            others.sort_unstable();
            self.ids.extend(kept.iter().map(|&class| class as u32));
            self.scores.extend(kept.iter().map(|&class| row[class]));
            self.tail.push(tail(others.iter().map(|&class| row[class])));
        }
        Ok(())
    }

    fn at(&self, rows: &[usize], device: &Device) -> Tensor<2> {
        let mut values = Vec::with_capacity(rows.len() * self.per_item * self.n_classes);
        for row in rows.iter().flat_map(|&item| item * self.per_item..(item + 1) * self.per_item) {
            let start = values.len();
            values.resize(start + self.n_classes, self.tail[row]);
            let kept = row * self.k..(row + 1) * self.k;
            for (&class, &score) in self.ids[kept.clone()].iter().zip(&self.scores[kept]) {
                values[start + class as usize] = score;
            }
        }
        Tensor::from_data(TensorData::new(values, [rows.len() * self.per_item, self.n_classes]), device)
    }
}

/// Returns one logit for all of these that preserves the sum of their exponentials. It is 0 if there are none.
fn tail(scores: impl Iterator<Item = f32> + Clone) -> f32 {
    let (n, largest) = scores.clone().fold((0, f32::NEG_INFINITY), |(n, most), score| (n + 1, most.max(score)));
    if n == 0 {
        return 0.0;
    }
    let sum: f64 = scores.map(|score| f64::from(score - largest).exp()).sum();
    largest + (sum / f64::from(n)).ln() as f32
}

impl<I> Teacher<I> for Cached {
    fn outputs(&self, batch: &TrainingBatch<I>, wanted: Wanted) -> Result<Outputs> {
        if !wanted.is_end_only() {
            return Err(Error::config("a teacher's hidden states and attention are not cached; remove cache_teacher"));
        }
        if batch.rows.is_empty() {
            return Err(Error::config(
                "the batch has no item indices, which a cached teacher needs; use the teacher itself",
            ));
        }
        Ok(Outputs {
            embedding: self.embedding.as_ref().map(|rows| rows.at(&batch.rows, &self.device)),
            logits: self.logits.as_ref().map(|top| top.at(&batch.rows, &self.device)),
            ..Outputs::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_preserves_the_total_weight() {
        let others = [1.0_f32, -2.0, 0.5];
        let each = tail(others.iter().copied());
        let weight = |scores: &[f32]| scores.iter().map(|score| score.exp()).sum::<f32>();
        assert!((weight(&[each; 3]) / weight(&others) - 1.0).abs() < 1e-6);
        assert_eq!(tail(std::iter::empty()), 0.0);
        assert!(tail([-200.0, 90.0].into_iter()).is_finite());
    }
}
