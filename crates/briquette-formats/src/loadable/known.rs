//! The families that transformers loads from compressed-tensors, as of version 5.23.
//!
//! `bench/interop_families.py` has loaded each of them. Heads that share the embedding, routers, convolutions
//! and lookup tables are not Linear layers here, whatever their shape.

mod decoders;
mod encoders;
mod media;
mod sequences;

use super::family::LoadableFamily;

/// Returns all known families: text encoders, text decoders, encoder-decoders, and models of images and speech.
pub(super) fn families() -> impl Iterator<Item = &'static LoadableFamily> {
    [encoders::FAMILIES, decoders::FAMILIES, sequences::FAMILIES, media::FAMILIES].into_iter().flatten()
}
