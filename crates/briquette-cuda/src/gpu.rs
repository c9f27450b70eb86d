//! Device buffers, and kernel launches.

use cubecl_core::client::Client;
use cubecl_core::ir::features::{MmaConfig, Tma};
use cubecl_core::ir::{ElemType, FloatKind, IntKind};
use cubecl_core::prelude::CubeCount;
use cubecl_core::server::Handle;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};

/// Contiguous elements in device memory.
#[derive(Clone)]
pub struct DeviceBuffer {
    handle: Handle,
    n_bytes: usize,
}

impl DeviceBuffer {
    /// Wraps memory that another library allocated.
    pub const fn new(handle: Handle, n_bytes: usize) -> Self {
        Self { handle, n_bytes }
    }

    /// Returns the handle for other libraries.
    pub fn into_handle(self) -> Handle {
        self.handle
    }

    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns a range of the bytes.
    ///
    /// # Panics
    /// If the range ends after the buffer.
    pub(crate) fn part(&self, start: usize, n_bytes: usize) -> Self {
        let rest = self.n_bytes.checked_sub(start + n_bytes).expect("a range of the buffer");
        let handle = self.handle.clone().offset_start(start as u64).offset_end(rest as u64);
        Self { handle, n_bytes }
    }

    /// Returns the size of the elements in bytes.
    pub const fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBuffer of {} bytes", self.n_bytes)
    }
}

/// Keeps compiled kernels for later processes, beside the choices of CubeCL's tuner.
///
/// They are in CubeCL's environment: by default `target/environment` of the Cargo project of the working directory, or
/// else the user's cache directory. Other settings are those of `cubecl.toml` and of the environment variables. Has no
/// effect after the first use of a device.
pub fn keep_kernels() {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    CubeClRuntimeConfig::try_set(config);
}

/// A GPU.
#[derive(Clone)]
pub struct Gpu {
    client: Client,
}

impl Gpu {
    /// Returns the device of a client.
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Copies elements to dedicated memory, for data that stays on the device, such as weights.
    pub fn keep<E: bytemuck::Pod + Sync>(&self, elements: &[E]) -> DeviceBuffer {
        self.client.memory_persistent_allocation(elements, |elements| self.copy(elements))
    }

    /// Copies elements to pooled memory, for short-lived data.
    pub fn copy<E: bytemuck::Pod>(&self, elements: &[E]) -> DeviceBuffer {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        // An allocation cannot be empty.
        let bytes = if bytes.is_empty() { &[0; 4] } else { bytes };
        DeviceBuffer { handle: self.client.create_from_slice(bytes), n_bytes: size_of_val(elements) }
    }

    /// Allocates pooled memory with unspecified values, for short-lived data.
    pub fn empty<E>(&self, n: usize) -> DeviceBuffer {
        let n_bytes = n * size_of::<E>();
        DeviceBuffer { handle: self.client.empty(n_bytes.max(4)), n_bytes }
    }

    /// Copies a buffer back to the host.
    ///
    /// # Errors
    /// The read failed, or an earlier operation on the device, whose failure appears only here.
    pub fn read<E: bytemuck::Pod>(&self, buffer: &DeviceBuffer) -> Result<Vec<E>, String> {
        let bytes = self.client.read_one(buffer.handle.clone()).map_err(|error| error.to_string())?;
        Ok(bytemuck::pod_collect_to_vec(&bytes[..buffer.n_bytes]))
    }

    /// Returns whether the device has int8 matrix instructions.
    pub fn has_int8_matrices(&self) -> bool {
        let (int8, int32) = (ElemType::Int(IntKind::I8), ElemType::Int(IntKind::I32));
        let config = MmaConfig { a_type: int8, b_type: int8, cd_type: int32, m: 16, n: 8, k: 32 };
        self.client.features().matmul.mma.contains(&config)
    }

    /// Returns whether the device has TF32 matrix instructions.
    pub fn has_tf32_matrices(&self) -> bool {
        let [tf32, float] = [FloatKind::TF32, FloatKind::F32].map(ElemType::Float);
        let config = MmaConfig { a_type: tf32, b_type: tf32, cd_type: float, m: 16, n: 8, k: 8 };
        self.client.features().matmul.mma.contains(&config)
    }

    /// Returns whether the device has the matrix instructions of Hopper, which four warps execute together.
    pub fn has_warpgroup_matrices(&self) -> bool {
        // Hopper's copies of tensors came with them. Later devices have neither them nor only these copies.
        let copies = self.client.features().tma;
        copies.contains(Tma::Base) && !copies.contains(Tma::Im2colWide)
    }
}

/// Returns the number of groups of `per` that contain `n`, at least one.
pub(crate) const fn groups(n: usize, per: usize) -> usize {
    let n = n.div_ceil(per);
    if n == 0 { 1 } else { n }
}

/// Converts a size to the 32 bits that kernels use.
///
/// # Panics
/// If it does not fit.
pub(crate) fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("a tensor has too many elements for 32-bit indices; use a smaller batch")
}

/// Returns a grid of `x` by `y` cubes.
pub(crate) fn cubes(x: usize, y: usize) -> CubeCount {
    CubeCount::Static(u32_of(x), u32_of(y), 1)
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.client.name())
    }
}
