//! Features of sounds equal those of transformers' WhisperFeatureExtractor.
//!
//! `fixtures/make_sound_goldens.py` writes the sound and its features.

use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::data::SoundInput;
use std::path::Path;

#[test]
fn features_equal_the_reference() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sound");
    let file = Checkpoint::open(&folder.join("features.safetensors")).unwrap();
    let mut bytes = vec![0; file.tensors()[0].n_bytes()];
    file.read(0, 0, &mut bytes).unwrap();
    let expected: Vec<f32> = bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    let found = SoundInput::new(16, 100).features(&folder.join("tone.wav")).unwrap();
    assert_eq!(found.len(), expected.len());
    let apart = found.iter().zip(&expected).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(apart < 1e-4, "{apart}");
    // Silence after the sound is as low as the largest value allows.
    assert!((expected[99] - found[99]).abs() < 1e-4 && found[99] < found[5]);
}
