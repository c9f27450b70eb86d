//! A model with some tensors cut or replaced.

use super::edit::ValueEdit;
use super::rotated::Rotated;
use briquette_core::{Result, rows};
use briquette_formats::{Checkpoint, InputFile, TensorInfo, TensorSource};
use briquette_graph::shrink::KeptIndices;

/// A tensor of the new model.
pub(super) enum OutputTensor {
    /// A tensor of the model.
    Copied(usize),
    /// Some indices of each axis of a tensor of the model.
    Cut(usize, Vec<KeptIndices>),
    /// A tensor of the model with other values.
    Edited(usize, ValueEdit),
    /// A tensor of the model with rotated axes.
    Rotated(usize, Rotated),
    /// Values that were computed.
    Made(Vec<f32>),
}

/// A model with some tensors cut or replaced.
pub(super) struct ChangedModel<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) infos: Vec<TensorInfo>,
    pub(super) tensors: Vec<OutputTensor>,
}

impl TensorSource for ChangedModel<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        match &self.tensors[index] {
            OutputTensor::Copied(place) => self.checkpoint.read(*place, start, out),
            OutputTensor::Cut(place, kept) => {
                let info = &self.checkpoint.tensors()[*place];
                let mut bytes = vec![0; info.n_bytes()];
                self.checkpoint.read(*place, 0, &mut bytes)?;
                let cut = cut(&bytes, &info.shape.0, kept, info.dtype.n_bits() / 8);
                out.copy_from_slice(&cut[start..start + out.len()]);
                Ok(())
            }
            OutputTensor::Edited(place, edit) => {
                let TensorInfo { name, dtype, shape } = &self.infos[index];
                self.checkpoint.read(*place, start, out)?;
                let edited = edit.apply_to_bytes(&shape.0, *dtype, start / (dtype.n_bits() / 8), out);
                edited.map_err(|error| error.at(format_args!("tensor {name:?}")))
            }
            OutputTensor::Rotated(place, rotated) => {
                let TensorInfo { name, dtype, shape } = &self.infos[index];
                let (width, n) = (dtype.n_bits() / 8, self.infos[index].n_elements());
                let wanted = start / width..(start + out.len()) / width;
                let needed = rotated.needed(&shape.0, wanted, n);
                let mut bytes = vec![0; needed.len() * width];
                self.checkpoint.read(*place, needed.start * width, &mut bytes)?;
                let edited = rotated.apply_to_bytes(&shape.0, *dtype, needed.start, &mut bytes);
                edited.map_err(|error| error.at(format_args!("tensor {name:?}")))?;
                out.copy_from_slice(&bytes[start - needed.start * width..][..out.len()]);
                Ok(())
            }
            OutputTensor::Made(values) => {
                let width = self.infos[index].dtype.n_bits() / 8;
                rows::from_f32(&values[start / width..(start + out.len()) / width], self.infos[index].dtype, out);
                Ok(())
            }
        }
    }

    fn reads_ranges(&self, index: usize) -> bool {
        match &self.tensors[index] {
            OutputTensor::Copied(place) | OutputTensor::Edited(place, _) => self.checkpoint.reads_ranges(*place),
            // A cut reads the whole tensor.
            OutputTensor::Cut(..) => false,
            OutputTensor::Rotated(place, rotated) => {
                rotated.needs_rows_alone(&self.infos[index].shape.0) && self.checkpoint.reads_ranges(*place)
            }
            OutputTensor::Made(_) => true,
        }
    }

    fn files(&self) -> Vec<&InputFile> {
        self.checkpoint.files()
    }
}

/// Returns the elements at the kept indices of every axis; `width` is the bytes of an element.
pub(super) fn cut(bytes: &[u8], shape: &[usize], kept: &[KeptIndices], width: usize) -> Vec<u8> {
    let Some(last) = kept.iter().rposition(Option::is_some) else { return bytes.to_vec() };
    let inner: usize = shape[last + 1..].iter().product::<usize>() * width;
    let mut found = Vec::new();
    append(bytes, &shape[..=last], &kept[..=last], inner, &mut found);
    found
}

/// Appends the kept slices of the first axis.
fn append(bytes: &[u8], shape: &[usize], kept: &[KeptIndices], inner: usize, to: &mut Vec<u8>) {
    let Some((&extent, rest)) = shape.split_first() else {
        to.extend_from_slice(bytes);
        return;
    };
    let n = rest.iter().product::<usize>() * inner;
    let slice = |index: usize| &bytes[index * n..(index + 1) * n];
    match &kept[0] {
        Some(kept_here) => kept_here.iter().for_each(|&index| append(slice(index), rest, &kept[1..], inner, to)),
        None => (0..extent).for_each(|index| append(slice(index), rest, &kept[1..], inner, to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_of_any_axes_keep_the_order() {
        let bytes: Vec<u8> = (0..24).collect();
        let all = |axes: [Option<Vec<usize>>; 3]| cut(&bytes, &[2, 3, 4], &axes, 1);
        assert_eq!(all([None, None, None]), bytes);
        assert_eq!(all([Some(vec![1]), None, None]), bytes[12..]);
        assert_eq!(all([None, Some(vec![0, 2]), None]), [&bytes[..4], &bytes[8..16], &bytes[20..]].concat());
        assert_eq!(all([Some(vec![0]), Some(vec![1]), Some(vec![0, 3])]), [4, 7]);
        assert_eq!(cut(&bytes, &[12], &[Some(vec![1, 10])], 2), [2, 3, 20, 21]);
    }
}
