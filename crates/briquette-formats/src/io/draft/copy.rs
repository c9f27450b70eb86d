//! Copies small files into a draft.

use super::Draft;
use crate::io::InputFile;
use briquette_core::Result;
use std::path::Path;

impl Draft {
    /// Copies a file in pieces and syncs it.
    ///
    /// # Errors
    /// See [`InputFile::read_at`] and [`DraftFile::write_at`](super::DraftFile::write_at).
    pub fn copy_file(&self, from: &Path, name: &Path) -> Result<()> {
        self.copy_input(&InputFile::open(from)?, name, &mut |_| Ok(()))
    }

    /// Copies an open file, passes each piece to `seen`, and syncs it.
    ///
    /// # Errors
    /// See [`copy_file`](Self::copy_file). Also the first error of `seen`.
    pub fn copy_input(&self, input: &InputFile, name: &Path, seen: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        const PIECE: u64 = 1 << 20;
        let file = self.create_file(name, input.len())?;
        let mut buffer = vec![0; PIECE.min(input.len()) as usize];
        for start in (0..input.len()).step_by(PIECE as usize) {
            let piece = &mut buffer[..PIECE.min(input.len() - start) as usize];
            input.read_at(start, piece)?;
            seen(piece)?;
            file.write_at(start, piece)?;
        }
        input.check_unchanged()?;
        file.sync()
    }
}
