//! Opens files that a model's own files refer to, and refuses those outside of the model's directory.
//!
//! A model from a stranger could have a link to a private key. A file is inside if it is below the directory
//! after all links are followed. For a snapshot in the Hugging Face cache, the `blobs` directory of its links
//! counts too. Paths that a person gave are not checked, only paths that come from files.

use crate::io::{InputFile, presence};
use briquette_core::{Error, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Opens the file `relative` of the directory `root`. Links are followed if they end inside.
///
/// # Errors
/// Input: a link leads out of the directory. Also see [`InputFile::open`].
pub fn open(root: &Path, relative: &Path) -> Result<InputFile> {
    let path = root.join(relative);
    // A file outside is not even opened. A missing file gets its error from opening it.
    if let Some(target) = presence::resolved(&path)? {
        check(root, &path, &target)?;
    }
    let file = InputFile::open(&path)?;
    // A link may have changed since the check, so compare the opened file with the file inside.
    let target = std::fs::canonicalize(&path).map_err(|source| Error::io("cannot resolve", &path, source))?;
    check(root, &path, &target)?;
    let found = std::fs::symlink_metadata(&target).map_err(|source| Error::io("cannot read", &target, source))?;
    if (found.dev(), found.ino()) != (file.identity().dev, file.identity().ino) {
        return Err(Error::input("was replaced while it was being opened; run again").at(path.display()));
    }
    Ok(file)
}

/// Returns whether a path below a directory leads to something inside. Links are followed.
///
/// # Errors
/// Io: the path or the directory cannot be resolved.
pub fn leads_inside(root: &Path, path: &Path) -> Result<bool> {
    presence::resolved(path)?.map_or(Ok(false), |target| is_inside(root, &target))
}

fn check(root: &Path, path: &Path, target: &Path) -> Result<()> {
    if is_inside(root, target)? {
        return Ok(());
    }
    let message = format!(
        "leads to {}, which is outside of the model's directory; give that file directly if you trust it",
        target.display()
    );
    Err(Error::input(message).at(path.display()))
}

/// Returns whether a path without links is below a directory, or in the blobs of the hub cache around it.
fn is_inside(root: &Path, target: &Path) -> Result<bool> {
    let Some(root) = presence::resolved(root)? else { return Ok(false) };
    Ok(target.starts_with(&root) || blobs_of(&root).is_some_and(|blobs| target.starts_with(blobs)))
}

/// Returns `MODEL/blobs` for a path in `MODEL/snapshots/REVISION` or below.
fn blobs_of(root: &Path) -> Option<PathBuf> {
    let snapshots = root.ancestors().skip(1).find(|above| above.file_name().is_some_and(|name| name == "snapshots"))?;
    Some(snapshots.parent()?.join("blobs"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::ErrorKind;
    use std::os::unix::fs::symlink;

    /// Creates a directory `m` with a file `in`, a file `out` beside it, and links in `m`.
    fn with_links(links: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("m/sub")).unwrap();
        std::fs::create_dir_all(dir.path().join("m2")).unwrap();
        for name in ["m/in", "m/sub/in", "out", "m2/out"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        for (target, link) in links {
            symlink(target, dir.path().join("m").join(link)).unwrap();
        }
        dir
    }

    #[test]
    fn links_out_of_the_directory_are_refused_with_their_target() {
        let dir = with_links(&[
            ("in", "a"),
            ("a", "b"),
            ("sub", "d"),
            ("../m/in", "round"),
            ("../out", "x"),
            ("x", "y"),
            ("..", "up"),
            ("../m2", "sister"),
        ]);
        let root = dir.path().join("m");
        for name in ["in", "sub/in", "a", "b", "d/in", "round"] {
            open(&root, Path::new(name)).unwrap();
            assert!(leads_inside(&root, &root.join(name)).unwrap(), "{name}");
        }
        for name in ["x", "y", "up/out", "sister/out"] {
            let error = open(&root, Path::new(name)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Input);
            let expected = [format!("m/{name}: leads to "), "out, which is outside".into()];
            assert!(expected.iter().all(|words| error.message.contains(words)), "{error}");
            assert!(!leads_inside(&root, &root.join(name)).unwrap(), "{name}");
        }
        assert_eq!(open(&root, Path::new("absent")).unwrap_err().kind, ErrorKind::Io);
    }

    #[test]
    fn the_directory_itself_may_be_a_link() {
        let dir = with_links(&[]);
        symlink("m", dir.path().join("link")).unwrap();
        open(&dir.path().join("link"), Path::new("in")).unwrap();
        assert!(open(&dir.path().join("link"), Path::new("../out")).is_err());
    }

    #[test]
    fn hub_snapshots_may_link_to_their_blobs_only() {
        let dir = tempfile::tempdir().unwrap();
        let (model, other) = (dir.path().join("model"), dir.path().join("other"));
        for path in [model.join("blobs"), model.join("snapshots/rev/sub"), model.join("refs"), other.join("blobs")] {
            std::fs::create_dir_all(path).unwrap();
        }
        for path in [model.join("blobs/1"), model.join("refs/main"), other.join("blobs/1"), model.join("x")] {
            std::fs::write(path, "x").unwrap();
        }
        let snapshot = model.join("snapshots/rev");
        for (target, link) in [
            ("../../blobs/1", "a"),
            ("../../../blobs/1", "sub/a"),
            ("../../refs/main", "r"),
            ("../../x", "x"),
            ("../../../other/blobs/1", "o"),
        ] {
            symlink(target, snapshot.join(link)).unwrap();
        }
        for (root, name) in [(snapshot.clone(), "a"), (snapshot.clone(), "sub/a"), (snapshot.join("sub"), "a")] {
            open(&root, Path::new(name)).unwrap();
        }
        for name in ["r", "x", "o"] {
            assert!(open(&snapshot, Path::new(name)).is_err(), "{name}");
        }
    }
}
