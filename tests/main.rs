//! End-to-end tests of the command line and the public interface.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

mod activations;
#[path = "../crates/briquette-formats/tests/archives/mod.rs"]
mod archives;
mod bad_input;
mod batch;
mod bias_correction;
mod bit_flips;
mod budget;
mod budget_report;
mod burn_layout;
mod burnpack;
mod calibrate;
mod cast;
mod changed;
mod checkpoints;
mod cluster;
mod column_scales;
mod compress;
mod contained;
mod corrected;
mod damaged;
mod decoders;
mod diff;
mod distill;
mod entropy;
mod evaluate;
mod export;
mod families;
mod faults;
mod frequency;
mod frozen;
mod generate;
mod goldens;
mod graph;
mod groups;
#[cfg(feature = "model")]
mod guide;
mod halves;
mod hangup;
mod harmless;
mod heads;
mod image_blocks;
mod int4_dynamic;
mod interop;
mod jobs;
mod justfile;
mod layouts;
mod learned_rounding;
#[cfg(not(feature = "model"))]
mod light;
mod machine;
mod many_tensors;
mod memory_limit;
mod messages;
mod minilm;
mod narrow;
mod odd_values;
mod on_policy;
mod onnx;
#[cfg(feature = "model")]
mod onnx_grids;
mod onnx_outputs;
mod onnx_static;
mod out_of_memory;
mod output_paths;
mod permuted;
mod printed;
mod pty;
#[cfg(feature = "model")]
mod quality_bound;
mod ranges;
#[cfg(feature = "model")]
mod recipe_paths;
mod resumed;
mod roles;
mod sandbox;
mod screen;
mod sensitivity;
mod shrink;
mod signals;
mod solve;
mod static_int8;
mod student_sizes;
mod students;
mod terminal;
#[cfg(feature = "model")]
mod text_classes;
mod tied;
mod trace;
mod trained_scales;
mod trellis;
mod weight_norm;
mod weights;
