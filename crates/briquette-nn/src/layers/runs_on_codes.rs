//! What tells layers that run on codes from burn's own, which have the same names.

use burn::module::Module;

/// A field without contents: visitors see its name, and by that know a layer that runs on codes.
#[derive(Module, Debug, Default)]
pub struct RunsOnCodes;
