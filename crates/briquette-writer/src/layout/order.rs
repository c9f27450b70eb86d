//! The order of parts in files. Each needs a few bytes, as there may be millions.

use super::parts::LastParts;
use crate::plan::Plan;
use briquette_core::{Error, Result};
use briquette_formats::output_format::FilePart;
use briquette_formats::{limits, names};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

/// One tensor of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// The tensor of the plan that it is a part of.
    pub(super) tensor: u32,
    /// Its index among the parts of that tensor.
    pub(super) nth: u8,
    /// The index of the suffix of its name.
    suffix: u8,
    /// Bits per element.
    n_bits: u8,
    /// Size in bytes.
    pub(super) n_bytes: u64,
}

/// The tensors of all files.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// The tensors, sorted by name.
    records: Vec<Record>,
    /// The range of the plan's tensors in each file.
    pub(super) files: Vec<Range<usize>>,
}

/// Data offsets of records that are visited by name. Data is sorted by element size, widest first, then by
/// name.
#[derive(Debug)]
pub(super) struct Starts(BTreeMap<u8, u64>);

impl Order {
    /// Sorts the `parts` of every tensor of a plan that is not tied to another.
    ///
    /// # Errors
    /// Input: two parts would have one name. Also errors of `parts`.
    pub(super) fn of(plan: &Plan, parts: &mut LastParts) -> Result<Self> {
        // Most tensors have at most two parts.
        let mut records = Vec::with_capacity(2 * plan.tensors.len());
        let (mut files, mut suffixes) = (Vec::new(), Vec::<String>::new());
        let (mut first, mut file) = (0, InFile::default());
        for (index, tensor) in plan.tensors.iter().enumerate().filter(|(_, tensor)| tensor.tied_to().is_none()) {
            let parts = parts.of(index)?;
            let more = InFile::of(parts, &tensor.info.name);
            if plan.profile.shards() && file.is_full(&more, plan.max_shard_bytes) {
                files.push(first..index);
                (first, file) = (index, InFile::default());
            }
            file.add(&more);
            for (part, nth) in parts.iter().zip(0..) {
                let suffix = place_of(&part.info.name[tensor.info.name.len()..], &mut suffixes);
                let (n_bits, n_bytes) = (part.info.dtype.n_bits() as u8, part.info.n_bytes() as u64);
                records.push(Record { tensor: index as u32, nth, suffix, n_bits, n_bytes });
            }
        }
        files.push(first..plan.tensors.len());
        let name = |record: &Record| {
            (plan.tensors[record.tensor as usize].info.name.as_str(), suffixes[usize::from(record.suffix)].as_str())
        };
        let ranks = ranks_of(plan);
        records.sort_unstable_by_key(|record| {
            (ranks[record.tensor as usize], suffixes[usize::from(record.suffix)].as_str())
        });
        drop(ranks);
        let order = |a: &Record, b: &Record| cmp_joined(name(a), name(b));
        // This is already the order of whole names, unless one tensor's name is a prefix of another or two
        // names are equal.
        if records.is_sorted_by(|a, b| order(a, b).is_lt()) {
            return Ok(Self { records, files });
        }
        records.sort_unstable_by(|a, b| order(a, b).then(a.tensor.cmp(&b.tensor)));
        let twice = records.windows(2).filter(|pair| order(&pair[0], &pair[1]).is_eq());
        if let Some([first, second]) = twice.filter_map(|pair| pair.first_chunk()).min_by_key(|pair| pair[1].tensor) {
            // A suffix shows that the tensor is stored in parts.
            let (split, other) = if name(first).1.is_empty() { (second, first) } else { (first, second) };
            let name = format!("{}{}", name(split).0, name(split).1);
            let other = &plan.tensors[other.tensor as usize].info.name;
            let message = format!("its part would have the name {name:?}, as of tensor {other:?}; exclude it");
            return Err(Error::input(message).at(plan.tensors[split.tensor as usize].culprit()));
        }
        Ok(Self { records, files })
    }

    /// Returns the records of the file with these tensors, sorted by name.
    pub(super) fn of_file(&self, tensors: &Range<usize>) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| tensors.contains(&(record.tensor as usize)))
    }

    /// Returns the first data offset of each element size among these tensors, from the end of the header.
    pub(super) fn starts(&self, tensors: &Range<usize>) -> Starts {
        let mut starts = BTreeMap::new();
        for record in self.of_file(tensors) {
            *starts.entry(record.n_bits).or_insert(0) += record.n_bytes;
        }
        let mut before = 0;
        for n_bytes in starts.values_mut().rev() {
            before += std::mem::replace(n_bytes, before);
        }
        Starts(starts)
    }
}

impl Starts {
    /// Returns the start of the data of the next record.
    pub(super) fn next(&mut self, record: &Record) -> u64 {
        let start = self.0.entry(record.n_bits).or_insert(0);
        let found = *start;
        *start += record.n_bytes;
        found
    }
}

/// Returns the position of each tensor's name in the sorted names.
fn ranks_of(plan: &Plan) -> Vec<u32> {
    let order = names::order(plan.tensors.len(), |index| &plan.tensors[index].info.name);
    let mut ranks = vec![0; order.len()];
    order.iter().zip(0..).for_each(|(&index, rank)| ranks[index as usize] = rank);
    ranks
}

/// Sizes and counts of a file during its layout.
#[derive(Debug, Default)]
struct InFile {
    n_bytes: u64,
    n_parts: u64,
    /// A lower bound of the header's bytes, without free-form strings.
    header: u64,
    /// Number of strings with the meanings of parts, and a lower bound of their bytes.
    strings: (usize, u64),
}

impl InFile {
    /// Returns what a tensor adds to a file.
    fn of(parts: &[FilePart], name: &str) -> Self {
        // Includes offsets of up to petabytes and the keys of an entry.
        let entry = |part: &FilePart| {
            let shape: u64 =
                part.info.shape.0.iter().map(|extent| 2 + u64::from(extent.checked_ilog10().unwrap_or(0))).sum();
            90 + json_bytes(&part.info.name) + shape
        };
        let strings = match parts {
            [one] if one.holds.parts().count() < 2 => (0, 0),
            _ => (1, 400 + json_bytes(name)),
        };
        let n_bytes = parts.iter().map(|part| part.info.n_bytes() as u64).sum();
        Self { n_bytes, n_parts: parts.len() as u64, header: parts.iter().map(entry).sum(), strings }
    }

    /// Returns whether one more tensor would make the file or its header too large.
    fn is_full(&self, more: &Self, max_bytes: u64) -> bool {
        let n_strings = self.strings.0 + more.strings.0;
        let strings = if n_strings < limits::MAX_METADATA { self.strings.1 + more.strings.1 } else { 0 };
        let is_too_long = self.header + more.header + strings > limits::MAX_HEADER_BYTES - (1 << 20);
        self.n_parts > 0 && (self.n_bytes + more.n_bytes > max_bytes || is_too_long)
    }

    fn add(&mut self, more: &Self) {
        self.n_bytes += more.n_bytes;
        self.n_parts += more.n_parts;
        self.header += more.header;
        self.strings = (self.strings.0 + more.strings.0, self.strings.1 + more.strings.1);
    }
}

/// Returns the size of a text in JSON, in bytes.
fn json_bytes(text: &str) -> u64 {
    let of = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    2 + text.bytes().map(of).sum::<u64>()
}

/// Returns the index of a suffix among the known ones. A new suffix is added.
fn place_of(suffix: &str, known: &mut Vec<String>) -> u8 {
    let place = known.iter().position(|known| known == suffix).unwrap_or_else(|| {
        known.push(suffix.to_string());
        known.len() - 1
    });
    place as u8
}

/// Compares names that are given in two parts, as if the parts were joined.
fn cmp_joined(a: (&str, &str), b: (&str, &str)) -> Ordering {
    let n = a.0.len().min(b.0.len());
    let (a_start, a_rest) = a.0.as_bytes().split_at(n);
    let (b_start, b_rest) = b.0.as_bytes().split_at(n);
    a_start.cmp(b_start).then_with(|| a_rest.iter().chain(a.1.as_bytes()).cmp(b_rest.iter().chain(b.1.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::DType;
    use briquette_formats::TensorInfo;
    use briquette_formats::output_format::Holds;
    use briquette_formats::safetensors::{Counted, HeaderJson};

    #[test]
    fn a_file_is_full_before_its_header_is_too_long() {
        let info = TensorInfo::checked("layers.0.weight".into(), DType::F32, vec![8, 8]).unwrap();
        let part = |suffix: &str| FilePart {
            info: TensorInfo { name: format!("{}{suffix}", info.name).into(), ..info.clone() },
            holds: Holds::Constant(Vec::new()),
        };
        let parts = [part(".codes"), part(".scale")];
        let (mut file, mut header) = (InFile::default(), HeaderJson::new(Counted::default(), |_| {}));
        let more = InFile::of(&parts, &info.name);
        while !file.is_full(&more, u64::MAX) {
            parts.iter().for_each(|part| header.tensor(&part.info, file.n_bytes));
            file.add(&more);
        }
        let n_bytes = header.n_bytes();
        assert!(n_bytes < limits::MAX_HEADER_BYTES && n_bytes > limits::MAX_HEADER_BYTES / 2, "{n_bytes}");
        assert!(file.is_full(&InFile::default(), 0) && !InFile::default().is_full(&more, 0));
    }

    #[test]
    fn names_in_two_parts_are_ordered_like_whole_names() {
        let pieces = ["", "a", "a.", "a.codes", "ab", "b", "é", ".codes", ".scale", "_scale"];
        let all: Vec<(&str, &str)> = pieces.iter().flat_map(|a| pieces.iter().map(move |b| (*a, *b))).collect();
        for a in &all {
            for b in &all {
                let joined = |(start, end): &(&str, &str)| format!("{start}{end}");
                assert_eq!(cmp_joined(*a, *b), joined(a).cmp(&joined(b)), "{a:?} {b:?}");
            }
        }
    }
}
