//! Losses, blends and the loop, in one program: each would link all of burn.
#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used)]

mod blend;
mod goldens;
mod loaders;
mod mean_teacher;
mod own_code;
mod points;
mod taken_up;
mod training_loop;
