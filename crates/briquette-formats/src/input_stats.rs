//! Input statistics of layers, as a safetensors file: see docs/guide/src/file-format.md.

use crate::{Checkpoint, TensorSource, draft, safetensors};
use briquette_core::{DType, Error, Hash128, InputStats, Result, TensorHasher};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The value of `format` in the header.
const FORMAT: &str = "briquette-input-statistics";
/// The value of `version` in the header.
const VERSION: &str = "1";
/// The header key of the influence of each block.
const BLOCK_INFLUENCE: &str = "block influence";
/// Prefix of header keys for layers that share the Gram matrix of another layer.
const SAME_GRAM: &str = "gram of ";
/// Bytes of each tensor that go into the fingerprint of a model.
const SAMPLE: usize = 4096;

/// The contents of a file of input statistics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StatisticsFile {
    /// The [`fingerprint`] of the model that the statistics come from, if known.
    pub model: Option<Hash128>,
    /// Statistics by layer path: the name of the weight without `.weight`.
    pub layers: BTreeMap<String, InputStats>,
    /// For each block of the network, `1 - cos` of a vector before and after it, as the mean over all vectors; empty if it was not gathered.
    pub block_influence: Vec<f64>,
}

impl StatisticsFile {
    /// Writes the statistics. An existing file is replaced atomically.
    ///
    /// # Errors
    /// Io: the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        draft::replace_file(path, &self.encoded()?)
    }

    /// Writes the statistics into a new file.
    ///
    /// # Errors
    /// - Refused: the file exists.
    /// - Io: the file cannot be written.
    pub fn write_new(&self, path: &Path) -> Result<()> {
        draft::write_files(&[(path, &self.encoded()?)], false)
    }

    /// Encodes the file: `P.count` I64 `[1]`, `P.sum`, `P.sum_squares`, `P.sum_magnitudes`, `P.max` and `P.importance` F64 `[inputs]`,
    /// and `P.gram` F64 `[inputs, inputs]` for each path `P`. If layers share a Gram matrix, the first has it and the header
    /// refers to it. Older files have no magnitudes, and the importance is there on request.
    ///
    /// With channel groups, vectors are `[groups · columns]` and Gram matrices `[groups, columns, columns]`.
    fn encoded(&self) -> Result<Vec<u8>> {
        let (mut tensors, mut strings) = (BTreeMap::new(), BTreeMap::new());
        let mut owners: BTreeMap<*const Vec<f64>, &str> = BTreeMap::new();
        for (name, stats) in &self.layers {
            let n = stats.n_inputs();
            let max: Vec<f64> = stats.max.iter().copied().map(f64::from).collect();
            tensors.insert(format!("{name}.count"), (DType::I64, vec![1], stats.count.to_le_bytes().to_vec()));
            tensors.insert(format!("{name}.sum"), (DType::F64, vec![stats.sum.len()], to_bytes(&stats.sum)));
            tensors.insert(format!("{name}.sum_squares"), (DType::F64, vec![n], to_bytes(&stats.sum_squares)));
            for (field, values) in [("sum_magnitudes", &stats.sum_magnitudes), ("importance", &stats.importance)] {
                if !values.is_empty() {
                    tensors.insert(format!("{name}.{field}"), (DType::F64, vec![values.len()], to_bytes(values)));
                }
            }
            tensors.insert(format!("{name}.max"), (DType::F64, vec![max.len()], to_bytes(&max)));
            let Some(gram) = &stats.gram else { continue };
            match owners.get(&Arc::as_ptr(gram)) {
                Some(owner) => _ = strings.insert(format!("{SAME_GRAM}{name}"), owner.to_string()),
                None => {
                    owners.insert(Arc::as_ptr(gram), name);
                    let n_cols = gram.len().checked_div(n).unwrap_or(0);
                    let shape = if n_cols == n { vec![n, n] } else { vec![stats.n_groups(n_cols), n_cols, n_cols] };
                    tensors.insert(format!("{name}.gram"), (DType::F64, shape, to_bytes(gram)));
                }
            }
        }
        strings.insert("format".into(), FORMAT.into());
        strings.insert("version".into(), VERSION.into());
        strings.extend(self.model.map(|model| ("model".to_string(), model.to_string())));
        if !self.block_influence.is_empty() {
            let numbers: Vec<String> = self.block_influence.iter().map(f64::to_string).collect();
            strings.insert(BLOCK_INFLUENCE.into(), numbers.join(" "));
        }
        safetensors::to_file_saying(&tensors, &strings)
    }

    /// Returns whether a path has a file of input statistics, of any version.
    pub fn is_at(path: &Path) -> bool {
        Checkpoint::open(path).is_ok_and(|file| file.metadata().get("format").is_some_and(|format| format == FORMAT))
    }

    /// Reads a file written by [`write`](Self::write).
    ///
    /// # Errors
    /// - Input: the file is not a file of input statistics, or is damaged.
    /// - Io: the file cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        let strings = file.metadata();
        let get = |key: &str| strings.get(key).map_or("", String::as_str);
        if (get("format"), get("version")) != (FORMAT, VERSION) {
            let message = format!(
                "found format {:?}, version {:?}, expected input statistics of version {VERSION}; see docs/guide/src/file-format.md",
                get("format"),
                get("version")
            );
            return Err(Error::input(message).at(path.display()));
        }
        let model = strings.get("model").map(|text| serde_json::from_value(text.as_str().into()));
        let model = model.transpose().map_err(|error| Error::input(format!("model: {error}")).at(path.display()))?;
        let mut layers: BTreeMap<String, InputStats> = BTreeMap::new();
        for (index, info) in file.tensors().iter().enumerate() {
            let unknown =
                || Error::input(format!("found {:?}, which is not an input statistic", info.name)).at(path.display());
            let (name, field) = info.name.rsplit_once('.').ok_or_else(unknown)?;
            let mut bytes = vec![0; info.n_bytes()];
            file.read(index, 0, &mut bytes)?;
            let floats = || bytes.as_chunks::<8>().0.iter().map(|word| f64::from_le_bytes(*word)).collect::<Vec<_>>();
            let stats = layers.entry(name.to_string()).or_default();
            match (field, info.dtype, info.shape.0.as_slice()) {
                ("count", DType::I64, [1]) => {
                    stats.count = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                }
                ("sum", DType::F64, [_]) => stats.sum = floats(),
                ("sum_squares", DType::F64, [_]) => stats.sum_squares = floats(),
                ("sum_magnitudes", DType::F64, [_]) => stats.sum_magnitudes = floats(),
                ("importance", DType::F64, [_]) => stats.importance = floats(),
                ("max", DType::F64, [_]) => stats.max = floats().into_iter().map(|value| value as f32).collect(),
                ("gram", DType::F64, [n, m] | [_, n, m]) if n == m => stats.gram = Some(Arc::new(floats())),
                _ => return Err(unknown()),
            }
        }
        for (name, owner) in strings.iter().filter_map(|(key, owner)| Some((key.strip_prefix(SAME_GRAM)?, owner))) {
            let gram = layers.get(owner).and_then(|stats| stats.gram.clone());
            match layers.get_mut(name).zip(gram) {
                Some((stats, gram)) => stats.gram = Some(gram),
                None => {
                    let message = format!("{name:?} refers to the Gram matrix of {owner:?}, which is missing");
                    return Err(Error::input(message).at(path.display()));
                }
            }
        }
        let bad = layers.iter().find_map(|(name, stats)| Some((name, problem(stats)?)));
        if let Some((name, problem)) = bad {
            return Err(Error::input(format!("statistics of {name:?}: {problem}")).at(path.display()));
        }
        let block_influence = influence_in(&strings).map_err(|error| error.at(path.display()))?;
        file.check_unchanged()?;
        Ok(Self { model, layers, block_influence })
    }

    /// Reads the influence of each block alone, from the header; see [`Self::block_influence`].
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn read_block_influence(path: &Path) -> Result<Vec<f64>> {
        influence_in(&Checkpoint::open(path)?.metadata()).map_err(|error| error.at(path.display()))
    }

    /// Checks that the statistics belong to this model.
    ///
    /// # Errors
    /// Input: the fingerprints differ. Also errors of reading the model.
    pub fn check_model(&self, model: &Checkpoint) -> Result<()> {
        let Some(expected) = self.model else { return Ok(()) };
        match fingerprint(model)? {
            found if found == expected => Ok(()),
            found => Err(Error::input(format!(
                "found statistics of another model with fingerprint {expected}, expected {found} of {}; gather them again",
                model.path().display()
            ))),
        }
    }
}

fn influence_in(strings: &BTreeMap<String, String>) -> Result<Vec<f64>> {
    let number = |text: &str| {
        let found = text.parse().ok().filter(|number: &f64| number.is_finite());
        found.ok_or_else(|| {
            Error::input(format!("{BLOCK_INFLUENCE}: found {text:?}, expected a number; the file is damaged"))
        })
    };
    strings.get(BLOCK_INFLUENCE).map_or("", String::as_str).split_whitespace().map(number).collect()
}

/// Returns the fingerprint of a model: xxh3 over name, type, shape and the middle 4,096 bytes of each tensor.
///
/// Tensors are hashed in the order of their names.
///
/// # Errors
/// See [`TensorSource::read`].
pub fn fingerprint(source: &dyn TensorSource) -> Result<Hash128> {
    let tensors = source.tensors();
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
    let (mut hasher, mut bytes) = (TensorHasher::default(), Vec::new());
    for index in order {
        let info = &tensors[index];
        let n = info.n_bytes().min(SAMPLE);
        bytes.resize(n, 0);
        source.read(index, (info.n_bytes() - n) / 2, &mut bytes)?;
        hasher.push(Hash128::of_block(format!("{}\n{}\n{}", info.name, info.dtype, info.shape).as_bytes()));
        hasher.push(Hash128::of_block(&bytes));
    }
    Ok(hasher.finish())
}

/// Describes the first contradiction in the numbers of a layer.
fn problem(stats: &InputStats) -> Option<String> {
    let n = stats.n_inputs();
    if i64::try_from(stats.count).is_err() {
        return Some(format!("found count {}, expected at least 1; gather them again", stats.count.cast_signed()));
    }
    let optional = |values: &[f64]| Some(values.len()).filter(|length| *length > 0);
    let lengths =
        [Some(stats.sum.len()), Some(stats.max.len()), optional(&stats.sum_magnitudes), optional(&stats.importance)];
    if stats.count == 0 || n == 0 {
        return Some("count or sum_squares is missing or empty".into());
    }
    if let Some(other) = lengths.into_iter().flatten().find(|&length| length != n) {
        return Some(format!("found {other} numbers, expected {n} as in sum_squares"));
    }
    let n_cols = stats.gram.as_ref().map_or(n, |gram| gram.len() / n);
    if let Some(gram) = &stats.gram
        && (n_cols == 0 || !n.is_multiple_of(n_cols) || gram.len() != n * n_cols)
    {
        let message =
            format!("found {} numbers in gram, expected {n} × {n}, or a square for each channel group", gram.len());
        return Some(message);
    }
    let all = stats.sum.iter().chain(&stats.sum_squares).copied().chain(stats.max.iter().copied().map(f64::from));
    let gram = stats.gram.iter().flat_map(|gram| gram.iter().copied());
    let squares = stats.gram.iter().flat_map(|gram| gram.chunks(n_cols * n_cols));
    let diagonal = squares.flat_map(|square| square.iter().step_by(n_cols + 1)).copied();
    let optional = || stats.sum_magnitudes.iter().chain(&stats.importance).copied();
    let sums = stats.sum_squares.iter().copied().chain(optional());
    let mut positive = diagonal.chain(sums).chain(stats.max.iter().copied().map(f64::from));
    let mut all = all.chain(gram).chain(optional());
    let is_bad = all.any(|value| !value.is_finite()) || positive.any(|value| value < 0.0);
    is_bad.then(|| "found a number that is not finite, or a negative square or magnitude; gather them again".into())
}

fn to_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> InputStats {
        InputStats {
            count: 3,
            sum: vec![1.0, -2.0],
            sum_squares: vec![5.0, 7.5],
            sum_magnitudes: vec![3.0, 4.0],
            max: vec![2.0, 2.5],
            importance: vec![0.5, 0.25],
            gram: Some(Arc::new(vec![5.0, 0.5, 0.5, 7.5])),
        }
    }

    #[test]
    fn statistics_read_back_and_belong_to_one_model() {
        let directory = tempfile::tempdir().unwrap();
        let model = |name: &str, value: f32| {
            let path = directory.path().join(name);
            let tensors = BTreeMap::from([("w".to_string(), (DType::F32, vec![1], value.to_le_bytes().to_vec()))]);
            std::fs::write(&path, safetensors::to_file(&tensors).unwrap()).unwrap();
            Checkpoint::open(&path).unwrap()
        };
        let (model, other) = (model("a.safetensors", 1.0), model("b.safetensors", 2.0));
        let (first, without) =
            (stats(), InputStats { gram: None, sum_magnitudes: Vec::new(), importance: Vec::new(), ..stats() });
        let shared = InputStats { gram: first.gram.clone(), ..stats() };
        let layers = BTreeMap::from([("a.b".to_string(), first), ("c".into(), without), ("d".into(), shared)]);
        let file =
            StatisticsFile { model: Some(fingerprint(&model).unwrap()), layers, block_influence: vec![0.25, 1e-9] };
        let path = directory.path().join("stats.safetensors");
        file.write(&path).unwrap();
        let read = StatisticsFile::read(&path).unwrap();
        assert_eq!(read, file);
        let gram = |layer: &str| Arc::as_ptr(read.layers[layer].gram.as_ref().unwrap());
        assert_eq!(gram("a.b"), gram("d"), "one shared matrix");
        read.check_model(&model).unwrap();
        let error = read.check_model(&other).unwrap_err().to_string();
        assert!(error.contains("statistics of another model"), "{error}");
        let error = StatisticsFile::read(model.path()).unwrap_err().to_string();
        assert!(error.contains("expected input statistics"), "{error}");
    }

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stats.safetensors");
        let damage: [fn(&mut InputStats); 15] = [
            |stats| stats.count = 0,
            |stats| stats.count = (-3_i64).cast_unsigned(),
            |stats| stats.count = u64::MAX,
            |stats| stats.max[1] = -1.0,
            |stats| stats.sum[1] = f64::NAN,
            |stats| stats.gram = Some(Arc::new(vec![5.0, 0.5, 0.5, -7.5])),
            |stats| stats.gram = Some(Arc::new(vec![5.0, f64::INFINITY, 0.5, 7.5])),
            |stats| stats.sum.truncate(1),
            |stats| stats.max[0] = f32::INFINITY,
            |stats| stats.sum_squares[1] = -1.0,
            |stats| stats.sum_squares.clear(),
            |stats| stats.sum_magnitudes[0] = -1.0,
            |stats| stats.sum_magnitudes.truncate(1),
            |stats| stats.importance[1] = -1.0,
            |stats| stats.importance.truncate(1),
        ];
        for damage in damage {
            let mut stats = InputStats { gram: None, ..stats() };
            damage(&mut stats);
            StatisticsFile { layers: BTreeMap::from([("a".to_string(), stats)]), ..Default::default() }
                .write(&path)
                .unwrap();
            assert!(StatisticsFile::read(&path).unwrap_err().to_string().contains("statistics of \"a\""));
        }
    }

    #[test]
    fn truncated_or_changed_files_do_not_panic() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stats.safetensors");
        StatisticsFile {
            model: Some(Hash128(7)),
            layers: BTreeMap::from([("a".to_string(), stats())]),
            ..Default::default()
        }
        .write(&path)
        .unwrap();
        let whole = std::fs::read(&path).unwrap();
        for n in 0..whole.len() {
            std::fs::write(&path, &whole[..n]).unwrap();
            assert!(StatisticsFile::read(&path).is_err(), "{n} of {} bytes", whole.len());
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x41;
            std::fs::write(&path, flipped).unwrap();
            // Changed sums and names may still be valid. Other changes give an error of one line.
            let error = StatisticsFile::read(&path).err().map_or(String::new(), |error| error.to_string());
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
