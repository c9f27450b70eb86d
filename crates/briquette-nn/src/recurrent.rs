//! Finds burn's recurrent layers, whose states restrict the type of the computation.

use crate::module::{Trail, is_of_burn};
use briquette_core::{Error, Result};
use burn::module::{Module, ModuleVisitor};
use burn::tensor::FloatDType;
use std::panic::Location;

/// burn's recurrent layers, by container name.
const RECURRENT: [&str; 6] =
    ["Struct:Lstm", "Struct:BiLstm", "Struct:Gru", "Struct:BiGru", "Struct:Rnn", "Struct:BiRnn"];

/// Refuses a type in which a recurrent layer cannot compute.
///
/// `Lstm::forward` creates its output and first state by `Tensor::empty` and `Tensor::zeros` in the device's
/// default type, and burn's operations do not mix types.
///
/// # Errors
/// Refused, with the path of the layer.
pub(crate) fn check_computes_in<M: Module>(module: &M, dtype: FloatDType) -> Result<()> {
    let Some(device) = module.devices().into_iter().next() else { return Ok(()) };
    let usual = device.settings().float_dtype;
    if usual == dtype {
        return Ok(());
    }
    let mut finder = RecurrentFinder::default();
    module.visit(&mut finder);
    let Some((path, layer)) = finder.found else { return Ok(()) };
    let message = format!(
        "burn's {layer} creates its states in {usual:?}, the device's default type, and cannot compute in {dtype:?}; \
         configure the device for {dtype:?} before its first tensor, or remove compute_in"
    );
    Err(Error::refused(message).at(path))
}

#[derive(Default)]
struct RecurrentFinder {
    trail: Trail,
    found: Option<(String, String)>,
}

impl ModuleVisitor for RecurrentFinder {
    #[track_caller]
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if self.found.is_none() && is_of_burn(Location::caller()) && RECURRENT.contains(&container_type) {
            let path = self.trail.path();
            let path = if path.is_empty() { "the module".to_string() } else { path };
            self.found = Some((path, container_type.trim_start_matches("Struct:").to_string()));
        }
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }
}
