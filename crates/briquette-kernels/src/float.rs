//! Images in f32: convolutions and max pools.

mod conv2d;
mod max_pool2d;

pub use conv2d::FloatConv2d;
pub use max_pool2d::{max_pool2d, max_pool2d_grad};
