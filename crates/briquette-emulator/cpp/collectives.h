// Collective operations of a warp: shuffles, votes and the matrix product of the tensor cores.
#pragma once
#include "fibers.h"

namespace emulator {

inline void sync_threads(int line) { wait_for(Barrier, line); }
inline void sync_warp(int line) { wait_for(WarpBarrier, line); }

static unsigned first_of_warp() { return position(*current) / warp_size * warp_size; }
static int lane_of(const Fiber& fiber) { return position(fiber) % warp_size; }

// The lanes of the current warp that have not returned. Real hardware may also exclude lanes that took another branch;
// here, a collective operation that some of these lanes never reach is an error.
inline unsigned active_mask() {
    unsigned mask = 0;
    for (unsigned lane = 0; lane < warp_size; lane++) {
        unsigned thread = first_of_warp() + lane;
        if (thread < n_fibers && fibers[thread].wait != Done) mask |= 1u << lane;
    }
    return mask;
}

// Returns the value of `lane`, like the `__shfl_sync` functions.
template <class T>
inline T shuffle(T value, int lane, int line) {
    static_assert(sizeof(T) <= sizeof current->value, "a shuffle moves 16 bytes at most");
    memcpy(current->value, &value, sizeof(T));
    current->source_lane = lane;
    wait_for(Shuffle, line);
    memcpy(&value, current->result, sizeof(T));
    return value;
}
template <class T>
inline T shuffle_up(T value, unsigned delta, int line) {
    int lane = lane_of(*current);
    return shuffle(value, delta > (unsigned)lane ? lane : lane - (int)delta, line);
}
template <class T>
inline T shuffle_down(T value, unsigned delta, int line) {
    int lane = lane_of(*current);
    return shuffle(value, delta > 31u - lane ? lane : lane + (int)delta, line);
}
template <class T>
inline T shuffle_xor(T value, unsigned mask, int line) {
    return shuffle(value, (lane_of(*current) ^ mask) % warp_size, line);
}

// Returns one bit per lane, set if its predicate is true.
inline unsigned ballot(bool predicate, int line) {
    current->value[0] = predicate;
    wait_for(Vote, line);
    return (unsigned)current->result[0];
}
inline bool all(bool predicate, int line) {
    unsigned mask = active_mask();
    return ballot(predicate, line) == mask;
}

inline int byte_of(unsigned word, int index, bool is_signed) {
    unsigned byte = word >> (8 * index) & 0xff;
    return is_signed ? (int)(signed char)byte : (int)byte;
}

// The kind of a product of floats; products of integers have the signs of their factors.
constexpr int FLOATS = 4;

// d = a * b + c of mma.sync.aligned.m16n8k32.row.col.s32.{s8,u8}.{s8,u8}.s32, with wrapping overflow.
template <bool A_SIGNED, bool B_SIGNED, typename D>
inline void mma_m16n8k32(int line, D& d0, D& d1, D& d2, D& d3, unsigned a0, unsigned a1,
                         unsigned a2, unsigned a3, unsigned b0, unsigned b1, unsigned c0, unsigned c1, unsigned c2,
                         unsigned c3) {
    unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1}, c[4] = {c0, c1, c2, c3};
    memcpy(current->a, a, sizeof a);
    memcpy(current->b, b, sizeof b);
    memcpy(current->c, c, sizeof c);
    current->source_lane = A_SIGNED + 2 * B_SIGNED;
    wait_for(Mma, line);
    d0 = (D)current->d[0], d1 = (D)current->d[1], d2 = (D)current->d[2], d3 = (D)current->d[3];
}

// d = a * b + c of mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32.
inline void mma_m16n8k8(int line, float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2,
                        unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {
    unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    float c[4] = {c0, c1, c2, c3}, d[4];
    memcpy(current->a, a, sizeof a);
    memcpy(current->b, b, sizeof b);
    memcpy(current->c, c, sizeof c);
    current->source_lane = FLOATS;
    wait_for(Mma, line);
    memcpy(d, current->d, sizeof d);
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}

static float tf32_of(unsigned bits) {
    float value;
    bits &= 0xffffe000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The fragments have the layout of "Matrix Fragments for mma.m16n8k8" of .tf32 in the PTX ISA:
//   A, 16x8: register r holds row group + 8 * (r % 2), column member + 4 * (r / 2);
//   B, 8x8:  register r holds row member + 4 * r, column group; C and D as below.
static void resolve_float_mma(Fiber* warp) {
    float a[16][8], b[8][8];
    for (unsigned lane = 0; lane < warp_size; lane++) {
        unsigned group = lane / 4, member = lane % 4;
        for (int r = 0; r < 4; r++) a[group + 8 * (r % 2)][member + 4 * (r / 2)] = tf32_of(warp[lane].a[r]);
        for (int r = 0; r < 2; r++) b[member + 4 * r][group] = tf32_of(warp[lane].b[r]);
    }
    for (unsigned lane = 0; lane < warp_size; lane++)
        for (int r = 0; r < 4; r++) {
            unsigned row = lane / 4 + 8 * (r / 2), column = lane % 4 * 2 + r % 2;
            float sum;
            memcpy(&sum, warp[lane].c + r, sizeof sum);
            for (int k = 0; k < 8; k++) sum += a[row][k] * b[k][column];
            memcpy(warp[lane].d + r, &sum, sizeof sum);
        }
}

// The fragments have the layout of "Matrix Fragments for mma.m16n8k32" in the PTX ISA. With group = lane / 4 and
// member = lane % 4, the four bytes of a register are neighbours in k, and
//   A, 16x32: register r holds row group + 8 * (r % 2), columns starting at member * 4 + 16 * (r / 2);
//   B, 32x8:  register r holds column group, rows starting at member * 4 + 16 * r;
//   C and D, 16x8: register r holds row group + 8 * (r / 2), column member * 2 + r % 2.
static void resolve_mma(Fiber* warp) {
    if (warp->source_lane == FLOATS) return resolve_float_mma(warp);
    int a[16][32], b[32][8];
    bool a_signed = warp->source_lane & 1, b_signed = warp->source_lane & 2;
    for (unsigned lane = 0; lane < warp_size; lane++) {
        unsigned group = lane / 4, member = lane % 4;
        for (int byte = 0; byte < 4; byte++) {
            for (int r = 0; r < 4; r++)
                a[group + 8 * (r % 2)][member * 4 + 16 * (r / 2) + byte] = byte_of(warp[lane].a[r], byte, a_signed);
            for (int r = 0; r < 2; r++)
                b[member * 4 + 16 * r + byte][group] = byte_of(warp[lane].b[r], byte, b_signed);
        }
    }
    for (unsigned lane = 0; lane < warp_size; lane++)
        for (int r = 0; r < 4; r++) {
            unsigned row = lane / 4 + 8 * (r / 2), column = lane % 4 * 2 + r % 2, sum = warp[lane].c[r];
            for (int k = 0; k < 32; k++) sum += (unsigned)(a[row][k] * b[k][column]);
            warp[lane].d[r] = sum;
        }
}

static void resolve_shuffle(Fiber* warp, unsigned lanes) {
    for (unsigned lane = 0; lane < lanes; lane++) {
        if (warp[lane].wait == Done) continue;
        unsigned from = (unsigned)warp[lane].source_lane % warp_size;
        if (from >= lanes || warp[from].wait == Done)
            fail("line %d: lane %u shuffles from lane %u, which is not active", warp[lane].line, lane, from);
        memcpy(warp[lane].result, warp[from].value, sizeof warp[from].value);
    }
}

static void resolve_vote(Fiber* warp, unsigned lanes) {
    unsigned long long mask = 0;
    for (unsigned lane = 0; lane < lanes; lane++)
        if (warp[lane].wait != Done && warp[lane].value[0]) mask |= 1ull << lane;
    for (unsigned lane = 0; lane < lanes; lane++) warp[lane].result[0] = mask;
}

}  // namespace emulator
