//! Evaluates tiny models against results of torch, and refuses invalid data.

#![allow(clippy::print_stdout)]

use briquette_eval::evaluate::{self, evaluate};
use briquette_eval::{Evaluation, Fits, Request};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::LoadedModel;
use briquette_models::batches::Batching;
use briquette_models::data::{Array, DataSpec, ImageFolder, ImageInput};
use burn::tensor::Device;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn f64s(file: &str, name: &str) -> Vec<f64> {
    let checkpoint = Checkpoint::open(&fixture(&format!("models/{file}.expected.safetensors"))).unwrap();
    let index = checkpoint.tensors().iter().position(|info| info.name == name).unwrap();
    let info = &checkpoint.tensors()[index];
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(index, 0, &mut bytes).unwrap();
    match info.dtype.name() {
        "F32" => bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect(),
        "F64" => bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        other => panic!("{other}"),
    }
}

fn request(model: &Path, data: &Path) -> Request {
    Request {
        model: model.to_path_buf(),
        reference: None,
        choice: briquette_formats::Choice::default(),
        arch: None,
        data: DataSpec { path: data.to_path_buf(), ..DataSpec::default() },
        batching: Batching { batch_size: 7, workers: 2 },
        fits: Fits::default(),
        offload: None,
        device: Device::default(),
    }
}

fn run(request: &Request) -> Evaluation {
    evaluate(request, &[], &mut |_, _| Ok(())).unwrap()
}

fn message(request: &Request) -> String {
    let error = evaluate(request, &[], &mut |_, _| Ok(())).unwrap_err();
    assert!([2, 4].contains(&error.exit_code()), "{error}");
    error.message
}

#[test]
fn digits_accuracy_matches_torch_with_any_batch_size() {
    let mut request = request(&fixture("digits"), &fixture("digits-data.safetensors"));
    request.reference = Some(fixture("digits.pt"));
    let (mut last, mut total) = (0, 0);
    let found = evaluate(&request, &[], &mut |done, all| {
        (last, total) = (done, all);
        Ok(())
    })
    .unwrap();
    assert_eq!((last, total, found.n_items, found.n_skipped), (360, 360, 360, 0));
    assert!((found.metrics["accuracy"] - f64s("digits", "accuracy")[0]).abs() < 1e-6);
    assert_eq!((found.metrics["agreement"], found.metrics["kl"]), (1.0, 0.0));
    assert_eq!(found.metrics["accuracy"], found.metrics["reference_accuracy"]);
    assert!(found.metrics["top5"] >= found.metrics["accuracy"]);
    assert_eq!(found.latency.n_batches, 360_usize.div_ceil(7));
    assert!(found.latency.p50_ms > 0.0 && found.latency.p50_ms <= found.latency.p99_ms);
    request.batching = Batching { batch_size: 360, workers: 0 };
    let whole = run(&request);
    assert_eq!(whole.metrics, found.metrics);
    let back: Evaluation = serde_json::from_str(&serde_json::to_string(&whole).unwrap()).unwrap();
    assert_eq!((back.arch, back.metrics), (whole.arch, whole.metrics));
}

#[test]
fn progress_can_stop_a_run() {
    let request = request(&fixture("digits"), &fixture("digits-data.safetensors"));
    let mut n_told = 0;
    let error = evaluate(&request, &[], &mut |_, _| {
        n_told += 1;
        if n_told < 3 { Ok(()) } else { Err(briquette_core::Error::interrupted(15)) }
    });
    assert_eq!((error.unwrap_err().exit_code(), n_told), (143, 3));
}

#[test]
fn a_model_in_training_evaluates_without_dropout() {
    let spec = DataSpec { path: fixture("digits-data.safetensors"), ..DataSpec::default() };
    let data = spec.open(briquette_models::ModelTask::Classifier).unwrap();
    let run = |device: Device| {
        let model = LoadedModel::open(&fixture("digits"), None, &device).unwrap();
        let found = evaluate::run(&model, &data, &spec, Batching::default(), &mut |_, _| Ok(())).unwrap();
        evaluate::compare(model.arch, &data, &found, None).unwrap().metrics
    };
    assert_eq!(run(Device::default().autodiff()), run(Device::default()));
}

#[test]
fn perplexity_matches_transformers() {
    for name in ["llama-tied", "llama-untied", "llama-qwen"] {
        let mut request = request(&fixture(&format!("models/{name}")), &fixture("models/text.txt"));
        request.data.max_length = Some(32);
        let found = run(&request);
        let expected = f64s(name, "nll");
        assert_eq!(found.n_items as f64, expected[1]);
        let nll = found.metrics["perplexity"].ln();
        assert!((nll - expected[0]).abs() <= 1e-4 * expected[0], "{name}: {nll}, expected {}", expected[0]);
    }
}

#[test]
fn sentences_are_compared_singly_by_pairs_and_to_ratings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pairs.jsonl");
    let pair =
        |a: &str, b: &str, score: f64| format!("{{\"sentence1\": {a:?}, \"sentence2\": {b:?}, \"score\": {score}}}\n");
    let text =
        [pair("the cat sat", "the dog sat", 4.0), pair("a cat", "zebra", 1.0), pair("on the mat", "on a mat", 5.0)];
    std::fs::write(&path, text.concat()).unwrap();
    let mut request = request(&fixture("models/bert-tiny"), &path);
    assert_eq!(run(&request).metrics.keys().collect::<Vec<_>>(), ["sts_spearman"]);
    request.reference = Some(fixture("models/bert-tiny"));
    let found = run(&request);
    assert_eq!(found.n_items, 6);
    assert!((found.metrics["cosine"] - 1.0).abs() < 1e-12 && (found.metrics["pair_spearman"] - 1.0).abs() < 1e-12);
    assert_eq!(found.metrics["sts_spearman"], found.metrics["reference_sts_spearman"]);
    let names: Vec<&str> = found.metrics.keys().map(String::as_str).collect();
    assert_eq!(names, ["cosine", "cosine_min", "pair_spearman", "reference_sts_spearman", "sts_spearman"]);
}

#[test]
fn images_are_preprocessed_like_torchvision() {
    let folder = ImageFolder::open(&fixture("models/images")).unwrap();
    assert_eq!((folder.classes().join(" "), folder.len()), ("cat dog owl".into(), 5));
    let input = ImageInput { resize: Some(40), crop: [32, 32], ..ImageInput::of_imagenet(3) };
    let expected = f64s("images", "images");
    // Sorted by name: cat/tall.png, cat/wide.jpg, dog/grey.png, owl/damaged.png, owl/one.png.
    for (place, index) in [0, 1, 2, 4].into_iter().enumerate() {
        let found = folder.pixels(index, &input).unwrap();
        let expected = &expected[place * found.len()..(place + 1) * found.len()];
        let apart = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
        let (largest, sum) = apart.fold((0.0, 0.0), |(largest, sum), apart| (apart.max(largest), sum + apart));
        println!("image {index}: {largest} at most, {} on average", sum / found.len() as f64);
        // A byte step is 1 / 255 / 0.224. Rounding differs by one step, JPEG decoders by a few more.
        let steps = if index == 1 { 4.0 } else { 1.5 };
        assert!(largest <= steps / 255.0 / 0.224, "image {index}: {largest}");
    }
    assert!(folder.pixels(3, &input).unwrap_err().message.contains("damaged.png: it is not a valid image"));
}

#[test]
fn an_image_that_does_not_decode_is_counted_or_fatal() {
    let mut request = request(&fixture("models/resnet18-tiny.pth"), &fixture("models/images"));
    (request.data.size, request.data.crop) = (Some(40), Some([32, 32]));
    let found = run(&request);
    assert_eq!((found.arch, found.n_items, found.n_skipped), ("resnet18".parse().unwrap(), 4, 1));
    request.data.strict = true;
    for workers in [0, 2] {
        request.batching.workers = workers;
        let message = message(&request);
        assert!(message.contains("images/owl/damaged.png: it is not a valid image"), "{message}");
    }
    request.data.crop = Some([64, 64]);
    assert!(message(&request).contains("crop 64x64 is not within size 40"));
}

#[test]
fn a_large_image_is_the_mean_of_its_tiles() {
    let mut request = request(&fixture("models/resnet18-tiny.pth"), &fixture("models/images"));
    request.data.tile = Some(16);
    let data = request.data.open(briquette_models::ModelTask::Classifier).unwrap();
    let model = LoadedModel::open(&request.model, None, &request.device).unwrap();
    let run =
        |spec: &DataSpec, batching: Batching| match evaluate::run(&model, &data, spec, batching, &mut |_, _| Ok(()))
            .unwrap()
        {
            evaluate::RunOutputs::Rows(rows) => rows,
            evaluate::RunOutputs::Likelihood(_) => panic!("images"),
        };
    let (one, many) = (Batching { batch_size: 1, workers: 0 }, Batching { batch_size: 5, workers: 0 });
    let (tiled, other) = (run(&request.data, one), run(&request.data, many));
    assert_eq!((tiled.places.clone(), tiled.n_skipped, tiled.batch_size), (vec![0, 1, 2, 4], 1, 1));
    assert_eq!(other.batch_size, 5);
    let apart = tiled.values.iter().zip(&other.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-5, "the batch size changes the mean by {apart}");
    // The mean over the tiles of the first image, computed one by one.
    let briquette_models::Input::Images(input) = &model.input else { panic!("images") };
    let input = request.data.image_input(input).unwrap();
    let briquette_models::data::Data::Images(images) = &data else { panic!("images") };
    let tiles = images.tiles(0, &input, 16).unwrap();
    assert!(tiles.corners().len() > 1);
    let mut sums = vec![0.0; tiled.width];
    for &corner in tiles.corners() {
        let x = briquette_models::batches::stacked(&[tiles.pixels(corner, &input)], tiles.extents(), &request.device);
        let scores = model.network.classify(x).into_data().try_to_vec::<f32>().unwrap();
        sums.iter_mut().zip(scores).for_each(|(sum, score)| *sum += score);
    }
    for (sum, found) in sums.iter().zip(&tiled.values) {
        assert!((sum / tiles.corners().len() as f32 - found).abs() < 1e-5);
    }
}

#[test]
fn invalid_tiles_are_refused() {
    let mut request = request(&fixture("models/resnet18-tiny.pth"), &fixture("models/images"));
    (request.data.tile, request.data.crop) = (Some(16), Some([8, 8]));
    assert!(message(&request).contains("both tile and crop"));
    (request.data.crop, request.data.tile) = (None, Some(0));
    assert!(message(&request).contains("tile is 0"));
    request.data.path = fixture("digits-data.safetensors");
    request.model = fixture("digits");
    request.data.tile = Some(8);
    assert!(message(&request).contains("a network for images of any size; this one is for 8x8"));
}

#[test]
fn arrays_read_the_same_from_every_container() {
    let read = |name: &str| Array::read(&fixture(&format!("models/{name}")), &["x"]).unwrap();
    let plain = read("x.npy");
    assert_eq!(plain.shape, [3, 4, 5]);
    assert_eq!(plain, read("x-idx3-ubyte"));
    assert_eq!(plain, read("arrays.npz"));
    let floats = |scale: f32| (0..60).map(|place| place as f32 * scale).collect::<Vec<f32>>();
    assert_eq!(read("fortran.npy").values, floats(1.0).into());
    assert_eq!(read("arrays-compressed.npz").values, floats(0.25).into());
    let error = Array::read(&fixture("models/arrays.npz"), &["z"]).unwrap_err();
    assert!(error.message.contains("found the arrays x, y, expected one of z"), "{error}");
}

/// Writes an IDX file of bytes.
fn idx(path: &Path, shape: &[u32], fill: u8) {
    let mut bytes = vec![0, 0, 8, shape.len() as u8];
    shape.iter().for_each(|extent| bytes.extend(extent.to_be_bytes()));
    bytes.extend(vec![fill; shape.iter().product::<u32>() as usize]);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn labels_that_do_not_match_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (images, labels) = (dir.path().join("images"), dir.path().join("labels"));
    idx(&images, &[3, 8, 8], 7);
    idx(&labels, &[3], 10);
    let mut request = request(&fixture("digits"), &images);
    assert!(run(&request).metrics.is_empty());
    request.data.labels = Some(labels.clone());
    let named = format!("{}: label 10 of image 0 is out of range, the model has 10 classes", labels.display());
    assert!(message(&request).contains(&named));
    idx(&labels, &[2], 1);
    assert!(message(&request).contains("found 2 labels, expected 3"));
    idx(&images, &[3, 9, 8], 7);
    idx(&labels, &[3], 1);
    let named = format!("{}: images are [3, 9, 8], expected [n, 1, 8, 8]", images.display());
    assert!(message(&request).contains(&named));
    idx(&images, &[0, 8, 8], 7);
    assert!(message(&request).contains("found no image"));
    std::fs::write(&images, [0, 0, 8, 3, 0, 0, 0, 9]).unwrap();
    assert!(message(&request).contains("ends early"));
}

#[test]
fn folders_without_images_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let request = request(&fixture("digits"), dir.path());
    assert!(message(&request).contains("no folder of images"));
    std::fs::create_dir(dir.path().join("three")).unwrap();
    assert!(message(&request).contains("three: found no image in this class"));
}

/// Copies the tiny BERT, for damaging the copy.
fn copy_of_bert(to: &Path) {
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("models/bert-tiny").join(file), to.join(file)).unwrap();
    }
}

#[test]
fn a_reference_that_prepares_items_in_another_way_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    copy_of_bert(dir.path());
    std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
    for file in ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"] {
        std::fs::copy(fixture("models/bert-tiny").join(file), dir.path().join(file)).unwrap();
    }
    let difference = |model: &Path, reference: &Path, data: &Path| {
        let found = run(&Request { reference: Some(reference.to_path_buf()), ..request(model, data) });
        found.input_difference.unwrap_or_default()
    };
    let sentences = fixture("models/sentences.txt");
    let of_copy = || difference(dir.path(), &fixture("models/bert-tiny"), &sentences);
    assert_eq!(of_copy(), "");
    let tokenizer = dir.path().join("tokenizer.json");
    let lower = std::fs::read_to_string(&tokenizer).unwrap();
    let as_it_is = lower.replace("\"lowercase\": true", "\"lowercase\": false");
    assert_ne!(lower, as_it_is);
    std::fs::write(&tokenizer, as_it_is).unwrap();
    assert_eq!(of_copy(), "the reference reads \"A dog ran.…\" as 6 other tokens");
    std::fs::write(&tokenizer, &lower).unwrap();
    std::fs::write(dir.path().join("1_Pooling/config.json"), r#"{"pooling_mode_cls_token": true}"#).unwrap();
    assert_eq!(of_copy(), "the reference pools hidden states in another way");

    let digits = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("digits").join(file), digits.path().join(file)).unwrap();
    }
    let of_digits = || difference(digits.path(), &fixture("digits"), &fixture("digits-data.safetensors"));
    assert_eq!(of_digits(), "");
    let settings = r#"{"image_mean": [0.5], "image_std": [0.25]}"#;
    std::fs::write(digits.path().join("preprocessor_config.json"), settings).unwrap();
    let found = of_digits();
    assert!(found.starts_with("the reference reads images with"), "{found}");
    assert!(found.contains("a mean of 0.0000 instead of 0.5000, a deviation of 1.0000 instead of 0.2500"), "{found}");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    copy_of_bert(dir.path());
    let request = request(dir.path(), &fixture("models/sentences.txt"));
    run(&request);
    let path = dir.path().join("tokenizer.json");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, good.replace("\"cat\": 6", "\"cat\": 600")).unwrap();
    assert!(message(&request).contains("token \"cat\" has id 600, but the model has"));
    // `zebra` cannot be spelled without its last piece, and there is no unknown token.
    std::fs::write(&path, good.replace("\"##ra\"", "\"##rb\"").replace("\"[UNK]\": 1", "\"[XXX]\": 1")).unwrap();
    assert!(message(&request).contains("cannot tokenize"));
    std::fs::write(&path, "{}").unwrap();
    assert!(message(&request).contains("cannot be used as a tokenizer"));
    std::fs::remove_file(&path).unwrap();
    assert!(message(&request).contains("tokenizer.json: it is missing"));
}

#[test]
fn unsupported_configs_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    copy_of_bert(dir.path());
    let path = dir.path().join("config.json");
    let good = std::fs::read_to_string(&path).unwrap();
    let mut request = request(dir.path(), &fixture("models/sentences.txt"));
    let said = |config: &str, request: &Request| {
        std::fs::write(&path, config).unwrap();
        message(request)
    };
    assert!(
        said(&good.replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 5"), &request).contains("5 heads")
    );
    assert!(
        said(&good.replace("t_prob\": 0.1", "t_prob\": 1.0"), &request).contains("a dropout rate is 1, expected 0")
    );
    assert!(said(&good.replace("\"gelu\"", "\"sine\""), &request).contains("config.json"));
    for (size, by, expected) in [
        ("hidden_size\": 32", "hidden_size\": 99999999999", "hidden_size: found 99999999999, expected 1 to"),
        ("hidden_layers\": 2", "hidden_layers\": 9000000", "num_hidden_layers is 9000000, but the checkpoint"),
    ] {
        let message = said(&good.replace(size, by), &request);
        assert!(message.contains(expected), "{message}");
    }
    let of_xlnet = good.replace("\"model_type\": \"bert\"", "\"model_type\": \"xlnet\"");
    assert!(
        said(&of_xlnet, &request).contains("model_type \"xlnet\", which cannot be run; expected one of bert, roberta")
    );
    let wide = said(&good.replace("\"hidden_size\": 32", "\"hidden_size\": 64"), &request);
    assert!(wide.contains("hidden_size is 64, but word_embeddings.weight has 32; correct it"), "{wide}");
    request.arch = Some("llama".parse().unwrap());
    assert!(said(&good, &request).contains("model_type is \"bert\", which is not a type of llama"));
    request.arch = None;
    request.data.max_length = Some(2);
    std::fs::write(&path, &good).unwrap();
    assert!(message(&request).contains("max_length is 2, expected more than 2"));
    request.data.max_length = Some(41);
    assert!(message(&request).contains("the model has 40 positions"));
}
