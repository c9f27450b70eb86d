//! ptxas, which compiles PTX to machine code and reports resource usage.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The resources that a kernel uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Registers per thread.
    pub(crate) registers: usize,
    /// Shared memory per block: the arrays of the kernel, plus the shared memory of the launch.
    pub(crate) static_shared: usize,
    pub(crate) launch_shared: usize,
    /// Bytes per thread outside registers.
    pub(crate) stack: usize,
    /// Bytes of register spills that are written and read.
    pub(crate) spills: usize,
}

impl Usage {
    /// Returns the maximum of each resource.
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

/// The assembler, with a directory of its own.
pub(crate) struct Ptxas {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
}

impl Ptxas {
    /// Returns the usage of a kernel from its PTX, with `launch_shared` bytes that only the launch requests.
    pub(crate) fn usage(&self, ptx: &str, arch: &str, name: &str, launch_shared: usize) -> Result<Usage, String> {
        let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let path = self.folder.join(format!("{file}_{arch}.ptx"));
        std::fs::write(&path, ptx).map_err(|error| format!("{}: {error}", path.display()))?;
        let log = self.run(&path, arch);
        // All files together would take about 100 MB.
        let removed = std::fs::remove_file(&path);
        removed.map_err(|error| format!("{}: {error}", path.display()))?;
        let usage = usage(&log?)?;
        Ok(Usage { launch_shared, ..usage })
    }

    fn run(&self, ptx: &Path, arch: &str) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.arg("-v").arg(format!("-arch={arch}")).arg("-o").arg("/dev/null").arg(ptx);
        let output = command.output().map_err(|error| format!("{}: {error}", self.program.display()))?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(log) } else { Err(log) }
    }
}

/// Parses the log of ptxas: `    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads` and
/// `ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem`.
fn usage(log: &str) -> Result<Usage, String> {
    let count = |before: &str| -> Option<usize> {
        let at = log.find(before)?;
        log[..at].trim_end().rsplit([' ', '\n']).next()?.parse().ok()
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
    all().ok_or_else(|| format!("cannot parse the output of ptxas: {log}"))
}
