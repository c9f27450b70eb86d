//! Tests a table that is also the head.

use briquette_formats::Checkpoint;
use briquette_nn::layers::{Embedding, EmbeddingConfig};
use briquette_nn::{
    Compression, DynamicSpec, Export, NameMap, Quantize, held, load_compressed, load_into, parameters, quantize_dynamic,
};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};

#[derive(Module, Debug)]
struct Tied {
    table: Embedding,
}

impl Tied {
    fn new() -> Self {
        Self { table: EmbeddingConfig::new(50, 64).init(&Device::flex()).as_head() }
    }

    /// Returns the looked-up rows, and their products with every row.
    fn forward(&self) -> [Tensor<3>; 2] {
        let ids = Tensor::<2, Int>::from_data([[1, 49, 0], [7, 7, 30]], &Device::flex());
        let found = self.table.forward(ids);
        [found.clone(), self.table.product(found)]
    }
}

/// Returns the largest difference, relative to the largest value.
fn apart(a: &Tensor<3>, b: &Tensor<3>) -> f32 {
    (a.clone() - b.clone()).abs().max().into_scalar::<f32>() / a.clone().abs().max().into_scalar::<f32>()
}

#[test]
fn only_tables_marked_as_head_are_heads() {
    assert!(parameters(&Tied::new())[0].is_head);
    let table = EmbeddingConfig::new(5, 4).init(&Device::flex());
    assert!(!parameters(&Tied { table })[0].is_head);
}

#[test]
fn tied_codes_are_stored_once_for_lookup_and_product() {
    let plain = Tied::new();
    let quick = quantize_dynamic(plain.clone(), &DynamicSpec::new()).unwrap().module;
    let found = held(&quick);
    assert_eq!((found.len(), found["int8"].n_weights), (1, 50 * 64), "{found:?}");
    for (plain, quick) in plain.forward().iter().zip(&quick.forward()) {
        assert!(apart(plain, quick) < 0.02);
    }
    let undone = quick.clone().materialize();
    assert_eq!(
        undone.forward()[0].to_data(),
        quick.forward()[0].to_data(),
        "looked-up rows are the dequantized values"
    );
}

#[test]
fn a_head_is_trained_on_the_rounded_inputs_that_its_codes_get() {
    for scheme in ["int8-dynamic", "int8-dynamic-sym", "int4-g32-dynamic", "int4-dynamic"] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("model");
        let rules = Compression::new().quantize(Quantize::new("table.weight", scheme).unwrap());
        let trained = rules.attach(Tied::new()).unwrap();
        Export::to(&out).write(&trained).unwrap();
        let served = load_compressed(Tied::new(), &Checkpoint::open(&out).unwrap(), &NameMap::torch()).unwrap();
        let ([rows, scores], [looked_up, products]) = (trained.forward(), served.forward());
        assert_eq!(rows.into_data(), looked_up.into_data(), "{scheme}");
        assert!(apart(&scores, &products) <= 1e-5, "{scheme}: {}", apart(&scores, &products));
        let plain = trained.materialize().forward();
        // Rows of the table are on a symmetric grid already.
        let has_effect = apart(&plain[1], &products) > 1e-4;
        assert!(has_effect || scheme == "int8-dynamic-sym", "{scheme}: rounding has an effect");
    }
}

#[test]
fn directories_load_as_codes_with_the_same_values() {
    for (scheme, kind, tolerance) in [
        ("int8-dynamic", "int8", 0.03),
        ("int8", "int8 weight-only", 1e-5),
        ("int4", "int4", 1e-5),
        ("int4-g8", "int4", 1e-5),
        ("int4-g8-dynamic", "int4 by int8", 0.03),
        ("int4-dynamic", "int4 by int8", 0.03),
        ("int8-g8", "f32", 0.0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let rules = Compression::new().quantize(Quantize::new("table.weight", scheme).unwrap());
        let out = dir.path().join("model");
        Export::to(&out).write(&rules.attach(Tied::new()).unwrap()).unwrap();
        let (checkpoint, names) = (Checkpoint::open(&out).unwrap(), NameMap::torch());
        let floats = load_into(Tied::new(), &checkpoint, &names).unwrap();
        let codes = load_compressed(Tied::new(), &checkpoint, &names).unwrap();
        assert_eq!(held(&codes).keys().collect::<Vec<_>>(), [kind], "{scheme}");
        let ([found, scores], [looked_up, products]) = (floats.forward(), codes.forward());
        assert_eq!(found.into_data(), looked_up.into_data(), "{scheme}");
        assert!(apart(&scores, &products) <= tolerance, "{scheme}");
        // Values loaded a second time stay codes.
        let products = codes.forward()[1].to_data();
        let again = load_compressed(codes, &checkpoint, &names).unwrap();
        assert_eq!(again.forward()[1].to_data(), products, "{scheme}");
    }
}
