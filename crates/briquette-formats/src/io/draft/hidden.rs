//! Names of hidden directories of drafts.

/// The end of a draft's name before its numbers: `.NAME.partial-77-0`.
pub(crate) const PARTIAL: &str = ".partial-";
/// The file that marks a directory as an unfinished output or as one that is being removed.
pub const MARK: &str = ".briquette-draft";

/// Returns the name of the output that a draft belongs to, if `name` is the name of a draft.
pub fn target_of_draft(name: &str) -> Option<&str> {
    let (target, numbers) = name.strip_prefix('.')?.rsplit_once(PARTIAL)?;
    is_number_of_draft(numbers).then_some(target)
}

/// Returns whether this is the number of a process and of a draft: `77-0`.
pub(super) fn is_number_of_draft(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('-').is_some_and(|(process, draft)| is_number(process) && is_number(draft))
}
