//! NVRTC, which compiles CUDA C++ to PTX without a driver or a device.
#![expect(unsafe_code, reason = "NVRTC is a C library that is loaded at run time")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null;

use libloading::{Library, Symbol};

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The loaded library.
pub(crate) struct Nvrtc {
    library: Library,
}

impl Nvrtc {
    pub(crate) fn load(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: loading NVRTC runs only its own constructors.
        unsafe { Library::new(path) }.map(|library| Self { library })
    }

    /// Returns the PTX of a kernel, or the error of the compiler.
    pub(crate) fn to_ptx(&self, cuda: &str, options: &[String]) -> Result<String, String> {
        let source = CString::new(cuda).map_err(|error| error.to_string())?;
        let options: Vec<CString> =
            options.iter().map(|option| CString::new(option.as_str()).unwrap_or_default()).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: signatures are those of nvrtc.h; each pointer is valid until its call returns, and the
        // program is destroyed once, after its last use.
        unsafe {
            let created =
                self.get::<Create>(b"nvrtcCreateProgram")(&mut program, source.as_ptr(), null(), 0, null(), null());
            if created != 0 {
                return Err(format!("nvrtcCreateProgram returned {created}"));
            }
            let failed = self.get::<Compile>(b"nvrtcCompileProgram")(program, options.len() as c_int, options.as_ptr());
            let text = if failed == 0 {
                Ok(self.text(program, b"nvrtcGetPTXSize", b"nvrtcGetPTX"))
            } else {
                Err(self.text(program, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog"))
            };
            self.get::<Destroy>(b"nvrtcDestroyProgram")(&mut program);
            text
        }
    }

    /// # Safety
    /// The names are those of functions of these types, and the program exists.
    unsafe fn text(&self, program: Program, size: &[u8], text: &[u8]) -> String {
        let mut n_bytes = 0;
        // SAFETY: the size includes the zero at the end.
        let mut bytes = unsafe {
            self.get::<Size>(size)(program, &mut n_bytes);
            let mut bytes = vec![0_u8; n_bytes];
            self.get::<Text>(text)(program, bytes.as_mut_ptr().cast());
            bytes
        };
        bytes.pop();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// # Safety
    /// The name is that of a function of this type.
    unsafe fn get<T>(&self, name: &[u8]) -> Symbol<'_, T> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.library.get(name) }.expect("NVRTC has its functions")
    }
}
