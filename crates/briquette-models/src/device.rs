//! Devices by name.

use briquette_core::{Error, Result};
use burn::tensor::Device;
#[cfg(feature = "cuda")]
use burn::tensor::DeviceType;

/// Returns a device by name: `cpu`, `cuda`, `cuda:1`, or `auto` for the first GPU or else the CPU.
///
/// # Errors
/// Config: the name is invalid, or there is no such device.
pub fn device(name: &str) -> Result<Device> {
    match name {
        "cpu" => cpu(),
        "auto" => first_cuda().map_or_else(cpu, Ok),
        _ => match name.strip_prefix("cuda").map(|rest| rest.strip_prefix(':').unwrap_or(rest)) {
            Some("") => cuda(0),
            Some(index) if index.parse::<usize>().is_ok() => cuda(index.parse().unwrap_or(0)),
            _ => Err(Error::config(format!("device: found {name:?}, expected auto, cpu, cuda or cuda:N"))),
        },
    }
}

/// Returns the name of a device, as [`device`] accepts it.
pub fn device_name(device: &Device) -> String {
    name_of(&format!("{device:?}").to_lowercase())
}

/// Converts burn's description of a device, such as `device<cube(cuda(cuda(1)))>`, to a name.
fn name_of(words: &str) -> String {
    let index = words.rsplit_once("cuda(").and_then(|(_, rest)| rest.split(')').next());
    match index.filter(|index| index.parse::<usize>().is_ok()) {
        Some(index) => format!("cuda:{index}"),
        None if words.contains("flex") => "cpu".into(),
        None => words.into(),
    }
}

/// Returns the CPU instruction set of the int8 kernels, such as `avx512-vnni`.
pub fn kernel_path() -> &'static str {
    briquette_cpu::active_level().name()
}

/// Returns the names of the CUDA devices of this machine; empty without a driver or the CUDA feature.
pub fn cuda_devices() -> Vec<String> {
    #[cfg(feature = "cuda")]
    return Device::enumerate(DeviceType::Cuda).iter().enumerate().map(|(i, _)| format!("cuda:{i}")).collect();
    #[cfg(not(feature = "cuda"))]
    Vec::new()
}

fn cpu() -> Result<Device> {
    #[cfg(feature = "flex")]
    return Ok(Device::flex());
    #[cfg(not(feature = "flex"))]
    Err(Error::lacks_feature("flex", "run models on the CPU").at("device"))
}

fn first_cuda() -> Option<Device> {
    if cuda_devices().is_empty() { None } else { cuda(0).ok() }
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device> {
    briquette_ops::compressed::keep_kernels();
    // Touching a device that does not exist panics, so they are counted first.
    let n = cuda_devices().len();
    if index < n {
        return Ok(Device::cuda(index));
    }
    let found = if n == 0 {
        "found no CUDA device (is libcuda, the driver, installed?)".into()
    } else {
        format!("found {n} CUDA devices")
    };
    Err(Error::config(format!("device: {found}, expected cuda:{index}"))
        .with_remedy(briquette_core::Remedy::LookUpDevices))
}

#[cfg(not(feature = "cuda"))]
fn cuda(index: usize) -> Result<Device> {
    Err(Error::lacks_feature("cuda", "run models there").at(format!("device: found cuda:{index}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_those_that_the_user_gives() {
        assert_eq!(device_name(&Device::flex()), "cpu");
        let words = ["device<cube(cuda(cuda(1)))>", "device<autodiff(cube(cuda(cuda(12))))>", "device<other>"];
        assert_eq!(words.map(name_of), ["cuda:1", "cuda:12", "device<other>"]);
    }

    #[test]
    fn missing_devices_are_reported_in_one_line() {
        assert!(device("cpu").is_ok() && device("auto").is_ok());
        for name in ["cuda:99", "gpu", "cuda:x", ""] {
            let error = device(name).unwrap_err().to_string();
            assert!(error.starts_with("device: found") && error.lines().count() == 1, "{error}");
        }
    }
}
