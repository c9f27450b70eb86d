//! A build without the feature `pytorch` refuses PyTorch files and reads all others.
//!
//! Run it with `cargo test -p briquette-formats --no-default-features`.
#![cfg(not(feature = "pytorch"))]
#![allow(clippy::unwrap_used)]

use briquette_core::ErrorKind;
use briquette_formats::Checkpoint;
use std::path::Path;

#[test]
fn pytorch_files_are_refused_with_the_missing_feature() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let error = Checkpoint::open(&fixtures.join("digits.pt")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Config);
    assert!(error.to_string().contains("digits.pt") && error.to_string().contains("feature `pytorch`"), "{error}");
    assert!(Checkpoint::open(&fixtures.join("digits")).is_ok());
}
