//! How much each weight matters.

mod magnitude;
mod random;

pub use magnitude::magnitude;
pub use random::random;
