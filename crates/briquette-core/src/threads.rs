//! The limit on threads.

/// The most threads of a run: starting many more takes minutes and gains nothing.
pub const MAX_THREADS: usize = 1024;
