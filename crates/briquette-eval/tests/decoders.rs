//! Decoders on a text: overlapping windows, and comparison with another decoder.

use briquette_eval::evaluate::evaluate;
use briquette_eval::{Evaluation, Fits, Request, metrics};
use briquette_models::LoadedModel;
use briquette_models::batches::Batching;
use briquette_models::data::DataSpec;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

fn request(model: &str, reference: Option<&str>) -> Request {
    Request {
        model: fixture(model),
        reference: reference.map(fixture),
        choice: Default::default(),
        arch: None,
        data: DataSpec { path: fixture("text.txt"), max_length: Some(32), ..DataSpec::default() },
        batching: Batching { batch_size: 3, workers: 0 },
        fits: Fits::default(),
        offload: None,
        device: Device::default(),
    }
}

fn run(request: &Request) -> Evaluation {
    evaluate(request, &[], &mut |_, _| Ok(())).unwrap()
}

/// Returns the logits of the whole vocabulary after each token of a window, and their number.
fn scores(model: &LoadedModel, tokens: &[u32]) -> (Vec<f32>, usize) {
    let ids: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, tokens.len()]), &Device::default());
    let scores = model.network.decode(ids);
    let width = scores.dims()[2];
    (scores.into_data().iter::<f32>().collect(), width)
}

fn text_tokens(model: &LoadedModel) -> Vec<u32> {
    let text = std::fs::read_to_string(fixture("text.txt")).unwrap();
    model.tokenizer().unwrap().encode_all(&text).unwrap().ids
}

#[test]
fn with_a_stride_each_token_is_predicted_once() {
    let model = LoadedModel::open(&fixture("llama-tied"), None, &Device::default()).unwrap();
    let tokens = text_tokens(&model);
    for stride in [1, 8, 31] {
        let (mut nll, mut n, mut n_seen) = (0.0, 0, 1);
        for first in (0..tokens.len()).step_by(stride) {
            let end = tokens.len().min(first + 32);
            let (scores, width) = scores(&model, &tokens[first..end]);
            for place in n_seen.max(first + 1)..end {
                let row = &scores[(place - first - 1) * width..][..width];
                let max = row.iter().copied().fold(f32::MIN, f32::max);
                let sum: f64 = row.iter().map(|&score| f64::from(score - max).exp()).sum();
                nll += sum.ln() - f64::from(row[tokens[place] as usize] - max);
                n += 1;
            }
            n_seen = end;
            if end == tokens.len() {
                break;
            }
        }
        let mut case = request("llama-tied", None);
        case.data.stride = Some(stride);
        let found = run(&case);
        assert_eq!((found.n_items, n), (tokens.len() - 1, tokens.len() - 1), "stride {stride}");
        assert!((found.metrics["perplexity"].ln() - nll / n as f64).abs() < 1e-5, "stride {stride}");
    }
}

#[test]
fn agreement_and_divergence_match_the_logits() {
    let [model, original] =
        ["llama-tied", "llama-untied"].map(|name| LoadedModel::open(&fixture(name), None, &Device::default()).unwrap());
    let (tokens, mut sums, mut n) = (text_tokens(&model), [0.0; 2], 0);
    for window in tokens.chunks(32).filter(|window| window.len() > 1) {
        let ((p, width), (q, of_model)) = (scores(&original, window), scores(&model, window));
        assert_eq!(width, of_model);
        let n_scored = window.len() - 1;
        let (p, q) = (&p[..n_scored * width], &q[..n_scored * width]);
        sums[0] += n_scored as f64 * metrics::agreement(p, q, width);
        sums[1] += n_scored as f64 * metrics::kl(p, q, width);
        n += n_scored;
    }
    let found = run(&request("llama-tied", Some("llama-untied")));
    assert_eq!(found.n_items, n);
    let [agreement, kl] = ["agreement", "kl"].map(|name| found.metrics[name]);
    assert!((agreement - sums[0] / n as f64).abs() < 1e-9, "{agreement} of {:?} / {n}", sums);
    assert!((kl - sums[1] / n as f64).abs() < 1e-5 && kl > 0.0, "{kl} of {:?} / {n}", sums);
    assert!(found.continuation.is_some() && found.continuation != found.reference_continuation);
}

#[test]
fn a_decoder_agrees_with_itself() {
    let found = run(&request("llama-untied", Some("llama-untied")));
    assert_eq!([found.metrics["agreement"], found.metrics["kl"]], [1.0, 0.0]);
    assert!(found.continuation.as_ref().is_some_and(|text| !text.is_empty()));
    assert_eq!(found.continuation, found.reference_continuation);
    assert_eq!(found.metrics["perplexity"], found.metrics["reference_perplexity"]);
}

#[test]
fn half_precision_decoders_are_compared_in_half_precision() {
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let mut case = request("llama-tied", Some("llama-untied"));
        let whole = run(&case);
        case.fits.dtype = Some(dtype);
        let found = run(&case);
        assert!((found.metrics["kl"] / whole.metrics["kl"] - 1.0).abs() < 0.05, "{dtype:?}: {:?}", found.metrics);
        case.reference = Some(case.model.clone());
        let same = run(&case);
        assert_eq!([same.metrics["agreement"], same.metrics["kl"]], [1.0, 0.0], "{dtype:?}");
    }
}

#[test]
fn progress_can_stop_the_steps_after_the_data() {
    let case = request("llama-tied", Some("llama-untied"));
    let n_calls = |stop_at: usize| {
        let mut n = 0;
        let found = evaluate(&case, &[], &mut |_, _| {
            n += 1;
            if n == stop_at { Err(briquette_core::Error::input("stopped")) } else { Ok(()) }
        });
        (n, found.is_ok())
    };
    let (all, is_done) = n_calls(0);
    assert!(is_done && all > 10, "batches, tokens and windows: {all}");
    (1..=all).for_each(|at| assert_eq!(n_calls(at), (at, false)));
}

#[test]
fn invalid_strides_are_refused() {
    let message = |change: fn(&mut Request)| {
        let mut case = request("llama-tied", None);
        case.data.stride = Some(16);
        change(&mut case);
        let error = evaluate(&case, &[], &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.message
    };
    let found = message(|case| case.data.stride = Some(33));
    assert!(found.contains("found 33, expected 1 to 32, the tokens of a window"), "{found}");
    let found = message(|case| case.offload = Some(std::env::temp_dir()));
    assert!(found.contains("data.stride: memory.offload does not support overlapping windows"), "{found}");
    let found = message(|case| (case.model, case.data.max_length) = (fixture("bert-tiny"), None));
    assert!(found.contains("data.stride: it lets the windows of a decoder's text overlap"), "{found}");
}
