//! Networks as graphs of operations.
#![forbid(unsafe_code)]

pub mod builder;
pub mod config;
mod expand;
mod expansion;
pub mod families;
pub mod graph;
pub mod headers;
mod lower;
pub mod op;
mod order;
mod shapes;
