//! Loads burn records into modules with attached rules.

use crate::live::attached_rules;
use briquette_core::printable::printable;
use briquette_core::{Error, Result};
use briquette_formats::InputFile;
use burn::module::{Module, ModuleVisitor, Param};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::{Bool, Int, Tensor};
use std::path::Path;

/// Loads a record into a module with the same rules attached, like burn's `try_load_record`.
///
/// Records of older versions load too, although they do not store their rules.
///
/// # Errors
/// Validation: the record is of another module or other rules.
pub fn load_record<M: Module>(module: M, record: ModuleRecord) -> Result<M, RecordError> {
    load_any(module, record).map(|(module, _)| module)
}

/// Loads a record and returns whether it is an older one that does not store its rules.
pub(crate) fn load_any<M: Module>(module: M, record: ModuleRecord) -> Result<(M, bool), RecordError> {
    let before = attached_rules(&module);
    let mut count = TensorCount(0);
    module.visit(&mut count);
    // Only the tensors for rules are missing. burn reports missing tensors by number only.
    let is_old = !before.is_empty() && record.len() + before.len() == count.0;
    let module = module.try_load_record(record.allow_partial(is_old))?;
    // A loaded parameter takes the id in the record.
    if is_old && attached_rules(&module) != before {
        return Err(RecordError::Validation("the record lacks parameters of the module".into()));
    }
    Ok((module, is_old))
}

/// Reads a record file.
///
/// # Errors
/// Io: the file is missing or cannot be read.
pub(crate) fn read_record(path: &Path) -> Result<ModuleRecord> {
    // burn's error does not distinguish a missing file, so the file is opened first.
    InputFile::open(path)?;
    ModuleRecord::load(path).map_err(|error| {
        let at = printable(&path.display().to_string());
        Error::io("cannot read", Path::new(&at), std::io::Error::other(error))
    })
}

/// Counts the tensors of a module, as its record does.
struct TensorCount(usize);

impl ModuleVisitor for TensorCount {
    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
        self.0 += 1;
    }

    fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<D, Int>>) {
        self.0 += 1;
    }

    fn visit_bool<const D: usize>(&mut self, _param: &Param<Tensor<D, Bool>>) {
        self.0 += 1;
    }
}
