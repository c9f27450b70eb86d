//! Damaged, oversized and mismatched data: one line each, before a model runs.

use briquette_core::{Error, ErrorKind};
use briquette_eval::evaluate::{self, evaluate};
use briquette_eval::{Fits, Request};
use briquette_models::batches::Batching;
use briquette_models::data::{Array, ArrayImages, DataSpec, Split};
use briquette_models::{LoadedModel, ModelTask};
use burn::tensor::Device;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn request(model: &str, data: &Path) -> Request {
    Request {
        model: fixture(model),
        reference: None,
        choice: briquette_formats::Choice::default(),
        arch: None,
        data: DataSpec { path: data.to_path_buf(), ..DataSpec::default() },
        batching: Batching { batch_size: 2, workers: 0 },
        fits: Fits::default(),
        offload: None,
        device: Device::default(),
    }
}

/// Returns the error of a run, and the number of batches before it.
fn fails(request: &Request) -> (Error, usize) {
    let mut n_batches = 0;
    let found = evaluate(request, &[], &mut |_, _| {
        n_batches += 1;
        Ok(())
    });
    (found.unwrap_err(), n_batches)
}

/// Returns a `.npy` file.
fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), elements].concat()
}

/// Returns images for the digits network.
fn images(n: usize) -> Vec<u8> {
    let pixels: Vec<u8> = (0..64 * n).map(|place| (place * 7 % 17) as u8).collect();
    npy("|u1", &format!("{n}, 8, 8"), &pixels)
}

fn npz(members: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn a_flipped_byte_in_an_npz_is_reported_with_its_member() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("digits.npz");
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let good = npz(&[("x.npy", images(3)), ("y.npy", npy("|u1", "3,", &[1, 2, 3]))], method);
        std::fs::write(&path, &good).unwrap();
        let expected = Array::read(&path, &["x"]).unwrap();
        let mut archive = ZipArchive::new(Cursor::new(good.clone())).unwrap();
        let (start, length) = {
            let member = archive.by_name("x.npy").unwrap();
            (member.data_start().unwrap() as usize, member.compressed_size() as usize)
        };
        for at in start..start + length {
            let mut bytes = good.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            match Array::read(&path, &["x"]) {
                // Deflated data ends within a byte; its padding bits carry no data.
                Ok(found) => assert_eq!(found, expected, "byte {at}, {method}"),
                Err(error) => {
                    let named = format!("{}: x.npy cannot be read", path.display());
                    assert!(error.kind == ErrorKind::Input && error.message.starts_with(&named), "{error}");
                }
            }
        }
        let mut bytes = good;
        bytes[start + length - 9] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (error, n_batches) = fails(&request("digits", &path));
        assert_eq!((error.exit_code(), n_batches), (4, 0), "{error}");
        assert!(error.message.contains("digits.npz: x.npy"), "{error}");
    }
}

#[test]
fn labels_are_found_by_content() {
    let dir = tempfile::tempdir().unwrap();
    let labels = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        ArrayImages::open(&path, None, Split::Test).map(|images| images.labels().map(<[usize]>::to_vec))
    };
    let (x, y) = (("x.npy", images(2)), ("y.npy", npy("|u1", "2,", &[4, 5])));
    let both = npz(&[x.clone(), y], CompressionMethod::Deflated);
    for name in ["lower.npz", "Upper.NPZ", "no-extension"] {
        assert_eq!(labels(name, &both).unwrap(), Some(vec![4, 5]), "{name}");
    }
    assert_eq!(labels("images.npz", &npz(&[x], CompressionMethod::Stored)).unwrap(), None);
    assert_eq!(labels("images.npy", &images(2)).unwrap(), None);
    let short = npz(&[("x.npy", images(2)), ("y.npy", npy("|u1", "1,", &[4]))], CompressionMethod::Stored);
    assert!(labels("short.npz", &short).unwrap_err().message.contains("found 1 labels, expected 2"));
}

#[test]
fn values_that_are_not_finite_are_data_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    for (value, word) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut values = vec![0.5_f32; 3 * 64];
        values[2 * 64 + 5] = value;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(&path, npy("<f4", "3, 8, 8", &bytes)).unwrap();
        let (error, n_batches) = fails(&request("digits", &path));
        assert_eq!((error.kind, n_batches), (ErrorKind::Input, 0));
        let expected = format!("{}: value 5 of image 2 is {word}, expected finite numbers", path.display());
        assert!(error.message.starts_with(&expected), "{error}");
    }
}

#[test]
fn files_without_arrays_are_refused_with_the_valid_formats() {
    let dir = tempfile::tempdir().unwrap();
    let jpg = std::fs::read(fixture("models/images/cat/wide.jpg")).unwrap();
    let cases = [
        ("wide.jpg", jpg, "found a single image (Jpeg)"),
        ("empty.npy", Vec::new(), "found an empty file"),
        ("lines.txt", b"one\ntwo\n".to_vec(), "found text"),
        ("lfs.npz", b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "git lfs pull"),
        ("noise", vec![0xfe; 99], "found something else"),
    ];
    for (name, bytes, found) in cases {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let (error, _) = fails(&request("digits", &path));
        assert_eq!(error.exit_code(), 4, "{error}");
        for phrase in [name, found, ".npy, .npz, IDX or safetensors", "per class"] {
            assert!(error.message.contains(phrase), "{error}");
        }
    }
}

#[test]
fn integers_and_booleans_are_labels_but_not_pixels() {
    let dir = tempfile::tempdir().unwrap();
    let (path, labels) = (dir.path().join("x.npy"), dir.path().join("y.npy"));
    let shape = "2, 1, 8, 8";
    for (descr, elements) in [("<i8", vec![0; 8 * 128]), ("<u2", vec![0; 2 * 128]), ("|b1", vec![1; 128])] {
        std::fs::write(&path, npy(descr, shape, &elements)).unwrap();
        let (error, _) = fails(&request("digits", &path));
        assert!(error.exit_code() == 4 && error.message.contains("write them as bytes (uint8)"), "{descr}: {error}");
    }
    std::fs::write(&path, images(2)).unwrap();
    std::fs::write(&labels, npy("|b1", "2,", &[0, 1])).unwrap();
    let mut request = request("digits", &path);
    request.data.labels = Some(labels);
    evaluate(&request, &[], &mut |_, _| Ok(())).unwrap();
}

#[test]
fn labels_out_of_range_end_a_run_after_its_first_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (path, labels) = (dir.path().join("x.npy"), dir.path().join("y.npy"));
    std::fs::write(&path, images(6)).unwrap();
    std::fs::write(&labels, npy("<i4", "6,", &[1, 2, 3, 4, 5, 9999].map(i32::to_le_bytes).concat())).unwrap();
    let mut request = request("digits", &path);
    request.reference = Some(fixture("digits.pt"));
    request.data.labels = Some(labels.clone());
    let (error, n_batches) = fails(&request);
    let expected = format!("{}: label 9999 of image 5 is out of range", labels.display());
    assert!(error.message.starts_with(&expected) && error.message.contains("10 classes, 0 to 9"), "{error}");
    assert_eq!((error.exit_code(), n_batches), (4, 0));
    // Numbered folders are classes too.
    let image = fixture("models/images/cat/tall.png");
    let folder = dir.path().join("images");
    for class in ["3", "12"] {
        std::fs::create_dir_all(folder.join(class)).unwrap();
        std::fs::copy(&image, folder.join(class).join("a.png")).unwrap();
    }
    let (error, _) = fails(&self::request("digits", &folder));
    let expected = format!("{}: class 12", folder.join("12").display());
    assert!(error.message.starts_with(&expected) && error.message.contains("0 to 9"), "{error}");
}

#[test]
fn a_huge_batch_size_runs_one_batch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    std::fs::write(&path, images(5)).unwrap();
    for batch_size in [1_000_000_000_000, usize::MAX] {
        for workers in [0, 2] {
            let batching = Batching { batch_size, workers };
            let request = Request { batching, ..request("digits", &path) };
            let found = evaluate(&request, &[], &mut |_, _| Ok(())).unwrap();
            assert!(found.n_items == 5 && found.batch_size <= 5, "{}", found.batch_size);
            let request = Request { batching, ..self::request("models/bert-tiny", &fixture("models/sentences.txt")) };
            assert!(evaluate(&request, &[], &mut |_, _| Ok(())).unwrap().n_items > 0);
        }
    }
}

/// Writes a single-channel PNG of `width` by `height`.
fn grey(path: &Path, width: u32, height: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::GrayImage::from_fn(width, height, |x, y| image::Luma([(x ^ y) as u8])).save(path).unwrap();
}

#[test]
fn extremely_long_images_are_tiled_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    grey(&dir.path().join("a/long.png"), 1, 60_000);
    grey(&dir.path().join("b/wide.png"), 60_000, 1);
    let mut request = request("models/resnet18-tiny.pth", dir.path());
    let found = evaluate(&request, &[], &mut |_, _| Ok(())).unwrap();
    assert_eq!((found.n_items, found.n_skipped), (2, 0));
    // Tiles cover the whole image; an image that is too large is skipped, or refused by name in strict mode.
    (request.data.tile, request.data.size, request.data.strict) = (Some(64), Some(256), true);
    let (error, _) = fails(&request);
    assert_eq!(error.exit_code(), 4);
    assert!(error.message.contains("long.png: it has 15360000x256 pixels after scaling"), "{error}");
}

#[test]
fn sizes_above_the_maximum_are_refused() {
    let mut request = request("models/resnet18-tiny.pth", &fixture("models/images"));
    request.data.size = Some(100_000);
    let (error, _) = fails(&request);
    assert_eq!(error.exit_code(), 2);
    assert!(error.message.contains("data.size: found 100000, expected at most 16384"), "{error}");
    (request.data.size, request.data.crop) = (Some(100_000), Some([100_000, 100_000]));
    assert_eq!(fails(&request).0.exit_code(), 2);
    (request.data.size, request.data.crop) = (None, Some([20_000, 20_000]));
    assert_eq!(fails(&request).0.exit_code(), 2);
    // The maximum is accepted: only the cropped part is scaled.
    (request.data.size, request.data.crop) = (Some(16_384), Some([32, 32]));
    assert_eq!(evaluate(&request, &[], &mut |_, _| Ok(())).unwrap().n_items, 4);
}

#[test]
fn settings_without_effect_are_refused() {
    let text = fixture("models/sentences.txt");
    let mut request = request("models/bert-tiny", &text);
    request.data.labels = Some("/nonexistent".into());
    let (error, _) = fails(&request);
    assert_eq!(error.exit_code(), 2);
    assert!(error.message.starts_with("data.labels: it gives the labels of an array"), "{error}");
    let mut request = self::request("models/resnet18-tiny.pth", &fixture("models/images"));
    request.data.max_length = Some(3);
    assert!(fails(&request).0.message.contains("it cuts texts, but the data is a folder of images; leave it out"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    std::fs::write(&path, npy("<f4", "1, 8, 8", &[0; 256])).unwrap();
    let mut request = self::request("digits", &path);
    request.data.normalize = Some(briquette_models::data::Normalize { mean: vec![0.0], std: vec![1.0] });
    assert!(fails(&request).0.message.contains("data.normalize: it applies to images of bytes"));
}

#[test]
fn errors_keep_their_kind_and_name_a_path() {
    let dir = tempfile::tempdir().unwrap();
    grey(&dir.path().join("a/one.png"), 40, 40);
    let spec = DataSpec { path: dir.path().to_path_buf(), strict: true, ..DataSpec::default() };
    let data = spec.open(ModelTask::Classifier).unwrap();
    let model = LoadedModel::open(&fixture("models/resnet18-tiny.pth"), None, &Device::default()).unwrap();
    let run = |spec: &DataSpec, workers: usize| {
        let batching = Batching { batch_size: 1, workers };
        evaluate::run(&model, &data, spec, batching, &mut |_, _| Ok(())).unwrap_err()
    };
    std::fs::remove_file(dir.path().join("a/one.png")).unwrap();
    for workers in [0, 2] {
        let error = run(&spec, workers);
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
        assert!(error.message.starts_with(&format!("{}/a/one.png: cannot open", dir.path().display())), "{error}");
    }
    let error = run(&DataSpec { strict: false, ..spec.clone() }, 1);
    assert!(error.message.starts_with(&format!("{}: no image decodes", dir.path().display())), "{error}");
    let text = dir.path().join("s.txt");
    std::fs::write(&text, "cat").unwrap();
    let document = DataSpec { path: text.clone(), ..DataSpec::default() };
    let data = document.open(ModelTask::Decoder).unwrap();
    let error = evaluate::run(&model, &data, &document, Batching::default(), &mut |_, _| Ok(())).unwrap_err();
    let expected = format!("{}: resnet18 cannot be evaluated on this kind of data", text.display());
    assert!(error.message.starts_with(&expected), "{error}");
}

#[test]
fn a_reference_for_other_data_is_refused_before_running() {
    let mut request = request("models/bert-tiny", &fixture("models/sentences.txt"));
    request.reference = Some(fixture("models/llama-tied"));
    let (error, n_batches) = fails(&request);
    assert_eq!((error.exit_code(), n_batches), (2, 0));
    assert!(
        error.message.contains("llama-tied: found llama, expected a model that takes the same data as bert"),
        "{error}"
    );
}
