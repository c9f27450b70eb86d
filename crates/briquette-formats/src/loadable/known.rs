//! The families that transformers is known to load from compressed-tensors, as of its version 5.23.
//!
//! A line goes in when `bench/interop_families.py` has loaded it. Heads that share the embedding, routers, convolutions and
//! tables that are looked up are no Linear layers here, whatever their shape.

mod decoders;
mod encoders;
mod media;
mod sequences;

use super::family::LoadableFamily;

/// Every known family: encoders of text, decoders, pairs of both, and models of images and speech.
pub(super) fn families() -> impl Iterator<Item = &'static LoadableFamily> {
    [encoders::FAMILIES, decoders::FAMILIES, sequences::FAMILIES, media::FAMILIES].into_iter().flatten()
}
