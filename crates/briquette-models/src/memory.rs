//! How much memory a model takes: what was predicted, what its weights hold, what running it adds.

use crate::{Arch, Network};
use briquette_core::Error;
use briquette_core::memory::MemoryMeter;
use briquette_formats::{Checkpoint, TensorSource};
pub use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

/// What one meter saw of a model that was loaded, run and dropped. Every figure is above what was there before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// What was measured, in words.
    pub meter: String,
    /// Bytes of the weights, as the headers predict them, where the meter sees them.
    pub predicted_bytes: Option<u64>,
    /// Bytes that its network held: what dropping it gave back. A device that gives nothing back does not tell.
    pub weights_bytes: Option<u64>,
    /// The most in use while it ran, weights and all.
    pub peak_bytes: Option<u64>,
    /// What was left when it was dropped.
    pub after_bytes: Option<u64>,
}

/// What can be measured of a device's memory: bytes in use and reserved by its pool, and what its driver says. Nothing of the
/// CPU, whose memory is that of the process.
pub fn device_meters(device: &Device) -> Vec<Box<dyn MemoryMeter>> {
    let of_pool: [Box<dyn MemoryMeter>; 2] = [Box::new(InUse(device.clone())), Box::new(Reserved(device.clone()))];
    let mut meters: Vec<_> = of_pool.into_iter().filter(|meter| meter.live_bytes().is_some()).collect();
    if let Some(driver) = Driver::of(device) {
        meters.push(Box::new(driver));
    }
    meters
}

/// What tells the peak of a device's memory, where models that run there lie; nothing of the CPU.
pub fn peak_meter(device: &Device) -> Option<Box<dyn MemoryMeter>> {
    device_meters(device).into_iter().rfind(|meter| meter.peak_bytes().is_some())
}

/// The bytes a device's pool has in use. It keeps no peak.
#[derive(Debug, Clone)]
struct InUse(Device);

impl MemoryMeter for InUse {
    fn name(&self) -> &str {
        "bytes in use in the device's pool"
    }

    fn live_bytes(&self) -> Option<u64> {
        self.0.memory_pool_usage().map(|usage| usage.bytes_in_use)
    }

    fn peak_bytes(&self) -> Option<u64> {
        None
    }

    fn free_bytes(&self) -> Option<u64> {
        Driver::of(&self.0)?.free_bytes()
    }

    fn is_of_host(&self) -> bool {
        false
    }
}

/// The bytes a device's pool has reserved; its peak is that of its pages.
#[derive(Debug, Clone)]
struct Reserved(Device);

impl MemoryMeter for Reserved {
    fn name(&self) -> &str {
        "bytes reserved by the device's pool"
    }

    fn live_bytes(&self) -> Option<u64> {
        self.0.memory_pool_usage().map(|usage| usage.bytes_reserved)
    }

    fn peak_bytes(&self) -> Option<u64> {
        let pools = self.0.memory_pool_report()?;
        let pages: u64 = pools.iter().map(|pool| pool.page_size * pool.pages_peak).sum();
        // Weights may lie outside of the pools that report their pages, so what is reserved in all is the least that the peak was.
        Some(pages.max(self.live_bytes().unwrap_or(0)))
    }

    fn free_bytes(&self) -> Option<u64> {
        Driver::of(&self.0)?.free_bytes()
    }

    fn is_of_host(&self) -> bool {
        false
    }
}

/// The bytes of a device that are taken, by whom ever, as its driver says.
#[derive(Debug, Clone)]
struct Driver {
    #[cfg(feature = "cuda")]
    context: std::sync::Arc<cudarc::driver::CudaContext>,
}

impl Driver {
    #[cfg(feature = "cuda")]
    fn of(device: &Device) -> Option<Self> {
        use burn::backend::{CubeDevice, DispatchDevice};
        let DispatchDevice::Cube(CubeDevice::Cuda(device)) = device.as_dispatch() else { return None };
        Some(Self { context: cudarc::driver::CudaContext::new(device.index).ok()? })
    }

    #[cfg(feature = "cuda")]
    fn free_and_total(&self) -> Option<[u64; 2]> {
        self.context.mem_get_info().ok().map(|(free, total)| [free as u64, total as u64])
    }

    #[cfg(not(feature = "cuda"))]
    fn of(_device: &Device) -> Option<Self> {
        None
    }

    #[cfg(not(feature = "cuda"))]
    fn free_and_total(&self) -> Option<[u64; 2]> {
        None
    }
}

/// Bytes of a device that are free, and all it has, as its driver says; nothing of the CPU.
pub fn free_and_total(device: &Device) -> Option<[u64; 2]> {
    Driver::of(device)?.free_and_total()
}

impl MemoryMeter for Driver {
    fn name(&self) -> &str {
        "bytes of the device that its driver has given"
    }

    fn live_bytes(&self) -> Option<u64> {
        self.free_and_total().map(|[free, total]| total.saturating_sub(free))
    }

    fn peak_bytes(&self) -> Option<u64> {
        None
    }

    fn free_bytes(&self) -> Option<u64> {
        self.free_and_total().map(|[free, _]| free)
    }

    fn is_of_host(&self) -> bool {
        false
    }
}

/// Follows a model through its life with several meters.
pub struct MemoryWatch<'a> {
    meters: &'a [&'a dyn MemoryMeter],
    name: String,
    before: Vec<Option<u64>>,
    found: Vec<Memory>,
}

impl<'a> MemoryWatch<'a> {
    /// Before a model is loaded.
    pub fn start(
        meters: &'a [&'a dyn MemoryMeter],
        checkpoint: &Checkpoint,
        arch: Arch,
        dtype: Option<FloatDType>,
        device: &Device,
    ) -> Self {
        let predicted_bytes = predicted_bytes(checkpoint, Some(arch), dtype, device);
        let is_on_host = crate::device_name(device) == "cpu";
        let name = checkpoint.path().display().to_string();
        meters.iter().for_each(|meter| meter.begin_phase(&format!("load {name}")));
        let one = |meter: &&dyn MemoryMeter| {
            let predicted_bytes = (meter.is_of_host() == is_on_host).then_some(predicted_bytes);
            Memory { meter: meter.name().to_string(), predicted_bytes, ..Memory::default() }
        };
        Self {
            meters,
            name,
            before: meters.iter().map(|meter| meter.live_bytes()).collect(),
            found: meters.iter().map(one).collect(),
        }
    }

    /// Once it is loaded.
    pub fn loaded(&mut self) {
        for meter in self.meters {
            meter.begin_phase(&format!("run {}", self.name));
            meter.reset_peak();
        }
    }

    /// Drops its network: what that frees is what its weights took, without tokenizers and what running left behind.
    pub fn drop_network<T>(&mut self, network: T, device: &Device) {
        // Buffers that running left unused in the pool are given back first: they are not weights.
        device.memory_cleanup();
        let with: Vec<Option<u64>> = self.meters.iter().map(|meter| meter.live_bytes()).collect();
        drop(network);
        device.memory_cleanup();
        for ((meter, with), found) in self.meters.iter().zip(with).zip(&mut self.found) {
            found.weights_bytes = above(with, meter.live_bytes()).filter(|&bytes| bytes > 0);
        }
    }

    /// Once it has run.
    pub fn ran(&mut self) {
        for (meter, (before, found)) in self.meters.iter().zip(self.before.iter().zip(&mut self.found)) {
            found.peak_bytes = above(meter.peak_bytes(), *before);
        }
        self.meters.iter().for_each(|meter| meter.begin_phase(&format!("drop {}", self.name)));
    }

    /// Once it is dropped.
    pub fn dropped(mut self) -> Vec<Memory> {
        for (meter, (before, found)) in self.meters.iter().zip(self.before.iter().zip(&mut self.found)) {
            found.after_bytes = above(meter.live_bytes(), *before);
        }
        self.found
    }
}

fn above(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(before?))
}

/// Bytes of a checkpoint's weights as they are loaded on a device, known from its headers: codes where layers hold them,
/// else f32, or the half precision they are cast to. Tensors that the architecture, which is found out where it is not given,
/// has no use for are not loaded.
pub fn predicted_bytes(checkpoint: &Checkpoint, arch: Option<Arch>, dtype: Option<FloatDType>, device: &Device) -> u64 {
    let of_network = || {
        let arch = arch.map_or_else(|| Arch::detect(checkpoint), Ok)?;
        let (network, names) = Network::blank(arch, checkpoint, device)?;
        briquette_nn::predicted_bytes(&network, checkpoint, &names)
    };
    // Where no network can be made of it, all its tensors are counted as f32. The reason is told when it is loaded.
    let of_tensors = |_: Error| {
        let weights = checkpoint.tensors().iter().filter(|info| info.dtype.is_weight());
        weights.map(|info| 4 * info.n_elements() as u64).sum()
    };
    let in_f32 = of_network().unwrap_or_else(of_tensors);
    if matches!(dtype, Some(FloatDType::F16 | FloatDType::BF16)) { in_f32 / 2 } else { in_f32 }
}
