//! Compiles a kernel's C++ and calls it.
#![expect(unsafe_code, reason = "a kernel that the C++ compiler made is called through dlopen")]

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;
use std::sync::{Mutex, PoisonError};

use libloading::{Library, Symbol};

use crate::memory::{Guarded, Side};

/// Stacks of the threads of a block, as in `cpp/fibers.h`.
const STACKS_BYTES: usize = 1024 * (128 << 10);

/// A kernel, compiled and loaded.
#[derive(Debug)]
pub struct LoadedKernel {
    library: Library,
}

/// One launch, as `cpp/launch.h` declares it.
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

/// How a kernel is launched, apart from its parameters.
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks of the grid.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Bytes that a block's threads share.
    pub shared_bytes: usize,
    /// Threads and blocks take their turns from the last to the first.
    pub backwards: bool,
    /// Numbers that do not fit an integer become the nearest that does, as they do on a device; else they are a mistake.
    pub saturates: bool,
}

/// What a kernel did wrong.
#[derive(Clone, Debug)]
pub struct Mistake {
    /// Which thread did what.
    pub text: String,
    /// The address, null if it was no access to memory.
    pub fault: *const c_void,
}

/// The compiler: `$CXX`, or the first of `c++`, `g++` and `clang++` that runs.
pub fn compiler() -> Option<PathBuf> {
    let named = std::env::var_os("CXX").map(PathBuf::from);
    let usual = ["c++", "g++", "clang++"].map(PathBuf::from);
    named
        .into_iter()
        .chain(usual)
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))
}

// -fvisibility=hidden: functions of the same name in two kernels' libraries stay apart.
// -ffp-contract=off: a product and a sum are rounded one by one, the same on every CPU.
// _FORTIFY_SOURCE would take a jump out of a fiber for a damaged stack.
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

/// Compiles `cpp` to a library in `folder`, unless it is there already. The error is what the compiler says.
pub fn compile(compiler: &Path, cpp: &str, folder: &Path) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    (compiler, cpp, FLAGS, HEADERS).hash(&mut hasher);
    let library = folder.join(format!("{:016x}.so", hasher.finish()));
    if library.is_file() {
        return Ok(library);
    }
    // Compiled in a folder of its own and then renamed: another process may be compiling the same kernel.
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

/// Compiles `cpp` and loads it. The error is what the compiler says.
pub fn load(compiler: &Path, cpp: &str) -> Result<LoadedKernel, String> {
    // A loaded library no longer needs its file.
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    // SAFETY: the file is ours, just made by `compile`.
    unsafe { LoadedKernel::open(&compile(compiler, cpp, folder.path())?) }
}

impl LoadedKernel {
    /// Loads what [`compile`] has made.
    ///
    /// # Safety
    /// The file is a library that [`compile`] has made.
    pub unsafe fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: nothing in it runs when it is loaded.
        let library = unsafe { Library::new(path) }.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { library })
    }

    /// The size of each parameter.
    pub fn parameter_bytes(&self) -> Vec<usize> {
        (0..).map(|i| self.size(b"briquette_parameter_bytes", i)).take_while(|n| *n > 0).collect()
    }

    /// The size of what parameter `i` points to; 0 for none.
    pub fn element_bytes(&self, i: usize) -> usize {
        self.size(b"briquette_element_bytes", i)
    }

    fn size(&self, function: &[u8], i: usize) -> usize {
        // SAFETY: the library defines this function with this signature, and it reads a constant.
        unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(usize) -> usize> =
                self.library.get(function).expect("a kernel's library says its parameters' sizes");
            function(i)
        }
    }

    /// Runs every block; the kernel's mistake as an error.
    ///
    /// # Safety
    /// There are as many parameters as the kernel has, each points to as many bytes as it has, and the buffers that they name
    /// are nobody else's until this returns.
    pub unsafe fn launch(&self, config: &LaunchConfig, parameters: &[*mut c_void]) -> Result<(), Mistake> {
        // There is one set of stacks, and the process has one set of signal handlers.
        static STACKS: Mutex<Option<Guarded>> = Mutex::new(None);
        let mut stacks = STACKS.lock().unwrap_or_else(PoisonError::into_inner);
        let no_memory = || Mistake { text: "no memory for the threads".into(), fault: null() };
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
        // SAFETY: the library defines this function with this signature; every pointer of `launch` is to memory of the
        // length beside it that lives until the call returns; nothing else runs in the emulator meanwhile.
        let failed = unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(*mut Launch) -> c_int> =
                self.library.get(b"briquette_launch").expect("a kernel's library can launch it");
            function(&mut launch)
        };
        let mut text = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy().into_owned();
        match (failed, shared.offset_of(launch.fault), shared.damage()) {
            (0, _, None) => return Ok(()),
            (0, _, Some(at)) => text = format!("byte {at} of {} shared ones was written", config.shared_bytes),
            (_, Some(at), _) => text.push_str(&format!(" byte {at} of {} shared ones", config.shared_bytes)),
            (_, None, _) => {}
        }
        Err(Mistake { text, fault: launch.fault })
    }
}
