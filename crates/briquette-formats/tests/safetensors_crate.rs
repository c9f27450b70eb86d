//! Compares our streaming reader and writer of safetensors with the `safetensors` crate, on random files.

use briquette_core::DType;
use briquette_formats::{Checkpoint, TensorSource, safetensors as ours};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::collections::BTreeMap;

/// A tensor by name: its type, shape and bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The types that both readers support, in our and in their words.
const TYPES: [(DType, Dtype); 13] = [
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I8, Dtype::I8),
    (DType::U8, Dtype::U8),
    (DType::I64, Dtype::I64),
    // A damaged byte can turn a type into one of the same size.
    (DType::I16, Dtype::I16),
    (DType::U16, Dtype::U16),
    (DType::I32, Dtype::I32),
    (DType::U32, Dtype::U32),
    (DType::F64, Dtype::F64),
    (DType::U64, Dtype::U64),
    (DType::C64, Dtype::C64),
];

/// Generates up to five tensors with random names, types, shapes and bytes.
fn any_tensors() -> impl Strategy<Value = Tensors> {
    let tensor = (0..TYPES.len(), prop::collection::vec(0_usize..5, 0..4), any::<u8>());
    prop::collection::btree_map("[a-z0-9._]{1,12}", tensor, 1..5).prop_map(|tensors| {
        let with_bytes = |(name, (which, shape, first)): (String, (usize, Vec<usize>, u8))| {
            let n_bytes = shape.iter().product::<usize>() * TYPES[which].0.n_bits() / 8;
            let bytes = (0..n_bytes).map(|i| first.wrapping_add(i as u8)).collect();
            (name, (TYPES[which].1, shape, bytes))
        };
        tensors.into_iter().map(with_bytes).collect()
    })
}

/// Serializes tensors with the crate.
fn written_by_crate(tensors: &Tensors) -> Vec<u8> {
    let views: BTreeMap<&str, TensorView> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), view(tensor))).collect();
    serialize(views, None).expect("the crate writes what it can view")
}

/// Returns the crate's view of a tensor.
fn view((dtype, shape, bytes): &(Dtype, Vec<usize>, Vec<u8>)) -> TensorView<'_> {
    TensorView::new(*dtype, shape.clone(), bytes).expect("the bytes fill the shape")
}

/// Serializes tensors with our writer.
fn written_by_us(tensors: &Tensors) -> Vec<u8> {
    let own = |dtype: Dtype| TYPES.iter().find(|(_, other)| *other == dtype).expect("a listed type").0;
    let with_own_type = |(name, (dtype, shape, bytes)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
        (name.clone(), (own(*dtype), shape.clone(), bytes.clone()))
    };
    ours::to_file(&tensors.iter().map(with_own_type).collect()).expect("valid tensors")
}

/// Reads every tensor of a file with our reader.
fn read_by_us(file: &[u8]) -> briquette_core::Result<Tensors> {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, file).expect("a small file is written");
    let checkpoint = Checkpoint::open(&path)?;
    let mut found = Tensors::new();
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes)?;
        let dtype = TYPES.iter().find(|(own, _)| *own == info.dtype).expect("a listed type").1;
        found.insert(info.name.to_string(), (dtype, info.shape.0.clone(), bytes));
    }
    Ok(found)
}

/// Reads every tensor of a file with the crate; `None` if it refuses the file.
fn read_by_crate(file: &[u8]) -> Option<Tensors> {
    let tensors = SafeTensors::deserialize(file).ok()?;
    let owned =
        |(name, view): (String, TensorView)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    Some(tensors.tensors().into_iter().map(owned).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn files_of_the_crate_are_read_alike(tensors in any_tensors()) {
        prop_assert_eq!(read_by_us(&written_by_crate(&tensors)).unwrap(), tensors);
    }

    #[test]
    fn the_crate_reads_our_files(tensors in any_tensors()) {
        prop_assert_eq!(read_by_crate(&written_by_us(&tensors)), Some(tensors));
    }

    #[test]
    fn damaged_files_that_we_accept_have_the_same_tensors_for_the_crate(
        tensors in any_tensors(), at in any::<prop::sample::Index>(), to in any::<u8>(),
    ) {
        let mut file = written_by_crate(&tensors);
        let at = at.index(file.len());
        file[at] = to;
        if let Ok(found) = read_by_us(&file) {
            prop_assert_eq!(read_by_crate(&file), Some(found));
        }
    }
}
