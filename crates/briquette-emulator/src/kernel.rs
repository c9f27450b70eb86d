//! Compiling a kernel's C++ and calling it.
#![expect(unsafe_code, reason = "compiled kernels are called through dlopen")]

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;
use std::sync::{Mutex, PoisonError};

use libloading::{Library, Symbol};

use crate::memory::{Guarded, Side};

/// Stacks for the threads of a block, as in `cpp/fibers.h`.
const STACKS_BYTES: usize = 1024 * (128 << 10);

/// A compiled and loaded kernel.
#[derive(Debug)]
pub struct LoadedKernel {
    library: Library,
}

/// The arguments of a launch, as declared in `cpp/launch.h`.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared: *mut u8,
    shared_bytes: usize,
    parameters: *const *mut c_void,
    stacks: *mut u8,
    backwards: bool,
    saturates: bool,
    message: *mut c_char,
    message_bytes: usize,
    fault: *const c_void,
}

/// The configuration of a launch, without the kernel's parameters.
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Number of blocks in the grid.
    pub blocks: [u32; 3],
    /// Number of threads in a block.
    pub threads: [u32; 3],
    /// Bytes of shared memory per block.
    pub shared_bytes: usize,
    /// Whether threads and blocks run from the last to the first.
    pub backwards: bool,
    /// Whether out-of-range conversions to integers saturate, as on a device; otherwise they are a fault.
    pub saturates: bool,
}

/// A fault of a kernel.
#[derive(Clone, Debug)]
pub struct Mistake {
    /// The thread and its action.
    pub text: String,
    /// The address of an invalid memory access, otherwise null.
    pub fault: *const c_void,
}

/// Returns the compiler: `$CXX`, or the first of `c++`, `g++` and `clang++` that runs.
pub fn compiler() -> Option<PathBuf> {
    let named = std::env::var_os("CXX").map(PathBuf::from);
    let usual = ["c++", "g++", "clang++"].map(PathBuf::from);
    named
        .into_iter()
        .chain(usual)
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))
}

// -fvisibility=hidden: separates functions with the same name in the libraries of two kernels.
// -ffp-contract=off: rounds products and sums separately, equal on every CPU.
// _FORTIFY_SOURCE would treat a jump out of a fiber as stack corruption.
const FLAGS: &str = "-std=c++17 -O1 -fPIC -shared -fvisibility=hidden -pthread -w -fwrapv -fno-strict-aliasing \
    -fno-exceptions -fno-rtti -ffp-contract=off -U_FORTIFY_SOURCE -fno-stack-protector -fcf-protection=none \
    -fsanitize=shift-exponent,integer-divide-by-zero -fsanitize-undefined-trap-on-error";

const HEADERS: [&str; 7] = [
    include_str!("../cpp/collectives.h"),
    include_str!("../cpp/device.h"),
    include_str!("../cpp/faults.h"),
    include_str!("../cpp/fibers.h"),
    include_str!("../cpp/half.h"),
    include_str!("../cpp/launch.h"),
    include_str!("../cpp/schedule.h"),
];

/// Compiles `cpp` to a library in `folder`, unless it already exists.
///
/// # Errors
/// The messages of the compiler.
pub fn compile(compiler: &Path, cpp: &str, folder: &Path) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    (compiler, cpp, FLAGS, HEADERS).hash(&mut hasher);
    let library = folder.join(format!("{:016x}.so", hasher.finish()));
    if library.is_file() {
        return Ok(library);
    }
    // Compiled in a separate directory and then renamed, because another process may be compiling the same
    // kernel.
    let own = tempfile::tempdir_in(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (source, made) = (own.path().join("kernel.cpp"), own.path().join("kernel.so"));
    std::fs::write(&source, cpp).map_err(|error| format!("{}: {error}", source.display()))?;
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp");
    let mut command = Command::new(compiler);
    command.args(FLAGS.split_whitespace()).arg("-I").arg(headers).arg(&source).arg("-o").arg(&made);
    let output = command.output().map_err(|error| format!("{}: {error}", compiler.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::rename(&made, &library).map_err(|error| format!("{}: {error}", library.display()))?;
    Ok(library)
}

/// Compiles `cpp` and loads it.
///
/// # Errors
/// The messages of the compiler.
pub fn load(compiler: &Path, cpp: &str) -> Result<LoadedKernel, String> {
    // The file of a loaded library may be deleted.
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    // SAFETY: `compile` just made the file.
    unsafe { LoadedKernel::open(&compile(compiler, cpp, folder.path())?) }
}

impl LoadedKernel {
    /// Loads a library made by [`compile`].
    ///
    /// # Safety
    /// [`compile`] made the file.
    pub unsafe fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the library runs no code when it is loaded.
        let library = unsafe { Library::new(path) }.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { library })
    }

    /// Returns the size of each parameter.
    pub fn parameter_bytes(&self) -> Vec<usize> {
        (0..).map(|i| self.size(b"briquette_parameter_bytes", i)).take_while(|n| *n > 0).collect()
    }

    /// Returns the size of the elements that parameter `i` points to, or 0 if it is not a pointer.
    pub fn element_bytes(&self, i: usize) -> usize {
        self.size(b"briquette_element_bytes", i)
    }

    fn size(&self, function: &[u8], i: usize) -> usize {
        // SAFETY: the library defines this function with this signature, and it reads a constant.
        unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(usize) -> usize> =
                self.library.get(function).expect("a kernel's library exports its parameter sizes");
            function(i)
        }
    }

    /// Runs every block.
    ///
    /// # Errors
    /// The fault of the kernel.
    ///
    /// # Safety
    /// There are as many parameters as the kernel has, each with the size of its type. Nothing else uses the
    /// buffers that they point to until this returns.
    pub unsafe fn launch(&self, config: &LaunchConfig, parameters: &[*mut c_void]) -> Result<(), Mistake> {
        // The process has one set of stacks and one set of signal handlers.
        static STACKS: Mutex<Option<Guarded>> = Mutex::new(None);
        let mut stacks = STACKS.lock().unwrap_or_else(PoisonError::into_inner);
        let no_memory = || Mistake { text: "out of memory for the stacks of threads".into(), fault: null() };
        if stacks.is_none() {
            *stacks = Guarded::untouched(STACKS_BYTES);
        }
        let stacks = stacks.as_ref().ok_or_else(no_memory)?;
        let side = if config.backwards { Side::Begin } else { Side::End(16) };
        let shared = Guarded::new(config.shared_bytes, side, 1 << 30).ok_or_else(no_memory)?;
        let mut message = [0u8; 1024];
        let mut launch = Launch {
            grid: config.blocks,
            block: config.threads,
            shared: shared.pointer(),
            shared_bytes: config.shared_bytes,
            parameters: parameters.as_ptr(),
            stacks: stacks.pointer(),
            backwards: config.backwards,
            saturates: config.saturates,
            message: message.as_mut_ptr().cast(),
            message_bytes: message.len(),
            fault: null(),
        };
        // SAFETY: the library defines this function with this signature. Every pointer of `launch` refers to
        // memory of the given length that is valid until the call returns. Nothing else runs in the emulator
        // meanwhile.
        let failed = unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(*mut Launch) -> c_int> =
                self.library.get(b"briquette_launch").expect("a kernel's library exports its launch function");
            function(&mut launch)
        };
        let mut text = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy().into_owned();
        match (failed, shared.offset_of(launch.fault), shared.damage()) {
            (0, _, None) => return Ok(()),
            (0, _, Some(at)) => {
                text = format!("byte {at} was written, outside of {} bytes of shared memory", config.shared_bytes)
            }
            (_, Some(at), _) => text.push_str(&format!(" byte {at} of {} bytes of shared memory", config.shared_bytes)),
            (_, None, _) => {}
        }
        Err(Mistake { text, fault: launch.fault })
    }
}
