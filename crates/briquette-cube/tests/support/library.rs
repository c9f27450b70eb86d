//! Compiles a kernel's C++ and calls it. The only module that needs `unsafe`.
#![expect(unsafe_code, reason = "a kernel that the C++ compiler made is called through dlopen")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use libloading::{Library, Symbol};

/// A kernel, compiled and loaded.
pub(crate) struct Compiled {
    library: Library,
}

/// One launch, as `emulator/launch.h` declares it.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: usize,
    n_buffers: usize,
    buffers: *const *mut u8,
    buffer_bytes: *const usize,
    info: *const c_void,
    info_bytes: usize,
    backwards: bool,
    message: *mut c_char,
    message_bytes: usize,
}

/// What a launch is given beside its buffers.
pub(crate) struct Grid<'a> {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared_bytes: usize,
    pub(crate) info: &'a [u64],
    /// Threads and blocks take their turns from the last to the first.
    pub(crate) backwards: bool,
}

/// The compiler: `$CXX`, or the first of `c++`, `g++` and `clang++` that runs.
pub(crate) fn compiler() -> Option<PathBuf> {
    let named = std::env::var_os("CXX").map(PathBuf::from);
    let usual = ["c++", "g++", "clang++"].map(PathBuf::from);
    named
        .into_iter()
        .chain(usual)
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))
}

/// Compiles `cpp`, once for each text in this process.
///
/// # Panics
/// If the compiler refuses it: with what the compiler said.
pub(crate) fn load(compiler: &Path, cpp: &str) -> Arc<Compiled> {
    static LOADED: Mutex<Option<HashMap<String, Arc<Compiled>>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if let Some(found) = loaded.get(cpp) {
        return found.clone();
    }
    // A loaded library no longer needs its file.
    let folder = tempfile::tempdir().expect("a temporary folder for a kernel");
    let path = compile(compiler, cpp, folder.path());
    // SAFETY: the file is ours, just made, and nothing in it runs when it is loaded.
    let library = unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let compiled = Arc::new(Compiled { library });
    loaded.insert(cpp.to_string(), compiled.clone());
    compiled
}

fn compile(compiler: &Path, cpp: &str, folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("kernel.cpp"), folder.join("kernel.so"));
    std::fs::write(&source, cpp).expect("a kernel's source is written");
    // -fvisibility=hidden: what two kernels' libraries call the same is not the same.
    // -ffp-contract=off: a product and a sum are rounded one by one, the same on every CPU.
    // _FORTIFY_SOURCE would take a jump out of a fiber for a damaged stack.
    let flags = "-std=c++17 -O1 -fPIC -shared -fvisibility=hidden -pthread -w -fwrapv -fno-strict-aliasing -fno-exceptions -fno-rtti \
        -ffp-contract=off -U_FORTIFY_SOURCE -fno-stack-protector -fcf-protection=none \
        -fsanitize=shift-exponent,integer-divide-by-zero -fsanitize-undefined-trap-on-error";
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/emulator");
    let mut command = Command::new(compiler);
    command.args(flags.split_whitespace()).arg("-I").arg(headers).arg(&source).arg("-o").arg(&library);
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    assert!(
        output.status.success(),
        "{} refuses a kernel:\n{}\n{cpp}",
        compiler.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    library
}

impl Compiled {
    /// The size of what parameter `i` points to; 0 for none.
    pub(crate) fn element_bytes(&self, i: usize) -> usize {
        // SAFETY: the library defines this function with this signature, and it reads a constant.
        unsafe {
            let function: Symbol<unsafe extern "C" fn(usize) -> usize> =
                self.library.get(b"briquette_element_bytes").expect("a kernel's library says its elements' sizes");
            function(i)
        }
    }

    /// Runs every block; the kernel's mistake as an error.
    pub(crate) fn launch(&self, grid: &Grid<'_>, buffers: &mut [Vec<u8>]) -> Result<(), String> {
        // The emulator has one set of fibers and the process one set of signal handlers.
        static RUNNING: Mutex<()> = Mutex::new(());
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(|bytes| bytes.as_mut_ptr()).collect();
        let lengths: Vec<usize> = buffers.iter().map(Vec::len).collect();
        let mut message = [0u8; 1024];
        let launch = Launch {
            grid: grid.blocks,
            block: grid.threads,
            shared_bytes: grid.shared_bytes,
            n_buffers: buffers.len(),
            buffers: pointers.as_ptr(),
            buffer_bytes: lengths.as_ptr(),
            info: grid.info.as_ptr().cast(),
            info_bytes: size_of_val(grid.info),
            backwards: grid.backwards,
            message: message.as_mut_ptr().cast(),
            message_bytes: message.len(),
        };
        // SAFETY: the library defines this function with this signature; every pointer of `launch` is to memory of the
        // length beside it that lives until the call returns; nothing else runs in the emulator meanwhile.
        let failed = unsafe {
            let function: Symbol<unsafe extern "C" fn(*const Launch) -> c_int> =
                self.library.get(b"briquette_launch").expect("a kernel's library can launch it");
            function(&launch)
        };
        let text = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
        if failed == 0 { Ok(()) } else { Err(text.into_owned()) }
    }
}
