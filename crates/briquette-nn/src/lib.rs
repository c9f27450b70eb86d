//! Prunes and quantizes burn modules while they train, and runs them compressed.
