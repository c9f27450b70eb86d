//! The functions of `libnvrtc.so` that CubeCL calls. Instead of PTX, they return the path of a library with the
//! kernel.
#![expect(unsafe_code, reason = "these are functions of a C library")]
#![allow(non_snake_case, reason = "NVIDIA's names")]

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::kernel;
use crate::translate::to_cpp;

const INVALID_INPUT: c_int = 3;
const COMPILATION: c_int = 6;

/// The start of the text that is returned instead of PTX.
pub(crate) const TOKEN: &str = "// a kernel for the emulator: ";

/// A program: its source, and the result or the errors of its compilation.
#[derive(Default)]
struct Program {
    cuda: String,
    ptx: Vec<u8>,
    log: Vec<u8>,
}

/// Returns the directory of compiled kernels: the configured one, or a temporary one of this process.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let given = std::env::var_os("BRIQUETTE_EMULATED_CACHE").map(PathBuf::from);
        let folder =
            given.unwrap_or_else(|| std::env::temp_dir().join(format!("briquette-emulated-{}", std::process::id())));
        // If this fails, each compilation fails too and reports the cause.
        let _ = std::fs::create_dir_all(&folder);
        folder
    })
}

fn compile(cuda: &str) -> Result<String, String> {
    let compiler = kernel::compiler().ok_or("no C++ compiler: install g++")?;
    let cpp = to_cpp(cuda)?;
    let library = kernel::compile(&compiler, &cpp, folder())?;
    Ok(format!("{TOKEN}{}", library.display()))
}

fn with_zero(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    bytes.push(0);
    bytes
}

/// # Safety
/// See the function of this name in NVRTC.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    out: *mut *mut Program,
    source: *const c_char,
    _name: *const c_char,
    _n_headers: c_int,
    _headers: *const *const c_char,
    _names: *const *const c_char,
) -> c_int {
    if source.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let cuda = CStr::from_ptr(source).to_string_lossy().into_owned();
        *out = Box::into_raw(Box::new(Program { cuda, ptx: vec![0], log: vec![0] }));
    }
    0
}

/// # Safety
/// See the function of this name in NVRTC.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(program: *mut Program, _n: c_int, _options: *const *const c_char) -> c_int {
    // SAFETY: guaranteed by the caller.
    let program = unsafe { &mut *program };
    match compile(&program.cuda) {
        Ok(ptx) => program.ptx = with_zero(ptx),
        Err(error) => {
            if std::env::var_os("BRIQUETTE_EMULATED_LOG").is_some() {
                crate::driver::say(&format!(
                    "does not compile: {}",
                    error.lines().find(|l| l.contains("error") || l.contains("no ")).unwrap_or(&error)
                ));
            }
            program.log = with_zero(error);
            return COMPILATION;
        }
    }
    0
}

/// # Safety
/// See the function of this name in NVRTC.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Program) -> c_int {
    // SAFETY: `nvrtcCreateProgram` made the program, which is no longer used.
    drop(unsafe { Box::from_raw(*program) });
    0
}

macro_rules! texts {
    ($($size:ident $text:ident $field:ident;)*) => {$(
        /// # Safety
        /// See the function of this name in NVRTC.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $size(program: *const Program, out: *mut usize) -> c_int {
            // SAFETY: guaranteed by the caller.
            unsafe { *out = (&(*program).$field).len() };
            0
        }

        /// # Safety
        /// See the function of this name in NVRTC.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $text(program: *const Program, out: *mut c_char) -> c_int {
            // SAFETY: there is room for as many bytes as the size function returned.
            unsafe {
                let bytes = &(*program).$field;
                out.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
            }
            0
        }
    )*};
}
texts! {
    nvrtcGetPTXSize nvrtcGetPTX ptx;
    nvrtcGetProgramLogSize nvrtcGetProgramLog log;
}

/// # Safety
/// See the function of this name in NVRTC.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*major, *minor) = (13, 0) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(error: c_int) -> *const c_char {
    if error == 0 { c"no error".as_ptr() } else { c"the emulator cannot compile this kernel".as_ptr() }
}
