//! Text generation with a decoder.

use briquette_core::memory::MemoryMeter;
use briquette_core::{ErrorKind, Result};
use briquette_eval::generate::Ending;
use briquette_eval::{GenerateRequest, Generated, Sampling, generate};
use briquette_models::{CacheType, LoadedModel};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

struct NoMeter;

impl MemoryMeter for NoMeter {
    fn name(&self) -> &str {
        "none"
    }

    fn live_bytes(&self) -> Option<u64> {
        None
    }

    fn peak_bytes(&self) -> Option<u64> {
        None
    }
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/llama-tied")
}

fn request(prompts: &[&str]) -> GenerateRequest {
    GenerateRequest {
        model: model(),
        choice: Default::default(),
        arch: None,
        prompts: prompts.iter().map(|prompt| prompt.to_string()).collect(),
        system: None,
        is_raw: false,
        max_tokens: 12,
        cache: CacheType::F32,
        sampling: Sampling::default(),
        device: Device::default(),
    }
}

fn run(request: &GenerateRequest) -> Result<Generated> {
    generate(request, &NoMeter, &mut |_, _| Ok(true))
}

/// Returns the most likely tokens, by running the whole sequence for each.
fn by_whole_runs(prompt: &str, n: usize) -> Vec<u32> {
    let model = LoadedModel::open(&model(), None, &Device::default()).unwrap();
    let mut tokens = model.tokenizer().unwrap().encode_prompt(prompt, false).unwrap().ids;
    let n_prompt = tokens.len();
    for _ in 0..n {
        let ids: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, tokens.len()]), &Device::default());
        let scores = model.network.decode(ids).narrow(1, tokens.len() - 1, 1).into_data();
        let scores: Vec<f32> = scores.iter::<f32>().collect();
        tokens.push(Sampling::default().choose(&scores, 0).unwrap());
    }
    tokens.split_off(n_prompt)
}

#[test]
fn greedy_text_matches_full_runs_alone_and_in_a_batch() {
    let prompts = ["the cat sat", "a dog", "on the mat the cat"];
    let batch = run(&request(&prompts)).unwrap();
    for (prompt, sequence) in prompts.iter().zip(&batch.sequences) {
        let alone = run(&request(&[prompt])).unwrap().sequences.remove(0);
        assert_eq!(sequence.tokens, alone.tokens, "{prompt}");
        let expected = by_whole_runs(prompt, alone.tokens.len());
        assert_eq!(alone.tokens, expected, "{prompt}");
        assert!(alone.n_prompt_tokens > 0 && (alone.ending == Ending::Model || alone.tokens.len() == 12));
    }
    assert!(batch.cache_bytes > 0 && batch.weights_bytes > 0);
}

#[test]
fn pieces_form_the_text_and_a_callback_can_stop_it() {
    let mut pieces = String::new();
    let found = generate(&request(&["the cat"]), &NoMeter, &mut |_, piece| {
        pieces += piece;
        Ok(true)
    });
    assert_eq!(pieces, found.unwrap().sequences[0].text);
    let mut n = 0;
    let found = generate(&request(&["the cat"]), &NoMeter, &mut |_, _| {
        n += 1;
        Ok(n < 3)
    });
    assert_eq!(found.unwrap().sequences[0].tokens.len(), 3);
}

#[test]
fn the_seed_determines_the_text() {
    let drawn = |seed| {
        let sampling = Sampling { temperature: 1.5, seed, ..Sampling::default() };
        run(&GenerateRequest { sampling, ..request(&["the cat"]) }).unwrap().sequences.remove(0).tokens
    };
    assert_eq!(drawn(1), drawn(1));
    assert!((2..8).any(|seed| drawn(seed) != drawn(1)));
}

#[test]
fn a_text_ends_at_the_last_position() {
    let found = run(&GenerateRequest { max_tokens: 100_000, ..request(&["the"]) }).unwrap();
    let sequence = &found.sequences[0];
    assert!(matches!(sequence.ending, Ending::Model | Ending::Positions), "{:?}", sequence.ending);
}

#[test]
fn invalid_requests_are_refused_in_one_line() {
    let long = "cat ".repeat(5000);
    let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/bert-tiny");
    for (request, kind, said) in [
        (request(&[""]), ErrorKind::Input, "the prompt is empty"),
        (request(&[&long]), ErrorKind::Input, "positions; shorten it"),
        (GenerateRequest { model: encoder, ..request(&["a"]) }, ErrorKind::Config, "which generates no text"),
        (GenerateRequest { system: Some("x".into()), ..request(&["a"]) }, ErrorKind::Config, "no chat template"),
    ] {
        let error = run(&request).unwrap_err();
        assert!(error.kind == kind && error.to_string().contains(said), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
}
