//! Tests of losses, blends and the loop in one program, because each program links all of burn.
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
