//! Which instruction sets there are, and which of them this processor and the system have.
#![allow(unsafe_code)]

/// A set of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 and tiles of 8-bit products.
    Amx,
    /// AVX-512 with 8-bit products, byte compression and FMA.
    Avx512Vnni,
    /// AVX2 with 8-bit products.
    AvxVnni,
    /// AVX2.
    Avx2,
    /// NEON with 8-bit products.
    NeonDot,
    /// None beyond those of every processor.
    Scalar,
}

/// Whether the processor and the system have what the functions for `isa` are compiled for.
pub(crate) fn is_available(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => x86::has_avx512() && x86::has_amx(),
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
pub use x86::has_fma;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{has_avx2_popcnt, has_avx512_bytes, has_avx512_words};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    use std::sync::OnceLock;

    /// Whether it has AVX2 and FMA, which loops over floats are compiled for.
    pub fn has_fma() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    /// Whether the processor has AVX2 and `popcnt`, for the entropy decoder.
    pub(crate) fn has_avx2_popcnt() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt")
    }

    /// Whether the processor has AVX-512 for 32-bit words in 256-bit registers, for the entropy decoder.
    pub(crate) fn has_avx512_words() -> bool {
        has_avx2_popcnt() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
    }

    /// Whether the processor has AVX-512 with byte operations and byte compression, for the loops of this crate.
    pub(crate) fn has_avx512_bytes() -> bool {
        has_avx512_words()
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vbmi2")
    }

    /// Whether the processor has what the AVX-512 matrix products are compiled for.
    pub(super) fn has_avx512() -> bool {
        has_avx512_words()
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("fma")
    }

    /// Whether the processor has 8-bit tiles and the system lets this process use them.
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
            // SAFETY: the caller has found XSAVE, and AVX-512, which only a system that sets OSXSAVE reports.
            unsafe { _xgetbv(0) }
        }
        // SAFETY: `xsave` was just detected.
        let states = unsafe { enabled_states() };
        __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8 && states & TILE_STATE == TILE_STATE
    }

    /// Linux keeps the 8 KiB of tile registers from a process until it asks: `arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`.
    fn request_permission() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XTILEDATA: u64 = 18;
        let result: i64;
        // SAFETY: the call reads its two numbers and writes no memory of ours.
        unsafe {
            asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XTILEDATA,
                out("rcx") _, out("r11") _, options(nostack));
        }
        result == 0
    }
}
