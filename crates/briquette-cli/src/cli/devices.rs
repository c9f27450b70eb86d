//! Devices that models can run on.

use super::common::Common;
use super::show::show;
use super::tables::bytes;
use briquette::pipeline::build_command;
use briquette::{Error, Result};
use serde::Serialize;

/// Refuses a device that does not exist.
///
/// # Errors
/// Config: the device does not exist, or this build does not support it.
pub(super) fn check(name: &str) -> Result<()> {
    let index = match name {
        "auto" | "cpu" => return Ok(()),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|index| index.parse::<usize>().ok()),
    };
    let Some(index) = index else {
        return Err(Error::config(format!("found {name:?}, expected auto, cpu, cuda or cuda:N")).at("device"));
    };
    let n = cuda_devices().len();
    if index < n {
        return Ok(());
    }
    if !cfg!(feature = "cuda") {
        return Err(Error::lacks_feature("cuda", "run models there").at(format!("device: found {name:?}")));
    }
    let message = format!("found {name:?}, but there are {n} CUDA devices; see `briquette devices`");
    Err(Error::config(message).at("device"))
}

/// Makes the CPU burn's default device if there is no GPU.
///
/// burn loads optimizer state onto its default device, which is the first GPU in a build with CUDA, even if
/// there is none. Call this before any thread starts.
#[cfg(feature = "cuda")]
#[expect(unsafe_code)]
pub(super) fn default_to_what_is_here() {
    const CHOICE: &str = "BURN_DEVICE";
    if std::env::var_os(CHOICE).is_none() && cuda_devices().is_empty() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(CHOICE, "flex") }
    }
}

/// Devices that models can run on.
#[derive(Debug, Serialize)]
struct DeviceList {
    cpus: usize,
    instruction_sets: Vec<&'static str>,
    /// The kernels of 8-bit products.
    int8_path: Option<&'static str>,
    cuda: Vec<CudaDevice>,
    runs_models: bool,
}

/// A GPU and its memory, as reported by its driver.
#[derive(Debug, Serialize)]
struct CudaDevice {
    name: String,
    free_bytes: Option<u64>,
    total_bytes: Option<u64>,
}

impl std::fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        match (self.free_bytes, self.total_bytes) {
            (Some(free), Some(total)) => write!(f, " ({} free of {})", bytes(free), bytes(total)),
            _ => Ok(()),
        }
    }
}

/// Prints instruction sets, and CUDA devices with their memory.
pub(super) fn list(common: &Common) -> Result<u8> {
    let found = DeviceList {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        instruction_sets: instruction_sets(),
        int8_path: int8_path(),
        cuda: cuda_devices().into_iter().map(with_memory).collect(),
        runs_models: cfg!(feature = "model"),
    };
    show(common, &found, || {
        let cuda = match (cfg!(feature = "cuda"), found.cuda.as_slice()) {
            (false, _) => format!("not in this build; build it with `{}`", build_command("cuda")),
            (true, []) => "none found; is the driver (libcuda) installed?".to_string(),
            (true, devices) => devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let sets = found.instruction_sets.join(" ");
        let int8 = found.int8_path.map_or(String::new(), |path| format!("; int8 products use {path}"));
        Ok(format!("cpu   {} CPUs, {sets}{int8}\ncuda  {cuda}\n", found.cpus))
    })
}

#[cfg(feature = "model")]
fn int8_path() -> Option<&'static str> {
    Some(briquette::models::kernel_path())
}

#[cfg(not(feature = "model"))]
fn int8_path() -> Option<&'static str> {
    None
}

#[cfg(feature = "model")]
fn with_memory(name: String) -> CudaDevice {
    let device = briquette::models::device(&name).ok();
    let found = device.and_then(|device| briquette::models::memory::free_and_total(&device));
    let [free_bytes, total_bytes] = [0, 1].map(|i| found.map(|found| found[i]));
    CudaDevice { name, free_bytes, total_bytes }
}

#[cfg(not(feature = "model"))]
fn with_memory(name: String) -> CudaDevice {
    CudaDevice { name, free_bytes: None, total_bytes: None }
}

#[cfg(feature = "model")]
fn cuda_devices() -> Vec<String> {
    briquette::models::cuda_devices()
}

#[cfg(not(feature = "model"))]
fn cuda_devices() -> Vec<String> {
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> Vec<&'static str> {
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx-vnni", is_x86_feature_detected!("avxvnni")),
        ("avx512", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")),
        ("avx512-vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512-vbmi2", is_x86_feature_detected!("avx512vbmi2")),
    ];
    known.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction_sets() -> Vec<&'static str> {
    Vec::new()
}
