//! The small files that belong to a model, such as its config and its tokenizer.

mod list;

use crate::{Checkpoint, Draft, model_config, sums};
use briquette_core::Result;
pub use list::{Companions, companions_beside, companions_of};
use std::path::Path;

/// Copies the small files of a model into a draft, except `config.json`, which may have to change.
///
/// `check_stop` runs before each piece is written; its error ends the copy.
///
/// # Errors
/// Errors of reading, of writing and of `check_stop`.
pub fn copy_into(draft: &Draft, checkpoint: &Checkpoint, check_stop: &dyn Fn() -> Result<()>) -> Result<()> {
    for companion in checkpoint.companions().iter().filter(|path| *path != Path::new(model_config::FILE_NAME)) {
        let (directory, mut hasher) = (checkpoint.model_dir(), sums::Hasher::default());
        let mut seen = |bytes: &[u8]| {
            hasher.update(bytes);
            check_stop()
        };
        draft.copy_input(&directory.file(companion)?, companion, &mut seen)?;
        directory.check(companion, || hasher.finish())?;
    }
    Ok(())
}
