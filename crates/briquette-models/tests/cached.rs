//! Tests that a decoder with a key-value cache equals one without.

use briquette_models::graph_net::{GraphNet, RunInputs};
use briquette_models::{CacheType, Decoder, KeyValues, LoadedModel};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use std::path::Path;

fn model(name: &str) -> LoadedModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
    LoadedModel::open(&path, None, &Device::flex()).unwrap()
}

fn tensor(rows: &[&[i32]]) -> Tensor<2, Int> {
    let values: Vec<i32> = rows.concat();
    Tensor::from_data(TensorData::new(values, [rows.len(), rows[0].len()]), &Device::flex())
}

fn caches(decoder: &dyn Decoder, kind: CacheType, n: usize) -> Vec<KeyValues> {
    (0..n).map(|_| decoder.key_values(kind)).collect()
}

fn apart(a: Tensor<3>, b: Tensor<3>) -> f32 {
    (a - b).abs().max().into_scalar::<f32>()
}

#[test]
fn cached_steps_equal_the_whole_sequence() {
    let tokens = [3, 1, 7, 5, 2, 9, 4];
    for name in ["llama-tied", "llama-untied", "llama-qwen"] {
        let model = model(name);
        let decoder = model.network.as_decoder();
        let whole = decoder.last_state(tensor(&[&tokens]));
        for (kind, most) in [(CacheType::F32, 1e-5), (CacheType::F16, 1e-2), (CacheType::Int8, 0.1)] {
            let mut kept = caches(decoder, kind, 1);
            // A prompt, several tokens in one call, then one at a time.
            for part in [0..3, 3..5, 5..6, 6..7] {
                let found = decoder.next_state(tensor(&[&tokens[part.clone()]]), &mut kept);
                let expected = whole.clone().narrow(1, part.start, part.len());
                let apart = apart(found, expected);
                assert!(apart < most, "{name} {kind} {part:?}: {apart}");
            }
            assert_eq!(kept[0].n_tokens(), tokens.len());
            assert!(kept[0].n_bytes() > 0);
        }
    }
}

#[test]
fn sequences_of_different_lengths_step_together() {
    let model = model("llama-tied");
    let decoder = model.network.as_decoder();
    let (long, short): ([i32; 5], [i32; 3]) = ([3, 1, 7, 5, 2], [8, 6, 4]);
    let mut kept = caches(decoder, CacheType::F32, 2);
    decoder.next_state(tensor(&[&long[..4]]), &mut kept[..1]);
    decoder.next_state(tensor(&[&short[..2]]), &mut kept[1..]);
    let found = decoder.next_state(tensor(&[&long[4..], &short[2..]]), &mut kept);
    let last = |tokens: &[i32]| decoder.last_state(tensor(&[tokens])).narrow(1, tokens.len() - 1, 1);
    let expected = Tensor::cat(vec![last(&long), last(&short)], 0);
    assert!(apart(found, expected) < 1e-5);
}

#[test]
fn cached_steps_of_targets_equal_the_whole_target() {
    for name in ["t5-translate", "t5-translate-gated", "bart", "mbart", "whisper"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families").join(name);
        let network = GraphNet::from_checkpoint(&path, &Device::flex()).unwrap();
        let sources = match name {
            "whisper" => RunInputs::sounds(Tensor::random([2, 6, 20], Distribution::Default, &Device::flex())),
            _ => RunInputs::tokens(tensor(&[&[3, 1, 7, 5, 9], &[6, 4, 8, 2, 11]])),
        };
        let targets: [[i32; 6]; 2] = [[2, 9, 4, 7, 7, 1], [2, 5, 6, 3, 8, 12]];
        let whole = network.target_state(&sources.clone().with_target(tensor(&[&targets[0], &targets[1]])));
        for (kind, most) in [(CacheType::F32, 1e-4), (CacheType::F16, 3e-2)] {
            let mut kept = network.read_source(&sources, kind);
            assert_eq!((kept.len(), kept[0].n_tokens()), (2, 0));
            for part in [0..2, 2..3, 3..6] {
                let tokens = tensor(&[&targets[0][part.clone()], &targets[1][part.clone()]]);
                let found = network.next_state(tokens, &mut kept);
                let apart = apart(found, whole.clone().narrow(1, part.start, part.len()));
                assert!(apart < most, "{name} {kind} {part:?}: {apart}");
            }
            assert_eq!(kept[1].n_tokens(), 6);
        }
    }
}
