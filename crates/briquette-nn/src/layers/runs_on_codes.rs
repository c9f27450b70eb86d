//! What tells layers that run on codes from burn's own, which have the same names.

use burn::module::Module;

/// A field without contents: visitors see its name, and by that know a layer that runs on codes.
#[derive(Module, Debug, Default)]
pub struct RunsOnCodes;

/// What a table is used for. Visitors see it by the name of the variant.
#[derive(Module, Debug)]
pub enum TableUse {
    /// Its rows are looked up.
    LookedUp(RunsOnCodes),
    /// They are looked up, and multiplied by.
    Head(RunsOnCodes),
}
