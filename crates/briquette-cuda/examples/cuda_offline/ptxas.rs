//! ptxas, which turns PTX into the code of a device and says what that takes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a kernel takes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Of a thread.
    pub(crate) registers: usize,
    /// Of a block: arrays that are part of the kernel, and what a launch adds to them.
    pub(crate) static_shared: usize,
    pub(crate) launch_shared: usize,
    /// Bytes of a thread outside of registers.
    pub(crate) stack: usize,
    /// Bytes written to and read from there for want of registers.
    pub(crate) spills: usize,
}

impl Usage {
    /// The larger of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            registers: self.registers.max(other.registers),
            static_shared: self.static_shared.max(other.static_shared),
            launch_shared: self.launch_shared.max(other.launch_shared),
            stack: self.stack.max(other.stack),
            spills: self.spills.max(other.spills),
        }
    }
}

/// The assembler, and a folder that is its own.
pub(crate) struct Ptxas {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
}

impl Ptxas {
    /// What a kernel of these PTX takes, `launch_shared` of it known to the launch alone.
    pub(crate) fn usage(&self, ptx: &str, arch: &str, name: &str, launch_shared: usize) -> Result<Usage, String> {
        let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let path = self.folder.join(format!("{file}_{arch}.ptx"));
        std::fs::write(&path, ptx).map_err(|error| format!("{}: {error}", path.display()))?;
        let said = self.run(&path, arch);
        // A folder of them all would be some 100 MB.
        let removed = std::fs::remove_file(&path);
        removed.map_err(|error| format!("{}: {error}", path.display()))?;
        let usage = usage(&said?)?;
        Ok(Usage { launch_shared, ..usage })
    }

    fn run(&self, ptx: &Path, arch: &str) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.arg("-v").arg(format!("-arch={arch}")).arg("-o").arg("/dev/null").arg(ptx);
        let output = command.output().map_err(|error| format!("{}: {error}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(said) } else { Err(said) }
    }
}

/// `    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads` and
/// `ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem`.
fn usage(said: &str) -> Result<Usage, String> {
    let count = |before: &str| -> Option<usize> {
        let at = said.find(before)?;
        said[..at].trim_end().rsplit([' ', '\n']).next()?.parse().ok()
    };
    let all = || {
        Some(Usage {
            registers: count("registers")?,
            static_shared: count("bytes smem").unwrap_or(0),
            launch_shared: 0,
            stack: count("bytes stack frame")?,
            spills: count("bytes spill stores")? + count("bytes spill loads")?,
        })
    };
    all().ok_or_else(|| format!("ptxas says what is not understood: {said}"))
}
