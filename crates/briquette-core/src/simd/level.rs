//! The instruction set of the kernels, chosen at run time.

use super::isa::{Isa, is_available};
use std::fmt;

/// An instruction set that this processor supports.
///
/// A level for an unsupported instruction set cannot be constructed, so any level can be passed to any kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimdLevel(Isa);

impl SimdLevel {
    /// Portable code, the reference for tests.
    pub const SCALAR: Self = Self(Isa::Scalar);

    const ALL: [Isa; 6] = [Isa::Amx, Isa::Avx512Vnni, Isa::AvxVnni, Isa::Avx2, Isa::NeonDot, Isa::Scalar];

    /// Returns the levels of this processor, the fastest first; the last is always [`SimdLevel::SCALAR`].
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| is_available(*isa)).map(Self).collect()
    }

    /// Returns the level with this [`SimdLevel::name`], if the processor supports it.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|level| level.name() == name)
    }

    /// Returns the instruction set of the level.
    pub const fn isa(self) -> Isa {
        self.0
    }

    /// Returns `amx`, `avx512-vnni`, `avx-vnni`, `avx2`, `neon-dot` or `scalar`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Isa::Amx => "amx",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx2 => "avx2",
            Isa::NeonDot => "neon-dot",
            Isa::Scalar => "scalar",
        }
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the fastest level of this processor.
pub fn active_level() -> SimdLevel {
    static ACTIVE: std::sync::OnceLock<SimdLevel> = std::sync::OnceLock::new();
    *ACTIVE.get_or_init(|| SimdLevel::available()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_level_is_first_and_scalar_is_last() {
        let levels = SimdLevel::available();
        assert_eq!(active_level(), levels[0]);
        assert_eq!(levels.last(), Some(&SimdLevel::SCALAR));
        for level in levels {
            assert_eq!(SimdLevel::named(level.name()), Some(level));
        }
        assert_eq!(SimdLevel::named("sse"), None);
    }
}
