//! The CUDA C++ of a kernel, generated for a compute capability like `cubecl-cuda` does.

use std::sync::Arc;

use cubecl_core::cmma::MatrixLayout;
use cubecl_core::ir::features::{MmaConfig, Plane};
use cubecl_core::ir::{
    AddressType, ContiguousElements, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    IntKind, MemoryDeviceProperties, MmaProperties, OpaqueType, TargetProperties,
};
use cubecl_core::prelude::*;
use cubecl_cpp::cuda::arch::CudaArchitecture;
use cubecl_cpp::cuda::mma::manual::contiguous_elements_cuda;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures, register_mma_features};
use cubecl_cpp::target::Cuda;
use cubecl_runtime::kernel::CubeKernel;

/// A compute capability to generate kernels for; 75 for 7.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    version: u32,
}

/// A kernel as it is passed to NVRTC.
#[derive(Clone, Debug)]
pub(crate) struct CudaSource {
    /// The function's name in `text`.
    pub(crate) name: String,
    pub(crate) text: String,
    /// Shared memory that a launch reserves for each block.
    pub(crate) shared_bytes: usize,
    /// The threads of a block, which are part of the kernel.
    pub(crate) block: [u32; 3],
}

/// Returns the compilation argument of a buffer without aliases.
pub(crate) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

impl Gpu {
    pub(crate) fn sm(version: u32) -> Self {
        Self { version }
    }

    /// Returns the settings of a kernel for `launch_unchecked`.
    pub(crate) fn settings(self, block: CubeDim) -> KernelSettings {
        KernelSettings::new(*block, ExecutionMode::Unchecked, AddressType::U32)
    }

    /// Returns the properties of a device with this capability, as far as kernels need them.
    pub(crate) fn properties(self) -> Arc<DeviceProperties> {
        let mut properties = DeviceProperties::new(
            Default::default(),
            MemoryDeviceProperties::new(u64::MAX, 512),
            self.hardware(),
            cubecl_core::profile::TimingMethod::Device,
            DeviceIdentity {
                name: format!("sm_{}", self.version),
                fingerprint: format!("ptx_sm{}", self.version),
                physical: None,
            },
        );
        cubecl_cpp::register_supported_types(&mut properties);
        for kind in [FloatKind::F16, FloatKind::BF16] {
            properties.features.matmul.ldmatrix.insert(ElemType::Float(kind));
        }
        properties.register_opaque_type(OpaqueType::Barrier);
        properties.features.copy_async = self.version >= 80;
        properties.features.memory_reinterpret = true;
        properties.features.alignment = true;
        properties.features.device_memory_scope = true;
        properties.features.plane |= Plane::Sync | Plane::Ops | Plane::NonUniformControlFlow;
        let architecture = CudaArchitecture { version: self.version, tensor_cores: true };
        register_mma_features(cubecl_cpp::cuda::supported_mma_combinations(&architecture), &mut properties);
        Arc::new(properties)
    }

    /// Returns whether `briquette_cuda::Gpu` would select kernels with matrix instructions.
    pub(crate) fn has_int8_matrices(self) -> bool {
        let (int8, int32) = (ElemType::Int(IntKind::I8), ElemType::Int(IntKind::I32));
        let config = MmaConfig { a_type: int8, b_type: int8, cd_type: int32, m: 16, n: 8, k: 32 };
        self.properties().features.matmul.mma.contains(&config)
    }

    /// Returns whether `briquette_cuda::Gpu` would select the kernel with matrix instructions of Hopper.
    pub(crate) const fn has_warpgroup_matrices(self) -> bool {
        self.version == 90
    }

    fn hardware(self) -> HardwareProperties {
        let shared_kib = match self.version {
            75 => 64,
            80 => 163,
            86 | 89 | 120.. => 99,
            _ => 227,
        };
        HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: 32,
            plane_size_max: 32,
            max_bindings: 1024,
            max_shared_memory_size: shared_kib << 10,
            max_cube_count: (i32::MAX as u32, 65535, 65535),
            max_units_per_cube: 1024,
            max_cube_dim: (1024, 1024, 64),
            num_streaming_multiprocessors: Some(64),
            num_tensor_cores: Some(4),
            min_tensor_cores_dim: Some(8),
            num_cpu_cores: None,
            last_level_cache_size: None,
            max_vector_size: VectorSize::MAX,
            cube_mma_reserved_shared_memory: 0,
        }
    }

    /// Returns the layout of fragments in the registers of a warp.
    pub(crate) fn target(self) -> Arc<TargetProperties> {
        Arc::new(TargetProperties {
            mma: MmaProperties {
                register_size_bits: 32,
                const_plane_size: 32,
                register_layout_a: MatrixLayout::RowMajor,
                register_layout_b: MatrixLayout::ColMajor,
                register_layout_acc: MatrixLayout::RowMajor,
                register_duplication_a: 1,
                register_duplication_b: 1,
                register_duplication_acc: 1,
                contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
            },
        })
    }

    /// Returns the kernel in CUDA C++.
    ///
    /// # Panics
    /// If CubeCL refuses the kernel, or it needs more shared memory than a block can have.
    pub(crate) fn source(self, kernel: &dyn CubeKernel) -> CudaSource {
        let options = CompilationOptions {
            warp_size: 32,
            supports_features: CppSupportedFeatures {
                fast_math: true,
                dp4a: true,
                grid_constants: true,
                fast_tanh: true,
                clusters: self.version >= 90,
                elect_sync: self.version >= 90,
            },
            ..Default::default()
        };
        let definition = kernel.define();
        let block = definition.settings.cube_dim;
        let compiled = cubecl_core::Compiler::compile(&mut CppCompiler::<Cuda>::default(), definition, &options)
            .unwrap_or_else(|error| panic!("CubeCL cannot compile {}: {error}", kernel.name()));
        let limit = self.hardware().max_shared_memory_size;
        assert!(
            compiled.shared_memory_size <= limit,
            "{} requests {} bytes of shared memory, sm_{} has {limit}",
            kernel.name(),
            compiled.shared_memory_size,
            self.version
        );
        CudaSource {
            name: function_name(&compiled.source),
            text: compiled.source,
            shared_bytes: compiled.shared_memory_size,
            block: [block.x, block.y, block.z],
        }
    }
}

fn function_name(source: &str) -> String {
    let signature = source.split("__global__").nth(1).expect("a kernel has a __global__ function");
    let name = signature.split('(').nth(1).and_then(|bounds| bounds.split_whitespace().last());
    name.expect("a __global__ function has a name after its launch bounds").to_string()
}
