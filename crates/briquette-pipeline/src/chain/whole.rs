//! What works on a whole model, by the names of its stages. The directories of finished parts are called after them too.

use briquette_recipe::Whole;

/// Every kind of stage that works on a whole model.
pub(super) const KINDS: [&str; 2] = ["distill", "factorize"];

/// The kind of such a stage.
pub(super) fn kind_of(whole: &Whole) -> &'static str {
    match whole {
        Whole::Distill(_) => KINDS[0],
        Whole::Factorize(_) => KINDS[1],
    }
}
