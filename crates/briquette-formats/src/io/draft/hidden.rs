//! Names of hidden files.

/// The suffix of the hidden file that later replaces another: `.NAME.partial`.
pub(crate) const PARTIAL: &str = ".partial";
/// The file that marks a directory as an unfinished output or as one that is being removed.
pub const MARK: &str = ".briquette-draft";
