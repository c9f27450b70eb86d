//! Models are written and read again, in one file and in two; damage is found.

use super::*;
use crate::Draft;
use briquette_core::{Error, Result};
use std::path::{Path, PathBuf};

/// `y = x · w + b` with a streamed weight `[400, 3]`, and a vector in memory.
fn model() -> OnnxModel {
    let value =
        |name: &str, width| OnnxValue::new(name, OnnxType::F32, vec![OnnxDim::Named("batch"), OnnxDim::Fixed(width)]);
    let node = |op, inputs: [&str; 2], output: &str| {
        OnnxNode::new(("", op), inputs.map(str::to_string).to_vec(), vec![output.into()], Vec::new())
    };
    let bias = [1.0_f32, -2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    OnnxModel {
        name: "linear".into(),
        opset: 13,
        nodes: vec![node("MatMul", ["x", "w"], "product"), node("Add", ["product", "b"], "y")],
        inputs: vec![value("x", 400)],
        outputs: vec![value("y", 3)],
        tensors: vec![
            OnnxTensor { name: "w".into(), dtype: OnnxType::F32, shape: vec![400, 3], data: OnnxData::Streamed(7) },
            OnnxTensor { name: "b".into(), dtype: OnnxType::F32, shape: vec![3], data: OnnxData::Inline(bias) },
        ],
        metadata: vec![("briquette.recipe".into(), "{}".into())],
        carried: None,
    }
}

fn weight() -> Vec<u8> {
    (0..1200).flat_map(|i| (i as f32 / 4.0).to_le_bytes()).collect()
}

fn written(directory: &Path, largest: u64) -> Result<(PathBuf, OnnxWritten)> {
    let target = directory.join("out");
    let draft = Draft::create(&target, &[], false)?;
    let sizes = write_onnx(&model(), &draft, largest, &mut |source, to| {
        assert_eq!(source, 7);
        // In two pieces of unequal sizes.
        let bytes = weight();
        to(&bytes[..20]).and_then(|()| to(&bytes[20..]))
    })?;
    draft.publish()?;
    Ok((target, sizes))
}

fn check(directory: &Path) -> Result<CheckedOnnx> {
    check_onnx(directory, MODEL_FILE, &|| Ok(()))
}

#[test]
fn a_model_is_one_file_or_two_and_reads_back() {
    for largest in [LARGEST_FILE, 1000] {
        let directory = tempfile::tempdir().unwrap();
        let (path, sizes) = written(directory.path(), largest).unwrap();
        assert_eq!(check(&path).unwrap(), CheckedOnnx { n_nodes: 2, n_tensors: 2, n_bytes: 4812 });
        let bytes = std::fs::read(path.join(MODEL_FILE)).unwrap();
        assert_eq!(bytes.len() as u64, sizes.model_bytes);
        let holds_weight = bytes.windows(4800).any(|window| window == weight());
        let is_whole = largest == LARGEST_FILE;
        assert_eq!((holds_weight, sizes.data_bytes), (is_whole, if is_whole { 0 } else { 4800 }));
        assert_eq!(path.join(DATA_FILE).exists(), !is_whole);
        if !is_whole {
            assert_eq!(std::fs::read(path.join(DATA_FILE)).unwrap(), weight());
        }
        let hash = crate::sums::sha256_of_bytes(&weight());
        assert!(bytes.windows(64).any(|window| window == hash.as_bytes()));
    }
}

#[test]
fn a_model_whose_nodes_alone_are_too_large_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let error = written(directory.path(), 100).unwrap_err();
    assert_eq!(error.exit_code(), 6);
    assert!(error.to_string().contains("without its weights"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing stays");
}

#[test]
fn a_source_with_too_few_or_too_many_bytes_is_a_bug_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for n_bytes in [4799, 4801] {
        let draft = Draft::create(&directory.path().join("out"), &[], false).unwrap();
        let error = write_onnx(&model(), &draft, LARGEST_FILE, &mut |_, to| to(&vec![0; n_bytes])).unwrap_err();
        assert_eq!(error.exit_code(), 1, "{error}");
        drop(draft);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    let draft = Draft::create(&directory.path().join("out"), &[], false).unwrap();
    let failing = write_onnx(&model(), &draft, LARGEST_FILE, &mut |_, _| Err(Error::interrupted(2)));
    assert_eq!(failing.unwrap_err().exit_code(), 130);
}

/// No damage may panic, and damage of weights is always found.
#[test]
fn truncated_and_flipped_files_are_found_or_harmless() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = written(directory.path(), LARGEST_FILE).unwrap();
    let file = path.join(MODEL_FILE);
    let whole = std::fs::read(&file).unwrap();
    let start = whole.windows(4800).position(|window| window == weight()).unwrap();
    for end in (0..whole.len()).filter(|end| !(start + 9..start + 4790).contains(end)) {
        std::fs::write(&file, &whole[..end]).unwrap();
        if let Err(error) = check(&path) {
            assert_eq!(error.exit_code(), 4, "{end}: {error}");
            assert!(!error.to_string().contains('\n'));
        } else {
            // The graph is whole; only hashes or metadata are cut off between two fields.
            assert!(end > start + 4800, "{end}");
        }
    }
    for at in (0..whole.len()).filter(|at| !(start + 9..start + 4790).contains(at)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&file, &bytes).unwrap();
        let found = check(&path);
        if (start..start + 4800).contains(&at) {
            assert!(found.unwrap_err().to_string().contains("SHA-256"), "{at}");
        }
    }
}
