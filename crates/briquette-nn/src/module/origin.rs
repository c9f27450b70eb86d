//! Distinguishes burn's own layers from other structs of the same name, by their source files.
//!
//! `#[derive(Module)]` generates calls of the visitor's `enter_module`. With `#[track_caller]`, a visitor
//! receives the source location of the derive, which is in the file of the struct. All of burn's layers are in
//! one directory, found by visiting one of them.

use burn::module::{Module, ModuleVisitor};
use burn::nn::DropoutConfig;
use std::panic::Location;
use std::path::Path;
use std::sync::OnceLock;

/// Returns whether a struct is one of burn's layers, from the location that reports its fields to a visitor.
///
/// Always false if the compiler hides locations (`-Zlocation-detail=none`).
pub fn is_of_burn(announced_at: &Location) -> bool {
    static LAYERS: OnceLock<Option<&'static Path>> = OnceLock::new();
    LAYERS.get_or_init(layers_of_burn).is_some_and(|layers| Path::new(announced_at.file()).starts_with(layers))
}

/// Returns the directory of burn's layers; `None` if locations are hidden.
fn layers_of_burn() -> Option<&'static Path> {
    let mut finder = FileOfLayer(None);
    // A layer that needs no device.
    DropoutConfig { prob: 0.5 }.init().visit(&mut finder);
    let file = Path::new(finder.0?);
    file.parent().filter(|layers| file.ends_with("dropout.rs") && layers.components().count() > 1)
}

struct FileOfLayer(Option<&'static str>);

impl ModuleVisitor for FileOfLayer {
    #[track_caller]
    fn enter_module(&mut self, _name: &str, _container_type: &str) {
        self.0 = Some(Location::caller().file());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_burns_layers_are_in_their_directory() {
        let layers = layers_of_burn().expect("locations are visible");
        assert!(layers.ends_with("src/modules"), "{layers:?}");
        assert!(!is_of_burn(Location::caller()));
    }
}
