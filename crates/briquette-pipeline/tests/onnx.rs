//! Exports to ONNX: what is written, read again, verified, replaced and refused.

use briquette_pipeline::onnx::{
    DynamicInt8, OnnxExport, OnnxFloat, OnnxInt8, OnnxRequest, export, is_onnx_output, verify_onnx,
};
use briquette_pipeline::{Recipe, RunOptions};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn options(force: bool) -> RunOptions {
    RunOptions { threads: 1, force, ..RunOptions::default() }
}

/// Compresses a fixture with flags of a recipe.
fn compressed(model: &str, scheme: &str, out: &Path) {
    let text = format!(
        "[model]\npath = {:?}\n[output]\npath = {:?}\n[[stage]]\nkind = \"quantize\"\nscheme = {scheme:?}\n",
        fixture(model),
        out
    );
    let path = out.with_extension("toml");
    std::fs::write(&path, text).unwrap();
    briquette_pipeline::run(&Recipe::from_file(&path).unwrap(), &options(false)).unwrap();
}

fn exported(model: &Path, out: &Path) -> OnnxExport {
    export(&OnnxRequest::new(model, out), &options(false)).unwrap()
}

#[test]
fn an_output_is_verified_replaced_with_force_and_damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let found = exported(&fixture("families/bert"), &out);
    assert_eq!((found.opset, found.data_bytes), (17, 0));
    assert!(is_onnx_output(&out).unwrap() && out.join("config.json").exists());
    let verified = verify_onnx(&out, &options(false)).unwrap();
    assert_eq!(verified.n_nodes, found.n_nodes);

    let request = OnnxRequest::new(&fixture("families/bert"), &out);
    assert_eq!(export(&request, &options(false)).unwrap_err().exit_code(), 6);
    export(&OnnxRequest { float: OnnxFloat::F16, ..request }, &options(true)).unwrap();

    let file = out.join("model.onnx");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(verify_onnx(&out, &options(false)).unwrap_err().exit_code(), 4);
}

#[test]
fn a_large_model_has_a_second_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let request = OnnxRequest { largest_file: 60_000, ..OnnxRequest::new(&fixture("digits"), &out) };
    let found = export(&request, &options(false)).unwrap();
    assert!(found.data_bytes > 100_000 && found.model_bytes < 60_000, "{found:?}");
    assert_eq!(std::fs::metadata(out.join("model.onnx_data")).unwrap().len(), found.data_bytes);
    verify_onnx(&out, &options(false)).unwrap();
    let data = out.join("model.onnx_data");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&data, &bytes).unwrap();
    assert!(verify_onnx(&out, &options(false)).is_err());
}

#[test]
fn codes_become_the_operators_of_their_scheme() {
    let dir = tempfile::tempdir().unwrap();
    for (scheme, form, n) in [("int8-dynamic", "int8-dynamic", 14), ("int8", "int8", 14), ("int4-g16", "blocks", 12)] {
        let (small, out) = (dir.path().join(scheme), dir.path().join(format!("{scheme}-onnx")));
        compressed("families/bert", scheme, &small);
        let found = exported(&small, &out);
        assert!(found.weights.get(form).is_some_and(|found| *found >= n), "{scheme}: {found:?}");
        let bytes = std::fs::read(out.join("model.onnx")).unwrap();
        assert!(bytes.windows(16).any(|window| window == b"briquette.recipe"), "{scheme}");
    }
}

#[test]
fn a_dense_model_gets_integer_products_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let int8 = Some(OnnxInt8::Dynamic(DynamicInt8::default()));
    let request = OnnxRequest { int8, ..OnnxRequest::new(&fixture("families/bert"), &out) };
    let found = export(&request, &options(false)).unwrap();
    assert!(found.weights["int8-dynamic"] >= 14 && found.n_input_scales == 0, "{found:?}");
}

#[test]
fn experts_get_codes_and_onnx_models_f16_weights() {
    let dir = tempfile::tempdir().unwrap();
    let int8 = Some(OnnxInt8::Dynamic(DynamicInt8::default()));
    for (name, n_experts) in [("mixtral", 4), ("qwen3_moe", 4)] {
        let model = fixture("families").join(name);
        let request = OnnxRequest { int8: int8.clone(), ..OnnxRequest::new(&model, &dir.path().join(name)) };
        let found = export(&request, &options(false)).unwrap();
        assert!(found.weights["int8-dynamic"] > 3 * n_experts, "{found:?}");
    }
    let first = exported(&fixture("families/bert"), &dir.path().join("bert"));
    let model = dir.path().join("bert/model.onnx");
    let request = OnnxRequest { float: OnnxFloat::F16, ..OnnxRequest::new(&model, &dir.path().join("half")) };
    let found = export(&request, &options(false)).unwrap();
    assert!(found.weights["f16"] > 20 && found.model_bytes < first.model_bytes, "{found:?}");
    verify_onnx(&request.output, &options(false)).unwrap();
}

#[test]
fn refusals_are_one_line_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let request = OnnxRequest::new(&fixture("digits-data.safetensors"), &dir.path().join("out"));
    let error = export(&request, &options(false)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("expected a model of a family") && !text.contains('\n'), "{text}");
    assert_eq!(error.exit_code(), 4, "{text}");

    // A model whose weights are f16 already has none that become f16.
    let file = dir.path().join("half/model.onnx");
    let half = OnnxRequest { float: OnnxFloat::F16, ..OnnxRequest::new(&fixture("digits"), file.parent().unwrap()) };
    export(&half, &options(false)).unwrap();
    let again = OnnxRequest { model: file, output: dir.path().join("again"), ..half };
    let error = export(&again, &options(false)).unwrap_err();
    assert!(error.message.contains("no weight that becomes f16"), "{error}");
    assert!(!again.output.exists());
}
