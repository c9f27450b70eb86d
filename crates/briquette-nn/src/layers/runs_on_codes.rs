//! Markers that distinguish layers that can run on codes from burn's layers of the same names.

use burn::module::Module;

/// An empty field whose name tells module visitors that the layer can run on codes.
#[derive(Module, Debug, Default)]
pub struct RunsOnCodes;

/// Use of a table. Module visitors see the name of the variant.
#[derive(Module, Debug)]
pub enum TableUse {
    /// Row lookup only.
    LookedUp(RunsOnCodes),
    /// Row lookup and multiplication.
    Head(RunsOnCodes),
}
