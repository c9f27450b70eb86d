//! Which instructions the kernels use, chosen while the program runs.

use super::isa::{Isa, is_available};
use std::fmt;

/// A set of instructions that this processor has.
///
/// There is no way to make one for a processor that lacks them, so a level can be passed to any kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimdLevel(Isa);

impl SimdLevel {
    /// Plain code, everywhere; what the others are tested against.
    pub const SCALAR: Self = Self(Isa::Scalar);

    const ALL: [Isa; 6] = [Isa::Amx, Isa::Avx512Vnni, Isa::AvxVnni, Isa::Avx2, Isa::NeonDot, Isa::Scalar];

    /// The levels this processor has, the fastest first; the last is always [`SimdLevel::SCALAR`].
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| is_available(*isa)).map(Self).collect()
    }

    /// The level called `name`, as [`SimdLevel::name`] spells it, if this processor has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|level| level.name() == name)
    }

    /// The instructions it stands for.
    pub const fn isa(self) -> Isa {
        self.0
    }

    /// `amx`, `avx512-vnni`, `avx-vnni`, `avx2`, `neon-dot` or `scalar`.
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

/// The level in use: the fastest this processor has.
pub fn active_level() -> SimdLevel {
    static ACTIVE: std::sync::OnceLock<SimdLevel> = std::sync::OnceLock::new();
    *ACTIVE.get_or_init(|| SimdLevel::available()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_path_is_the_first_available_one_and_scalar_the_last() {
        let levels = SimdLevel::available();
        assert_eq!(active_level(), levels[0]);
        assert_eq!(levels.last(), Some(&SimdLevel::SCALAR));
        for level in levels {
            assert_eq!(SimdLevel::named(level.name()), Some(level));
        }
        assert_eq!(SimdLevel::named("sse"), None);
    }
}
