//! Training on several devices: valid device lists, and unsupported keys.

use briquette_core::{Error, Result};
use briquette_recipe::{DistillStage, Dtype};
use briquette_writer::context::RunOptions;
use burn::tensor::Device;

/// Returns the devices of a training.
///
/// # Errors
/// Config: a device is unknown, or the devices cannot train together.
pub(crate) fn devices(options: &RunOptions) -> Result<Vec<Device>> {
    match options.devices.is_empty() {
        true => Ok(vec![briquette_models::device(&options.device)?]),
        false => of(&options.devices),
    }
}

/// Refuses devices that cannot train together, and keys that several devices do not support.
///
/// # Errors
/// Config: the message has the device or the key.
pub fn check_devices(stage: &DistillStage, names: &[String]) -> Result<()> {
    if names.is_empty() || of(names)?.len() == 1 { Ok(()) } else { check(stage) }
}

/// Returns the devices with these names.
///
/// # Errors
/// Config: they cannot train together.
fn of(names: &[String]) -> Result<Vec<Device>> {
    let fail = |message: String| Err(Error::config(format!("--devices: {message}")));
    if let Some(name) = names.iter().find(|name| name.as_str() == "auto" || name.as_str() == "cuda") {
        return fail(format!("found {name:?}, expected names such as cpu or cuda:0"));
    }
    let is_cpu = |name: &String| name == "cpu";
    if names.iter().any(is_cpu) && !names.iter().all(is_cpu) {
        return fail(format!("found {}, expected only CPUs or only GPUs", names.join(",")));
    }
    let twice = names.iter().enumerate().find(|(at, name)| !is_cpu(name) && names[..*at].contains(name));
    if let Some((_, name)) = twice {
        return fail(format!("found {name} twice; list each GPU once"));
    }
    let devices = names.iter().map(|name| briquette_models::device(name)).collect::<Result<_>>();
    devices.map_err(|error| error.at("--devices"))
}

/// Refuses keys that burn's own training loop, used with several devices, does not support.
fn check(stage: &DistillStage) -> Result<()> {
    let memory = &stage.memory;
    let refused = [
        ("memory.batch_size", "\"auto\"", memory.is_auto),
        ("memory.limit", "a limit", memory.limit.is_some()),
        ("memory.dtype", "half precision", memory.dtype != Dtype::F32),
        ("memory.gradient_checkpointing", "true", memory.gradient_checkpointing),
        ("memory.cache_teacher", "true", memory.cache_teacher),
        ("freeze", "anything", !stage.freeze.is_empty()),
        ("train", "\"scales\"", stage.trains_scales),
    ];
    match refused.iter().find(|(.., is_requested)| *is_requested) {
        Some((key, what, _)) => Err(Error::config(format!(
            "{key}: {what} is not supported on several devices; remove it, or train on one device"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lists_of_devices_are_refused_in_one_line() {
        let names = |list: &str| list.split(',').map(str::to_string).collect::<Vec<_>>();
        assert_eq!(of(&names("cpu,cpu,cpu")).unwrap().len(), 3);
        let cases = [
            ("cpu,cuda:0", "expected only CPUs or only GPUs"),
            ("cuda:0,cuda:0", "found cuda:0 twice"),
            ("cpu,auto", "found \"auto\""),
            ("cpu,", "expected only CPUs or only GPUs"),
            ("tpu,gpu", "found \"tpu\""),
        ];
        for (list, expected) in cases {
            let error = of(&names(list)).unwrap_err().to_string();
            assert!(
                error.starts_with("--devices: ") && error.contains(expected) && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
