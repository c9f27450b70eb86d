//! Images in f32: convolutions.

mod conv2d;

pub use conv2d::FloatConv2d;
