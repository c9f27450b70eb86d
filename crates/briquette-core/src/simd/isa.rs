//! Instruction sets, and the detection of those that the processor and the system support.
#![allow(unsafe_code)]

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 and tiles for 8-bit products.
    Amx,
    /// AVX-512 with 8-bit products and FMA.
    Avx512Vnni,
    /// AVX2 with 8-bit products.
    AvxVnni,
    /// AVX2.
    Avx2,
    /// NEON with 8-bit products.
    NeonDot,
    /// Instructions that every processor has.
    Scalar,
}

/// Returns whether the processor and the system support `isa`.
pub(crate) fn is_available(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => x86::has_avx512() && x86::has_byte_expansion() && x86::has_amx(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => x86::has_avx512(),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni"),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => is_x86_feature_detected!("avx2"),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
        _ => false,
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{has_avx2_popcnt, has_avx512_bytes, has_avx512_words};
#[cfg(target_arch = "x86_64")]
pub use x86::{has_byte_expansion, has_fma};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    use std::sync::OnceLock;

    /// Returns whether the processor has AVX2 and FMA, for loops over floats.
    pub fn has_fma() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    /// Returns whether the processor has AVX2 and `popcnt`, for the entropy decoder.
    pub(crate) fn has_avx2_popcnt() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt")
    }

    /// Returns whether the processor has AVX-512 for 32-bit words in 256-bit registers, for the entropy
    /// decoder.
    pub(crate) fn has_avx512_words() -> bool {
        has_avx2_popcnt() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
    }

    /// Returns whether the processor has AVX-512 with byte operations and byte compression, for the loops of
    /// this crate.
    pub(crate) fn has_avx512_bytes() -> bool {
        has_avx512_words()
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && has_byte_expansion()
    }

    /// Returns whether the processor moves bytes by masks (VBMI2). The first processors with 8-bit products, such as Cascade Lake, do not.
    pub fn has_byte_expansion() -> bool {
        is_x86_feature_detected!("avx512vbmi2")
    }

    /// Returns whether the processor has the AVX-512 extensions for matrix products.
    pub(super) fn has_avx512() -> bool {
        has_avx512_words()
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("fma")
    }

    /// Returns whether the processor has 8-bit tiles and the system lets this process use them.
    pub(super) fn has_amx() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| cfg!(target_os = "linux") && processor_has_tiles() && request_permission())
    }

    fn processor_has_tiles() -> bool {
        const TILE_AND_INT8: u32 = 0b11 << 24;
        const TILE_STATE: u64 = 0b11 << 17;
        if !is_x86_feature_detected!("xsave") || __cpuid(0).eax < 7 {
            return false;
        }
        #[target_feature(enable = "xsave")]
        fn enabled_states() -> u64 {
            // SAFETY: the caller detected XSAVE, and AVX-512, which is reported only if the system sets
            // OSXSAVE.
            unsafe { _xgetbv(0) }
        }
        // SAFETY: `xsave` was just detected.
        let states = unsafe { enabled_states() };
        __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8 && states & TILE_STATE == TILE_STATE
    }

    /// Requests the tile registers: `arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`. Linux disables them until a
    /// process does.
    fn request_permission() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XTILEDATA: u64 = 18;
        let result: i64;
        // SAFETY: the call takes two numbers and writes none of our memory.
        unsafe {
            asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XTILEDATA,
                out("rcx") _, out("r11") _, options(nostack));
        }
        result == 0
    }
}
