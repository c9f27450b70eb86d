//! How many threads there may be.

/// Most threads that a run may have: starting many more takes minutes and gains nothing.
pub const MAX_THREADS: usize = 1024;
