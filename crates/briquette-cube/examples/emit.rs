#![allow(warnings, clippy::all)]
use cubecl_core as cubecl;
use cubecl_core::{ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties, features::{Features, MmaConfig}}, prelude::*};
use cubecl_runtime::kernel::CubeKernel;
use std::{ffi::*, sync::Arc};
use briquette_cube::*;
pub fn props() -> DeviceProperties {
    let mut p = DeviceProperties::new(Features::default(), MemoryDeviceProperties::new(u64::MAX, 256), HardwareProperties {
        load_width: 128, vector_register_count: None, plane_size_min: 32, plane_size_max: 32, max_bindings: 32, max_shared_memory_size: 227 * 1024,
        max_cube_count: (u32::MAX, 65535, 65535), max_units_per_cube: 1024, max_cube_dim: (1024, 1024, 64), num_streaming_multiprocessors: Some(132), num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8), num_cpu_cores: None, last_level_cache_size: None, max_vector_size: VectorSize::MAX, cube_mma_reserved_shared_memory: 0 },
        cubecl_core::profile::TimingMethod::Device, DeviceIdentity { name: "offline".into(), fingerprint: "offline".into(), physical: None });
    cubecl_cpp::register_supported_types(&mut p);
    p
}
fn target() -> TargetProperties {
    use cubecl_core::ir::{MmaProperties, ContiguousElements};
    TargetProperties { mma: MmaProperties { register_size_bits: 32, const_plane_size: 32, register_layout_a: cmma::MatrixLayout::RowMajor, register_layout_b: cmma::MatrixLayout::ColMajor, register_layout_acc: cmma::MatrixLayout::RowMajor,
        register_duplication_a: 1, register_duplication_b: 1, register_duplication_acc: 1, contiguous_elements: ContiguousElements::new(cubecl_cpp::cuda::mma::manual::contiguous_elements_cuda) } }
}
fn b() -> BufferCompilationArg { BufferCompilationArg { inplace: None } }
pub fn cuda_source(k: &dyn CubeKernel) -> String {
    let o = cubecl_cpp::shared::CompilationOptions { warp_size: 32, supports_features: cubecl_cpp::shared::CppSupportedFeatures { fast_math: true, dp4a: true, grid_constants: true, clusters: true, elect_sync: true, fast_tanh: true }, ..Default::default() };
    let mut c = cubecl_cpp::shared::CppCompiler::<cubecl_cpp::target::Cuda>::default();
    format!("{}", cubecl_core::Compiler::compile(&mut c, k.define(), &o).expect("codegen"))
}
fn main() {
    let (p, t) = (Arc::new(props()), Arc::new(target()));
    let su = |d: CubeDim| KernelSettings::new(*d, ExecutionMode::Unchecked, cubecl_core::ir::AddressType::U32);
    let which = std::env::args().nth(1).unwrap();
    let f = cubecl_core::ir::ElemType::Float(cubecl_core::ir::FloatKind::F32);
    let k: Box<dyn CubeKernel> = match &*which {
        "quantize" => Box::new(quantize_rows::quantize_rows::QuantizeRows::new(su(CubeDim::new_1d(256)), p, t, b(), b(), b(), b(), (), (), false, f)),
        "dp4a" => Box::new(briquette_cube::dp4a::product_dp4a::ProductDp4a::new(su(CubeDim::new_1d(256)), p, t, b(), b(), b(), b(), b(), b(), b(), b(), b(), (), (), (), finish::TargetCompilationArg{image_rows:(),image_stride:(),row_stride:(),col_stride:(),first_row:()}, finish::Finish::default(), f)),
        _ => Box::new(mma::product_mma::ProductMma::new(su(CubeDim::new_2d(32, 4)), p, t, b(), b(), b(), b(), b(), b(), b(), b(), b(), (), (), (), finish::TargetCompilationArg{image_rows:(),image_stride:(),row_stride:(),col_stride:(),first_row:()}, mma::Tile::LARGE, finish::Finish::default(), f)),
    };
    println!("{}", cuda_source(&*k));
}
