//! Memory of a model: predicted bytes, weights, and peak while it runs.

use crate::{Arch, GraphNet};
use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, shown_path};
use briquette_formats::{Checkpoint, Compressed, TensorSource};
use briquette_graph::op::Composite;
use briquette_graph::{Graph, Node, Op, Operand};
pub use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

/// The readings of one meter while a model is loaded, run and dropped, relative to the memory in use before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Description of the meter.
    pub meter: String,
    /// Bytes of the weights, predicted from headers, if the meter covers them.
    pub predicted_bytes: Option<u64>,
    /// Bytes freed by dropping the network; `None` if the device frees nothing.
    pub weights_bytes: Option<u64>,
    /// Peak while the model ran, including weights.
    pub peak_bytes: Option<u64>,
    /// Bytes left after the model was dropped.
    pub after_bytes: Option<u64>,
}

/// Returns the memory meters of a device: bytes in use and reserved by its pool, and the driver's count.
///
/// Empty for the CPU, whose memory is that of the process.
pub fn device_meters(device: &Device) -> Vec<Box<dyn MemoryMeter>> {
    let of_pool: [Box<dyn MemoryMeter>; 2] = [Box::new(InUse(device.clone())), Box::new(Reserved(device.clone()))];
    let mut meters: Vec<_> = of_pool.into_iter().filter(|meter| meter.live_bytes().is_some()).collect();
    if let Some(driver) = Driver::of(device) {
        meters.push(Box::new(driver));
    }
    meters
}

/// Returns the meter with the peak memory of a device; `None` for the CPU.
pub fn peak_meter(device: &Device) -> Option<Box<dyn MemoryMeter>> {
    device_meters(device).into_iter().rfind(|meter| meter.peak_bytes().is_some())
}

/// Bytes in use in a device's pool; without a peak.
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

/// Bytes reserved by a device's pool; its peak is computed from pages.
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
        // Weights may be outside the pools that report pages, so the peak is at least the reserved bytes.
        Some(pages.max(self.live_bytes().unwrap_or(0)))
    }

    fn free_bytes(&self) -> Option<u64> {
        Driver::of(&self.0)?.free_bytes()
    }

    fn is_of_host(&self) -> bool {
        false
    }
}

/// Bytes of a device used by all programs, according to its driver.
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

/// Returns free and total bytes of a device according to its driver; `None` for the CPU.
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

/// Follows a model through loading, running and dropping with several meters.
pub struct MemoryWatch<'a> {
    meters: &'a [&'a dyn MemoryMeter],
    name: String,
    before: Vec<Option<u64>>,
    found: Vec<Memory>,
}

impl<'a> MemoryWatch<'a> {
    /// Starts before a model is loaded.
    pub fn start(
        meters: &'a [&'a dyn MemoryMeter],
        checkpoint: &Checkpoint,
        arch: Arch,
        dtype: Option<FloatDType>,
        device: &Device,
    ) -> Self {
        let predicted_bytes = predicted_bytes(checkpoint, Some(arch), dtype, device);
        let is_on_host = crate::device_name(device) == "cpu";
        let name = shown_path(checkpoint.path());
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

    /// Marks the end of loading.
    pub fn loaded(&mut self) {
        for meter in self.meters {
            meter.begin_phase(&format!("run {}", self.name));
            meter.reset_peak();
        }
    }

    /// Drops the network and measures the freed bytes: weights, without tokenizers and buffers.
    pub fn drop_network<T>(&mut self, network: T, device: &Device) {
        // Unused buffers in the pool are freed first, since they are not weights.
        device.memory_cleanup();
        let with: Vec<Option<u64>> = self.meters.iter().map(|meter| meter.live_bytes()).collect();
        drop(network);
        device.memory_cleanup();
        for ((meter, with), found) in self.meters.iter().zip(with).zip(&mut self.found) {
            found.weights_bytes = above(with, meter.live_bytes()).filter(|&bytes| bytes > 0);
        }
    }

    /// Marks the end of running.
    pub fn ran(&mut self) {
        for (meter, (before, found)) in self.meters.iter().zip(self.before.iter().zip(&mut self.found)) {
            found.peak_bytes = above(meter.peak_bytes(), *before);
        }
        self.meters.iter().for_each(|meter| meter.begin_phase(&format!("drop {}", self.name)));
    }

    /// Returns the readings after the model was dropped.
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

/// The most bytes of a packed matrix: larger ones are packed in blocks.
const MOST_PACKED: u64 = 8 << 20;

/// Returns the bytes that any run of a network takes on the CPU beside its weights: its plan, and the largest product of
/// floats with two packed copies of its matrix.
///
/// 0 for other devices. Products on codes take nothing.
pub fn least_run_bytes(checkpoint: &Checkpoint, arch: Arch, device: &Device) -> u64 {
    if crate::device_name(device) != "cpu" {
        return 0;
    }
    let has_codes = checkpoint.compressed() == Compressed::Quantized;
    let bytes = |network: GraphNet| {
        let of_product = if has_codes { 0 } else { packed_bytes(network.graph()) };
        network.run_sizes().plan() + of_product
    };
    GraphNet::blank(arch, checkpoint, device).map_or(0, |(network, _)| bytes(network))
}

/// Returns the bytes that all threads take for their first products of floats: each as many as its L2 cache has.
pub fn scratch_bytes() -> u64 {
    // The thread that starts a product is not one of the pool.
    let n_threads = rayon::current_num_threads() as u64 + 1;
    n_threads * gemm_common::cache::CACHE_INFO[1].cache_bytes as u64
}

/// Lets every thread take the bytes of its first product of floats now: see [`scratch_bytes`].
///
/// A thread that had no share of the first products would take them in a later run, whose prediction no longer counts them.
pub fn take_scratch() {
    let take = || gemm_common::gemm::L2_SLAB.with(|_| ());
    take();
    rayon::broadcast(|_| take());
}

/// Returns the bytes of two packed copies of the largest matrix of a graph.
pub fn packed_bytes(graph: &Graph) -> u64 {
    let n_elements = |node: &Node| match (&node.op, node.inputs.get(1)) {
        (Op::Composite(Composite::Linear), Some(Operand::Weight(weight))) => graph.weights[weight.0].shape.n_elements(),
        _ => None,
    };
    let most = graph.nodes.iter().filter_map(n_elements).max().unwrap_or(0);
    2 * (4 * most as u64).min(MOST_PACKED)
}

/// Returns the bytes of a checkpoint's weights on a device, predicted from headers.
///
/// Codes stay codes where layers can hold them. Other weights are f32, or `dtype` if it is a half-precision
/// type. Tensors that the architecture ignores are not counted. Without `arch`, the architecture is detected.
pub fn predicted_bytes(checkpoint: &Checkpoint, arch: Option<Arch>, dtype: Option<FloatDType>, device: &Device) -> u64 {
    let of_network = || {
        let arch = arch.map_or_else(|| Arch::detect(checkpoint), Ok)?;
        let (network, names) = GraphNet::blank(arch, checkpoint, device)?;
        let of_nodes = checkpoint.with_codes_of_nodes()?;
        briquette_nn::predicted_bytes(&network, of_nodes.as_ref().unwrap_or(checkpoint), &names)
    };
    // If no network fits, all tensors count as f32. Loading reports the reason.
    let of_tensors = |_: Error| {
        let weights = checkpoint.tensors().iter().filter(|info| info.dtype.is_weight());
        weights.map(|info| 4 * info.n_elements() as u64).sum()
    };
    let in_f32 = of_network().unwrap_or_else(of_tensors);
    if matches!(dtype, Some(FloatDType::F16 | FloatDType::BF16)) { in_f32 / 2 } else { in_f32 }
}
