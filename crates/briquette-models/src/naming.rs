//! How each architecture's parameters are named in checkpoints.

use crate::Arch;
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_nn::{NameMap, load_compressed, load_into};
use burn::module::Module;

/// Tensors of BERT that an encoder has no use for: heads of other tasks, and buffers.
const BERT_EXTRAS: [&str; 8] = [
    "**.position_ids",
    "**.token_type_ids",
    "pooler.**",
    "bert.pooler.**",
    "cls.**",
    "classifier.**",
    "qa_outputs.**",
    "bert.embeddings.position_ids",
];
/// Buffers that older files of Llama keep.
const LLAMA_EXTRAS: [&str; 1] = ["**.rotary_emb.inv_freq"];

/// The names of `arch` in this checkpoint: those of Hugging Face and torchvision.
///
/// Leading names of [`crate::Network`]'s variants are dropped; `self_` is `self`, which Rust keeps for itself. A BERT
/// may lie under `bert.`, and its norms have `gamma` and `beta`. A tied Llama may hold its head, which is the embedding once more; loading leaves it aside.
///
/// # Errors
/// None that a checkpoint could cause.
pub fn names_of(arch: Arch, checkpoint: &Checkpoint, is_tied: bool) -> Result<NameMap> {
    let variants = ["DigitsCnn", "ResNet", "Bert", "Llama"];
    let mut names = variants.iter().fold(NameMap::torch(), |names, variant| names.rename(&format!("^{variant}"), ""));
    match arch {
        Arch::Bert => {
            names = names.rename("self_", "self").rename("layer_norm", "LayerNorm");
            let has = |is_it: fn(&str) -> bool| checkpoint.tensors().iter().any(|info| is_it(&info.name));
            if has(|name| name.ends_with("LayerNorm.gamma")) {
                // TensorFlow's names, which bert-base-uncased still has.
                names = names.rename("LayerNorm.weight", "LayerNorm.gamma").rename("LayerNorm.bias", "LayerNorm.beta");
            }
            if has(|name| name.starts_with("bert.encoder.")) {
                names = names.rename("^", "bert");
            }
            BERT_EXTRAS.iter().try_fold(names, |names, extra| names.ignore(extra))
        }
        Arch::Llama => {
            let names = LLAMA_EXTRAS.iter().try_fold(names, |names, extra| names.ignore(extra))?;
            if is_tied { names.ignore("lm_head.weight") } else { Ok(names) }
        }
        _ => Ok(names),
    }
}

/// Loads a network, codes as codes where they will run; where it does not fit, says whose names the checkpoint has.
pub(crate) fn load<M: Module>(module: M, arch: Arch, checkpoint: &Checkpoint, names: &NameMap) -> Result<M> {
    let holds_codes = module.devices().iter().all(briquette_nn::holds_codes);
    let found = match holds_codes {
        true => load_compressed(module, checkpoint, names),
        false => load_into(module, checkpoint, names),
    };
    found.map_err(|error| match Arch::by_names(checkpoint) {
        Some(other) if other != arch && error.kind == ErrorKind::Input => {
            let message = format!("{}; its names are those of {other}: set arch = \"{other}\"", error.message);
            Error::input(message)
        }
        _ => error,
    })
}
