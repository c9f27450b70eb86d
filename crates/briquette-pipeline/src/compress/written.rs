//! What was written is what was meant: read back, compared and summed while it reaches the disk.

use super::weight_files::WeightFiles;
use crate::context::Workers;
use crate::verify::{self, Found};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Draft, InputFile, sums};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Waits until the files are on disk and, meanwhile, reads back what was written; then writes the sums.
pub(super) fn sync_and_verify(
    draft: &Draft,
    files: &WeightFiles,
    written: &Checkpoint,
    workers: &Workers,
) -> Result<Vec<Found>> {
    let (stored, manifest) =
        written.stored().zip(written.manifest()).ok_or_else(|| Error::bug("the draft is no directory of ours"))?;
    let paths = sums::files_below(draft.path())?;
    let (synced, verified) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| files.sync());
        let decode = || {
            let found = verify::decode_all(stored, workers)?;
            verify::compare(&found, stored, manifest).map(|()| found)
        };
        // A sum goes through a file from its start to its end, on one thread: it is what takes longest.
        let (summed, verified) = workers.join(|| sums_of(draft.path(), &paths, workers), decode);
        let synced = syncing.join().unwrap_or_else(|_| Err(Error::bug("syncing panicked")));
        (synced.and(summed), verified)
    });
    let found = verified?;
    draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&synced?).as_bytes())?;
    Ok(found)
}

fn sums_of(root: &Path, paths: &[PathBuf], workers: &Workers) -> Result<BTreeMap<String, String>> {
    let sum = |(): &mut (), path: &PathBuf| {
        let (name, file) = (path.to_string_lossy().into_owned(), InputFile::open(&root.join(path))?);
        Ok((name, sums::sha256_of(&file, workers.n_threads() > 1, &|| workers.check_stop())?))
    };
    Ok(workers.map(paths, || (), sum)?.into_iter().collect())
}
