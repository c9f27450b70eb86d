//! The emulator itself: correct matrix products and reductions, and detection of faulty kernels.
#![expect(missing_docs, reason = "CubeCL's macro generates public items")]

mod support;

use cubecl_core as cubecl;
use cubecl_core::cmma::{MatrixIdent, MmaDefinition};
use cubecl_core::prelude::*;
use half::{bf16, f16};
use proptest::prelude::*;
use support::cuda::{Gpu, buffer};
use support::emulator::{Buffer, ByValue, Emulated};

/// `out[16, 8] = a[16, 32] * b[8, 32]^T` by one warp, in one instruction.
#[cube(launch_unchecked)]
pub fn tile(a: &[Vector<i8, Const<4>>], b: &[Vector<i8, Const<4>>], out: &mut [i32]) {
    let def = MmaDefinition::<i8, i8, i32>::new(16usize, 8usize, 32usize);
    let lane = UNIT_POS_PLANE;
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);
    let mut fragment_a = Array::<Vector<i8, NA>>::new(def.vectors_per_lane(MatrixIdent::A));
    let mut fragment_b = Array::<Vector<i8, NB>>::new(def.vectors_per_lane(MatrixIdent::B));
    let mut zeros = Array::<Vector<i32, NC>>::new(def.vectors_per_lane(MatrixIdent::Accumulator));
    #[unroll]
    for i in 0..def.vectors_per_lane(MatrixIdent::Accumulator) {
        zeros[i] = Vector::cast_from(0i32);
    }
    #[unroll]
    for i in 0..def.vectors_per_lane(MatrixIdent::A) {
        let (row, column) = def.position_of_nth(lane, comptime!((i * 4) as u32), MatrixIdent::A);
        fragment_a[i] = Vector::cast_from(a[row as usize * 8 + column as usize / 4]);
    }
    #[unroll]
    for i in 0..def.vectors_per_lane(MatrixIdent::B) {
        let (row, column) = def.position_of_nth(lane, comptime!((i * 4) as u32), MatrixIdent::B);
        fragment_b[i] = Vector::cast_from(b[column as usize * 8 + row as usize / 4]);
    }
    let product = def.execute(&fragment_a, &fragment_b, &zeros);
    let per_vector = def.vector_size(MatrixIdent::Accumulator);
    #[unroll]
    for i in 0..def.vectors_per_lane(MatrixIdent::Accumulator) {
        #[unroll]
        for j in 0..per_vector {
            let nth = comptime!((i * per_vector + j) as u32);
            let (row, column) = def.position_of_nth(lane, nth, MatrixIdent::Accumulator);
            out[row as usize * 8 + column as usize] = product[i].extract(j);
        }
    }
}

/// Computes `sums[block]`, the dot products of four bytes of all threads, through shared memory.
///
/// A test omits the `barrier`.
#[cube(launch_unchecked)]
pub fn dot(a: &[i32], b: &[i32], sums: &mut [i32], #[comptime] barrier: bool) {
    let mut shared = Shared::<[i32]>::new_slice(64usize);
    let unit = UNIT_POS as usize;
    shared[unit] = dp4a(a[ABSOLUTE_POS], b[ABSOLUTE_POS], 0i32);
    let mut half = 32usize;
    while half > 0usize {
        if barrier {
            sync_cube();
        }
        if unit < half {
            let (left, right) = (shared[unit], shared[unit + half]);
            shared[unit] = left + right;
        }
        half /= 2usize;
    }
    if unit == 0usize {
        sums[CUBE_POS] = shared[0usize];
    }
}

/// Computes the sum of each warp, and the value `offset` threads away from each thread.
#[cube(launch_unchecked)]
pub fn warps<F: Float>(x: &[F], sums: &mut [F], shifted: &mut [F], offset: u32) {
    let sum = plane_sum(x[ABSOLUTE_POS]);
    if UNIT_POS_PLANE == 0u32 {
        sums[PLANE_POS as usize] = sum;
    }
    shifted[ABSOLUTE_POS] = x[ABSOLUTE_POS + offset as usize] * F::cast_from(3u32);
}

/// Has a barrier that only the first half of a warp reaches.
#[cube(launch_unchecked)]
pub fn divergent(x: &mut [u32]) {
    if UNIT_POS < 16u32 {
        sync_cube();
    } else {
        x[UNIT_POS as usize] = plane_sum(UNIT_POS);
    }
}

/// Converts numbers to another type.
#[cube(launch_unchecked)]
pub fn convert<A: Numeric, B: Numeric>(from: &[A], to: &mut [B]) {
    to[ABSOLUTE_POS] = B::cast_from(from[ABSOLUTE_POS]);
}

/// Has undefined behaviour in C++ if `by` is large: an array index, and a shift.
#[cube(launch_unchecked)]
pub fn undefined(out: &mut [u32], by: u32) {
    let mut local = Array::<u32>::new(4usize);
    local[(by % 64u32) as usize] = 1u32 << by;
    out[UNIT_POS as usize] = local[(by % 64u32) as usize];
}

const GPU: u32 = 80;

fn product(a: &[i8], b: &[i8]) -> Vec<i32> {
    let dot = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum();
    a.chunks(32).flat_map(|row| b.chunks(32).map(move |column| dot(row, column))).collect()
}

fn run_warps<F: Float + CubeElement>(x: &[F], offset: u32) -> Option<Result<Vec<Buffer>, String>> {
    let gpu = Gpu::sm(GPU);
    let settings = gpu.settings(CubeDim::new_1d(64));
    let kernel = warps::Warps::<F>::new(settings, gpu.properties(), gpu.target(), buffer(), buffer(), buffer(), ());
    let kernel = Emulated::new(gpu, Box::new(kernel))?;
    let buffers = [Buffer::of(x), Buffer::poisoned::<F>(2), Buffer::poisoned::<F>(64)];
    Some(kernel.try_run([1, 1, 1], buffers, [ByValue::of(offset)]))
}

fn run_convert<A: Numeric + CubeElement, B: Numeric + CubeElement>(from: &[A]) -> Option<Result<Vec<B>, String>> {
    let gpu = Gpu::sm(GPU);
    let settings = gpu.settings(CubeDim::new_1d(64));
    let kernel = convert::Convert::<A, B>::new(settings, gpu.properties(), gpu.target(), buffer(), buffer());
    let kernel = Emulated::new(gpu, Box::new(kernel))?;
    let blocks = from.len() as u32 / 64;
    let out = kernel.try_run([blocks, 1, 1], [Buffer::of(from), Buffer::poisoned::<B>(from.len())], []);
    Some(out.map(|out| out[1].to_vec()))
}

fn run_dot(barrier: bool, a: &[i8], b: &[i8]) -> Option<Result<Vec<Buffer>, String>> {
    let gpu = Gpu::sm(75);
    let settings = gpu.settings(CubeDim::new_1d(64));
    let kernel = dot::Dot::new(settings, gpu.properties(), gpu.target(), buffer(), buffer(), buffer(), barrier);
    let kernel = Emulated::new(gpu, Box::new(kernel))?;
    let blocks = a.len() / 256;
    Some(kernel.try_run([blocks as u32, 1, 1], [Buffer::of(a), Buffer::of(b), Buffer::poisoned::<i32>(blocks)], []))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn tensor_core_products_agree_with_integer_products(
        a in proptest::collection::vec(any::<i8>(), 16 * 32),
        b in proptest::collection::vec(any::<i8>(), 8 * 32),
    ) {
        let gpu = Gpu::sm(GPU);
        let settings = gpu.settings(CubeDim::new_1d(32));
        let kernel = tile::Tile::new(settings, gpu.properties(), gpu.target(), buffer(), buffer(), buffer());
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return Ok(()) };
        let out = kernel.run([1, 1, 1], [Buffer::of(&a), Buffer::of(&b), Buffer::poisoned::<i32>(128)], []);
        prop_assert_eq!(out[2].to_vec::<i32>(), product(&a, &b));
    }

    #[test]
    fn a_reduction_through_shared_memory_is_the_sum(
        a in proptest::collection::vec(any::<i8>(), 3 * 256),
        b in proptest::collection::vec(any::<i8>(), 3 * 256),
    ) {
        let Some(out) = run_dot(true, &a, &b) else { return Ok(()) };
        let sums: Vec<i32> = a.chunks(256).zip(b.chunks(256)).map(|(a, b)| product_sum(a, b)).collect();
        prop_assert_eq!(out.unwrap()[2].to_vec::<i32>(), sums);
    }
}

fn product_sum(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
}

#[test]
fn a_missing_barrier_is_found() {
    let ones = [1i8; 256];
    let Some(out) = run_dot(false, &ones, &ones) else { return };
    assert!(out.unwrap_err().contains("order of threads"));
}

#[test]
fn a_warp_adds_its_values() {
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let Some(out) = run_warps(&x, 0) else { return };
    let out = out.unwrap();
    assert_eq!(out[1].to_vec::<f32>(), [496.0, 1520.0]);
    assert_eq!(out[2].to_vec::<f32>(), x.iter().map(|x| x * 3.0).collect::<Vec<_>>());
}

#[test]
fn an_access_outside_of_a_buffer_is_found_in_either_direction() {
    let x = [1.0f32; 64];
    for offset in [1u32, u32::MAX, 1 << 20] {
        let Some(out) = run_warps(&x, offset) else { return };
        let error = out.unwrap_err();
        assert!(error.contains("accessed"), "{error}");
    }
}

#[test]
fn a_divergent_barrier_is_found() {
    let gpu = Gpu::sm(GPU);
    let settings = gpu.settings(CubeDim::new_1d(32));
    let kernel = divergent::Divergent::new(settings, gpu.properties(), gpu.target(), buffer());
    let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
    let error = kernel.try_run([1, 1, 1], [Buffer::poisoned::<u32>(32)], []).unwrap_err();
    assert!(error.contains("__syncthreads") && error.contains("a shuffle"), "{error}");
}

#[test]
fn half_floats_convert_exactly() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = bits.iter().map(|&bits| f16::from_bits(bits)).collect();
    let Some(floats) = run_convert::<f16, f32>(&halves) else { return };
    let floats = floats.unwrap();
    for (half, float) in halves.iter().zip(&floats) {
        assert!(half.to_f32() == *float || half.is_nan() && float.is_nan(), "{half} became {float}");
    }
    let back = run_convert::<f32, f16>(&floats).unwrap().unwrap();
    assert!(
        halves.iter().zip(&back).all(|(half, back)| half.to_bits() == back.to_bits() || half.is_nan() && back.is_nan())
    );
}

#[test]
fn a_float_is_rounded_to_the_nearest_half() {
    let floats: Vec<f32> = (0..65536u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).collect();
    let Some(halves) = run_convert::<f32, f16>(&floats) else { return };
    let brains = run_convert::<f32, bf16>(&floats).unwrap().unwrap();
    for ((float, half), brain) in floats.iter().zip(halves.unwrap()).zip(brains) {
        assert!(float.is_nan() || half.to_bits() == f16::from_f32(*float).to_bits(), "{float:e} became {half:e}");
        assert!(float.is_nan() || brain.to_bits() == bf16::from_f32(*float).to_bits(), "{float:e} became {brain:e}");
    }
}

#[test]
fn out_of_range_integer_conversions_are_found() {
    let Some(out) = run_convert::<f32, i8>(&[-128.0; 64]) else { return };
    assert_eq!(out.unwrap(), [-128i8; 64]);
    for float in [128.0f32, -129.0, f32::NAN] {
        let error = run_convert::<f32, i8>(&[float; 64]).unwrap().unwrap_err();
        assert!(error.contains("converted to an integer of 1 bytes"), "{error}");
    }
}

#[test]
fn an_index_or_a_shift_out_of_range_is_found() {
    let gpu = Gpu::sm(GPU);
    let settings = gpu.settings(CubeDim::new_1d(1));
    let kernel = undefined::Undefined::new(settings, gpu.properties(), gpu.target(), buffer(), ());
    let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
    let run = |by: u32| kernel.try_run([1, 1, 1], [Buffer::poisoned::<u32>(1)], [ByValue::of(by)]);
    assert_eq!(run(3).unwrap()[0].to_vec::<u32>(), [8]);
    assert!(run(4).unwrap_err().contains("index 4 of an array of 4"));
    assert!(run(64).unwrap_err().contains("shifted"));
}

#[test]
fn launches_with_wrong_scalars_are_found() {
    let gpu = Gpu::sm(GPU);
    let settings = gpu.settings(CubeDim::new_1d(1));
    let kernel = undefined::Undefined::new(settings, gpu.properties(), gpu.target(), buffer(), ());
    let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
    let error = kernel.try_run([1, 1, 1], [Buffer::poisoned::<u32>(1)], []).unwrap_err();
    assert!(error.contains("the scalars or their types differ"), "{error}");
}
