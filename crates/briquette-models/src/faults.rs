//! Converts panics and errors of device backends to errors of one line.

use briquette_core::{Error, ErrorKind, Result};
use burn::tensor::Device;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Phrases in backend messages, with the kind and text of our error.
const CAUSES: [(&[&str], ErrorKind, &str); 6] = [
    (
        &["out of device memory", "CUDA_ERROR_OUT_OF_MEMORY", "OutOfMemory"],
        ErrorKind::Io,
        "is out of memory; make batches (memory.batch_size) or inputs (data.max_length, data.size) smaller, or run on the CPU",
    ),
    (
        &["dynamically load the \"nvrtc\"", "libnvrtc"],
        ErrorKind::Config,
        "needs libnvrtc, CUDA's run-time compiler, which was not found; install it, or add its directory to LD_LIBRARY_PATH",
    ),
    (
        &["CUDA installation not found", "cannot open source file", "could not open source file"],
        ErrorKind::Config,
        "needs the CUDA headers, which were not found; install them, and set CUDA_PATH to the directory with include/",
    ),
    (
        &["dynamically load the \"cuda\"", "CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INSUFFICIENT_DRIVER"],
        ErrorKind::Config,
        "cannot be used by this driver (libcuda); install one for CUDA 12 or 13",
    ),
    (
        &["more than 32 bits of elements"],
        ErrorKind::Refused,
        "supports tensors of at most 2^32 elements; make batches (memory.batch_size) smaller",
    ),
    (
        &["--gpu-architecture", "NVRTC_ERROR", "CompilationError"],
        ErrorKind::Config,
        "cannot run a kernel: NVRTC did not compile it; use a device of compute capability 7.5 or later, and an NVRTC that supports it",
    ),
];

/// Runs `work` on a device; known panics of the backend become errors of one line.
///
/// # Errors
/// - Io: the device is out of memory
/// - Config: a library or a header is missing
/// - any error of `work`
///
/// # Panics
/// If `work` panics for another reason.
pub fn guarded<T>(device: &Device, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let name = crate::device_name(device);
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(|error| cause_of(&name, &error.message).unwrap_or(error)),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(said.and_then(|said| cause_of(&name, said)).unwrap_or_else(|| resume_unwind(panic)))
        }
    }
}

/// Returns the error for a known phrase of a backend.
fn cause_of(device: &str, said: &str) -> Option<Error> {
    let is_said = |words: &&[&str]| words.iter().any(|word| said.contains(word));
    let (_, kind, meaning) = CAUSES.iter().find(|(words, ..)| is_said(words))?;
    Some(Error { kind: *kind, ..Error::bug(format!("{device} {meaning}")) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn backend_errors_become_one_line() {
        let device = Device::default();
        let said = [
            ("execution failed: out of device memory allocating 4096 bytes\n  backtrace", 5, "memory.batch_size"),
            (
                "Unable to dynamically load the \"nvrtc\" shared library - searched for library names: [..]",
                2,
                "LD_LIBRARY_PATH",
            ),
            ("\n        CUDA installation not found.\n        Please ensure ..", 2, "CUDA_PATH"),
            ("Unable to dynamically load the \"cuda\" shared library", 2, "driver"),
            ("nvrtc: error: invalid value for --gpu-architecture (-arch)", 2, "compute capability"),
            ("more than 32 bits of elements in one tensor: take a smaller batch", 6, "memory.batch_size"),
        ];
        for (words, code, phrase) in said {
            let from_error = guarded(&device, || Err::<(), _>(Error::bug(words))).unwrap_err();
            let from_panic = guarded::<()>(&device, || panic!("{words}")).unwrap_err();
            for error in [from_error, from_panic] {
                assert_eq!(error.exit_code(), code, "{error}");
                assert!(error.message.contains(phrase) && error.message.lines().count() == 1, "{error}");
            }
        }
        assert_eq!(guarded(&device, || Err::<(), _>(Error::input("no such file"))).unwrap_err().exit_code(), 4);
        assert!(catch_unwind(|| guarded::<()>(&Device::default(), || panic!("a bug"))).is_err());
    }
}
