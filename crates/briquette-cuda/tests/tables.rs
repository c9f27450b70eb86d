//! Lookup tables on the emulated GPU.

mod support;

use briquette_cuda::decode::{lookup, lookup_bitmask};
use briquette_cuda::{ElemType, pack};
use cubecl_core::ir::IntKind;
use cubecl_core::prelude::*;
use support::cuda::Gpu;
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, codes, floats, kernel};

#[test]
fn table_lookups_give_rows_or_nan() {
    let (gpu, [n_rows, n_cols]) = (Gpu::sm(75), [9, 300]);
    let (table, scales) = (codes(n_rows * n_cols, 2, 1), floats(n_rows, 3));
    let ids: Vec<i32> = vec![0, 8, 3, 9, -1, 3];
    let types = [ElemType::Int(IntKind::I32), F32];
    let block = CubeDim::new_1d;
    let kernel = kernel!(gpu, block(256), lookup::Lookup::new, [b b b b], (), (), (), types);
    let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
    let out = || Buffer::poisoned::<f32>(ids.len() * n_cols);
    let cubes = [ids.len() as u32, 1, 1];
    let dense = kernel.run(
        cubes,
        [Buffer::of(&ids), Buffer::of(&pack::rows(&table, n_rows, n_cols)), Buffer::of(&scales), out()],
        [n_rows, n_cols, pack::row_words(n_cols)].map(|n| ByValue::of(n as u32)),
    );
    let kernel = kernel!(gpu, block(32), lookup_bitmask::LookupBitmask::new, [b b b b b b], (), (), (), types);
    let kernel = Emulated::new(gpu, Box::new(kernel)).expect("a compiler");
    let packed = pack::row_bitmasks(&table, n_cols);
    let sparse = kernel.run(
        cubes,
        [
            Buffer::of(&ids),
            Buffer::of(&packed.bits),
            Buffer::of(&packed.values),
            Buffer::of(&packed.bases),
            Buffer::of(&scales),
            out(),
        ],
        [n_rows, n_cols, n_cols.div_ceil(32)].map(|n| ByValue::of(n as u32)),
    );
    for found in [dense[3].to_vec::<f32>(), sparse[5].to_vec::<f32>()] {
        for (&id, found) in ids.iter().zip(found.chunks(n_cols)) {
            let row = usize::try_from(id).ok().filter(|row| *row < n_rows);
            for (col, found) in found.iter().enumerate() {
                match row {
                    Some(row) => assert_eq!(*found, f32::from(table[row * n_cols + col]) * scales[row]),
                    None => assert!(found.is_nan()),
                }
            }
        }
    }
}
