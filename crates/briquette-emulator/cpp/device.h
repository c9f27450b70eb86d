// Definitions of the CUDA C++ constructs that cubecl-cpp uses. The source of a kernel is this header, then the kernel.
#pragma once
#include <type_traits>

#include "launch.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(threads)
#define __cluster_dims__(x, y, z)
// Fragments of bytes are read as words, although they have only the alignment of bytes.
#define alignas(bytes)

#define warpSize 32u
#define __syncthreads() ::emulator::sync_threads(__LINE__)
#define __syncwarp() ::emulator::sync_warp(__LINE__)
#define __threadfence() ((void)0)
#define __activemask() ::emulator::active_mask()
#define __shfl_sync(mask, value, lane) ::emulator::shuffle((value), (lane), __LINE__)
#define __shfl_up_sync(mask, value, delta) ::emulator::shuffle_up((value), (delta), __LINE__)
#define __shfl_down_sync(mask, value, delta) ::emulator::shuffle_down((value), (delta), __LINE__)
#define __shfl_xor_sync(mask, value, other) ::emulator::shuffle_xor((value), (other), __LINE__)
#define __all_sync(mask, predicate) ::emulator::all((predicate), __LINE__)
#define __any_sync(mask, predicate) (::emulator::ballot((predicate), __LINE__) != 0)
#define __ballot_sync(mask, predicate) ::emulator::ballot((predicate), __LINE__)

namespace emulator {

// A conversion to an integer. Out-of-range values are undefined in C++; a device saturates them and converts NaN to 0.
template <class T, class S>
inline T to_integer(S value) {
    if constexpr (!std::is_integral_v<S>) {
        double number = __builtin_trunc((double)value), half_range = (double)(1ull << (8 * sizeof(T) - 1));
        double low = (T)-1 < 0 ? -half_range : 0.0, high = (T)-1 < 0 ? half_range : 2.0 * half_range;
        if (!(number >= low && number < high)) {
            if (!saturates) fail("%g was converted to an integer of %zu bytes", number, sizeof(T));
            unsigned long long bits = (T)-1 < 0 ? 1ull << (8 * sizeof(T) - 1) : 0;
            return number != number ? (T)0 : number < low ? (T)bits : (T)(bits - 1);
        }
    }
    return (T)value;
}

// Checks the index into an array of shared or local memory.
inline void check_index(size_t index, size_t length) {
    if (index >= length) fail("thread %u,%u,%u: index %zu of an array of %zu", threadIdx.x, threadIdx.y, threadIdx.z, index, length);
}

#define BRIQUETTE_UNARY(name)                                            \
    inline float name(float x) { return __builtin_##name##f(x); }        \
    inline double name(double x) { return __builtin_##name(x); }
#define BRIQUETTE_BINARY(name, builtin)                                                \
    inline float name(float x, float y) { return __builtin_##builtin##f(x, y); }       \
    inline double name(double x, double y) { return __builtin_##builtin(x, y); }
#define BRIQUETTE_INTEGER(type)                                  \
    inline type min(type x, type y) { return x < y ? x : y; }    \
    inline type max(type x, type y) { return x < y ? y : x; }
BRIQUETTE_UNARY(fabs)
BRIQUETTE_UNARY(rint)
BRIQUETTE_UNARY(floor)
BRIQUETTE_UNARY(ceil)
BRIQUETTE_UNARY(trunc)
BRIQUETTE_UNARY(sqrt)
BRIQUETTE_UNARY(exp)
BRIQUETTE_UNARY(log)
BRIQUETTE_UNARY(tanh)
BRIQUETTE_UNARY(erf)
BRIQUETTE_UNARY(sin)
BRIQUETTE_UNARY(cos)
BRIQUETTE_UNARY(tan)
BRIQUETTE_UNARY(sinh)
BRIQUETTE_UNARY(cosh)
BRIQUETTE_UNARY(asin)
BRIQUETTE_UNARY(acos)
BRIQUETTE_UNARY(atan)
BRIQUETTE_UNARY(asinh)
BRIQUETTE_UNARY(acosh)
BRIQUETTE_UNARY(atanh)
BRIQUETTE_UNARY(log1p)
BRIQUETTE_UNARY(expm1)
BRIQUETTE_BINARY(min, fmin)
BRIQUETTE_BINARY(max, fmax)
BRIQUETTE_BINARY(pow, pow)
BRIQUETTE_BINARY(fmod, fmod)
BRIQUETTE_BINARY(atan2, atan2)
BRIQUETTE_BINARY(hypot, hypot)
BRIQUETTE_INTEGER(int)
BRIQUETTE_INTEGER(unsigned)
BRIQUETTE_INTEGER(long long)
BRIQUETTE_INTEGER(unsigned long long)
inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
inline float fminf(float x, float y) { return __builtin_fminf(x, y); }
inline float __powf(float x, float y) { return __builtin_powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float rsqrt(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }

// One fiber runs at a time, so these are atomic.
template <class T>
inline T atomic_add(void* at, T value) {
    T old = *(T*)at;
    *(T*)at = old + value;
    return old;
}
template <class T>
inline T atomic_min(void* at, T value) {
    T old = *(T*)at;
    if (value < old) *(T*)at = value;
    return old;
}
template <class T>
inline T atomic_max(void* at, T value) {
    T old = *(T*)at;
    if (old < value) *(T*)at = value;
    return old;
}

template <class T>
inline T atomicExch(T* at, T value) {
    T old = *at;
    *at = value;
    return old;
}
template <class T>
inline T atomicCAS(T* at, T expected, T value) {
    T old = *at;
    if (old == expected) *at = value;
    return old;
}
template <class T>
inline T atomicAnd(T* at, T value) {
    T old = *at;
    *at = old & value;
    return old;
}
template <class T>
inline T atomicOr(T* at, T value) {
    T old = *at;
    *at = old | value;
    return old;
}
template <class T>
inline T atomicXor(T* at, T value) {
    T old = *at;
    *at = old ^ value;
    return old;
}

// Returns c plus the sum of the products of the four bytes, with wrapping overflow.
inline int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; i++) sum += (unsigned)(byte_of((unsigned)a, i, true) * byte_of((unsigned)b, i, true));
    return (int)sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (unsigned)(byte_of(a, i, false) * byte_of(b, i, false));
    return c;
}

}  // namespace emulator
