//! Manifests of millions of tensors, read one entry at a time.

use crate::manifest::VERSION;
use crate::window::{JsonBytes, Window};
use crate::{InputFile, Manifest, ManifestEntry, ManifestHead, OutputFormat, limits};
use briquette_core::{Result, Storage};
use serde_json::Value;
use std::collections::BTreeSet;

/// Bytes of a manifest in memory at a time. If a recipe or entry is longer, the whole manifest is read.
const WINDOW_BYTES: usize = 1 << 18;

/// A manifest in a file, with valid entries sorted by name.
pub(crate) struct ManifestFile {
    file: InputFile,
    pub(crate) head: ManifestHead,
    pub(crate) totals: Totals,
    /// The whole manifest, if it could not be read through a window.
    whole: Option<Manifest>,
}

/// Facts about all entries of a manifest.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Number of tensors.
    pub(crate) n_tensors: usize,
    /// Bytes of all values: f32 for codes, else the tensor's type.
    pub(crate) n_value_bytes: u64,
    /// Number of entropy-coded codes, and the bytes of their blocks.
    pub(crate) coded: (u64, u64),
    /// The weight files.
    pub(crate) files: BTreeSet<String>,
    /// The tensors that others are tied to.
    pub(crate) mains: BTreeSet<String>,
}

impl Totals {
    fn add(&mut self, entry: &ManifestEntry) {
        self.n_tensors += 1;
        let n_elements = entry.shape.n_elements().unwrap_or(usize::MAX) as u64;
        let n_bits = if entry.coding.codes.is_some() { 32 } else { entry.dtype.n_bits() as u64 };
        self.n_value_bytes = self.n_value_bytes.saturating_add(n_elements.saturating_mul(n_bits) / 8);
        if let Storage::Entropy { n_bytes, .. } = entry.coding.storage {
            let (n_codes, sum) = self.coded;
            self.coded = (n_codes.saturating_add(n_elements), sum.saturating_add(n_bytes as u64));
        }
        if !self.files.contains(&entry.file) {
            self.files.insert(entry.file.clone());
        }
        if let Some(main) = entry.tied_to.as_ref().filter(|main| !self.mains.contains(*main)) {
            self.mains.insert(main.clone());
        }
    }
}

/// The keys of a manifest that were read so far.
#[derive(Default)]
struct ManifestKeys {
    format: Option<String>,
    version: Option<u32>,
    producer: Option<String>,
    profile: Option<OutputFormat>,
    recipe: Option<Value>,
    has_tensors: bool,
}

impl ManifestFile {
    /// Reads the whole manifest once, and stores everything except the tensors.
    ///
    /// # Errors
    /// - Input: the file is not a manifest, or has a newer version.
    /// - Io: the file cannot be read.
    pub(crate) fn open(file: InputFile) -> Result<Self> {
        let mut totals = Totals::default();
        let mut note = |_: String, entry: ManifestEntry| {
            totals.add(&entry);
            Some(())
        };
        if file.len() <= limits::MAX_OWN_BYTES
            && let Some(head) = of_window(&file, &mut note)?
        {
            return Ok(Self { file, head, totals, whole: None });
        }
        // Reading the whole manifest gives the error message.
        let mut whole = Manifest::read(&file)?;
        let head = ManifestHead {
            format: std::mem::take(&mut whole.format),
            version: whole.version,
            producer: std::mem::take(&mut whole.producer),
            profile: whole.profile,
            recipe: whole.recipe.take(),
        };
        let mut totals = Totals::default();
        whole.tensors.values().for_each(|entry| totals.add(entry));
        Ok(Self { file, head, totals, whole: Some(whole) })
    }

    /// Calls `each` with every entry, sorted by name.
    ///
    /// # Errors
    /// - Errors of `each`.
    /// - Input: the file was changed since it was opened.
    /// - Io: the file cannot be read.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(String, ManifestEntry) -> Result<()>) -> Result<()> {
        if let Some(whole) = &self.whole {
            return whole.tensors.iter().try_for_each(|(name, entry)| each(name.clone(), entry.clone()));
        }
        let mut failed = None;
        let found =
            of_window(&self.file, &mut |name, entry| each(name, entry).map_err(|error| failed = Some(error)).ok());
        match (failed, found?) {
            (Some(error), _) => Err(error),
            (None, Some(_)) => Ok(()),
            (None, None) => {
                self.file.check_unchanged()?;
                let message = "cannot be read a second time; the file is damaged";
                Err(briquette_core::Error::input(message).at(self.file.path().display()))
            }
        }
    }
}

/// Reads a manifest through a window and calls `each` with its entries.
///
/// `None` if it is not valid or not sorted, a value is longer than the window, or `each` returns `None`.
///
/// # Errors
/// Input or Io: the file cannot be read.
fn of_window(
    file: &InputFile,
    each: &mut dyn FnMut(String, ManifestEntry) -> Option<()>,
) -> Result<Option<ManifestHead>> {
    let mut json = Window::new(JsonBytes::new(file, &(0..file.len())), WINDOW_BYTES);
    let head = head_of(&mut json, each);
    json.into_source().failed.map_or(Ok(head), Err)
}

fn head_of(
    json: &mut Window<JsonBytes>,
    each: &mut dyn FnMut(String, ManifestEntry) -> Option<()>,
) -> Option<ManifestHead> {
    let mut keys = ManifestKeys::default();
    json.for_each_entry(|json, key| match key.as_str() {
        "format" => put(&mut keys.format, json.value()?),
        "version" => put(&mut keys.version, json.value()?),
        "producer" => put(&mut keys.producer, json.value()?),
        "profile" => put(&mut keys.profile, json.value()?),
        "recipe" => put(&mut keys.recipe, json.value()?),
        "tensors" if !keys.has_tensors => {
            keys.has_tensors = true;
            let mut last: Option<String> = None;
            json.for_each_entry(|json, name| {
                if last.as_ref().is_some_and(|last| *last >= name) {
                    return None;
                }
                each(last.insert(name).clone(), json.value()?)
            })
        }
        _ => None,
    })?;
    let head = keys.head().filter(|_| json.is_at_end())?;
    (head.format == "briquette" && head.version <= VERSION).then_some(head)
}

/// Sets a value that was not set before.
fn put<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

impl ManifestKeys {
    fn head(self) -> Option<ManifestHead> {
        let (format, version, producer) = (self.format?, self.version?, self.producer?);
        let (profile, recipe) = (self.profile?, self.recipe?);
        self.has_tensors.then_some(ManifestHead { format, version, producer, profile, recipe })
    }
}
