// __half and __nv_bfloat16: each operation is computed in float and rounded once, to nearest with ties to even.
#pragma once
#include "device.h"

namespace emulator {

template <int MANTISSA, int BIAS>
struct Small {
    unsigned short bits;
    Small() = default;
    template <class T, class = decltype(T(0) + 1.0)>
    Small(T value) : bits(encode((double)value)) {}
    operator float() const { return decode(bits); }

    static constexpr unsigned infinity = 0x7fff >> MANTISSA << MANTISSA;
    static unsigned short encode(double value) {
        unsigned sign = __builtin_signbit(value) ? 0x8000 : 0;
        if (value != value) return 0x7fff;
        value = __builtin_fabs(value);
        if (value == 0 || __builtin_isinf(value)) return sign | (value == 0 ? 0 : infinity);
        int exponent = __builtin_ilogb(value);
        if (exponent < 1 - BIAS) exponent = 1 - BIAS;
        if (exponent > BIAS) return sign | infinity;
        // At least 2^MANTISSA for a normal number; a carry propagates into the exponent.
        unsigned digits = (unsigned)__builtin_rint(__builtin_ldexp(value, MANTISSA - exponent));
        return sign | (((unsigned)(exponent + BIAS) << MANTISSA) + digits - (1u << MANTISSA));
    }
    static float decode(unsigned short bits) {
        unsigned magnitude = bits & 0x7fff, digits = bits & ((1u << MANTISSA) - 1);
        int exponent = (int)(magnitude >> MANTISSA);
        double value = exponent ? __builtin_ldexp((double)(digits + (1u << MANTISSA)), exponent - BIAS - MANTISSA)
                                : __builtin_ldexp((double)digits, 1 - BIAS - MANTISSA);
        if (magnitude > infinity) value = __builtin_nan("");
        if (magnitude == infinity) value = __builtin_inf();
        return (float)(bits & 0x8000 ? -value : value);
    }
    Small operator-() const { return from_bits(bits ^ 0x8000); }
    static Small from_bits(unsigned short bits) {
        Small small;
        small.bits = bits;
        return small;
    }
};
typedef Small<10, 15> __half;
typedef Small<7, 127> __nv_bfloat16;

template <class S>
struct Pair {
    S x, y;
};
typedef Pair<__half> __half2;
typedef Pair<__nv_bfloat16> __nv_bfloat162;

#define BRIQUETTE_OPERATOR(op)                                                                  \
    template <int M, int B>                                                                     \
    inline Small<M, B> operator op(Small<M, B> a, Small<M, B> b) { return (float)a op(float) b; } \
    template <class S>                                                                          \
    inline Pair<S> operator op(Pair<S> a, Pair<S> b) { return {a.x op b.x, a.y op b.y}; }
#define BRIQUETTE_COMPARE(op)    \
    template <int M, int B>      \
    inline bool operator op(Small<M, B> a, Small<M, B> b) { return (float)a op(float) b; }
BRIQUETTE_OPERATOR(+)
BRIQUETTE_OPERATOR(-)
BRIQUETTE_OPERATOR(*)
BRIQUETTE_OPERATOR(/)
BRIQUETTE_COMPARE(<)
BRIQUETTE_COMPARE(<=)
BRIQUETTE_COMPARE(>)
BRIQUETTE_COMPARE(>=)
BRIQUETTE_COMPARE(==)
BRIQUETTE_COMPARE(!=)

#define BRIQUETTE_HALF1(name, name2, function)                                          \
    template <int M, int B>                                                             \
    inline Small<M, B> name(Small<M, B> a) { return function((float)a); }               \
    template <class S>                                                                  \
    inline Pair<S> name2(Pair<S> a) { return {name(a.x), name(a.y)}; }
#define BRIQUETTE_HALF2(name, name2, function)                                                       \
    template <int M, int B>                                                                          \
    inline Small<M, B> name(Small<M, B> a, Small<M, B> b) { return function((float)a, (float)b); }   \
    template <class S>                                                                               \
    inline Pair<S> name2(Pair<S> a, Pair<S> b) { return {name(a.x, b.x), name(a.y, b.y)}; }
BRIQUETTE_HALF1(__habs, __habs2, fabs)
BRIQUETTE_HALF1(hrint, h2rint, rint)
BRIQUETTE_HALF1(hfloor, h2floor, floor)
BRIQUETTE_HALF1(hceil, h2ceil, ceil)
BRIQUETTE_HALF1(htrunc, h2trunc, trunc)
BRIQUETTE_HALF1(hsqrt, h2sqrt, sqrt)
BRIQUETTE_HALF1(hexp, h2exp, exp)
BRIQUETTE_HALF1(hlog, h2log, log)
BRIQUETTE_HALF1(htanh, h2tanh, tanh)
BRIQUETTE_HALF1(hsin, h2sin, sin)
BRIQUETTE_HALF1(hcos, h2cos, cos)
BRIQUETTE_HALF1(hrsqrt, h2rsqrt, rsqrt)
BRIQUETTE_HALF2(__hmin, __hmin2, min)
BRIQUETTE_HALF2(__hmax, __hmax2, max)
template <int M, int B>
inline Small<M, B> __hfma(Small<M, B> a, Small<M, B> b, Small<M, B> c) {
    return __builtin_fma((double)(float)a, (double)(float)b, (double)(float)c);
}
template <class S>
inline Pair<S> __hfma2(Pair<S> a, Pair<S> b, Pair<S> c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

}  // namespace emulator
