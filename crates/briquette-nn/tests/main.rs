//! All tests in one program, since each test program would link all of burn.
#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used)]

mod codes;
mod conv;
mod dense;
mod fixture;
mod hard_inputs;
mod known;
mod law;
mod layers;
mod load;
mod on_trellis;
mod other_rules;
mod pooled;
mod probe;
mod renewed;
mod rules;
mod shared;
mod tied;
mod trained_scales;
mod training;
mod units;
