// Runs the threads of a block in turn until all have returned.
#pragma once
#include "collectives.h"

namespace emulator {

// Calls the kernel with the parameters of the launch.
static void (*body)(void** parameters);
static void** parameters;
static bool backwards;

static void run_fiber() {
    body(parameters);
    wait_for(Done, 0);
}

// Returns a thread of first..end if all that have not returned wait for the same, otherwise null.
static const Fiber* agreed(unsigned first, unsigned end) {
    const Fiber* found = nullptr;
    for (unsigned i = first; i < end; i++) {
        if (fibers[i].wait == Done) continue;
        if (found && (found->wait != fibers[i].wait || found->line != fibers[i].line)) return nullptr;
        found = &fibers[i];
    }
    return found;
}

static void release(unsigned first, unsigned end) {
    for (unsigned i = first; i < end; i++)
        if (fibers[i].wait != Done) fibers[i].wait = Ready;
}

// Executes the pending collective operation of a warp if all of its threads have reached it.
static bool resolve_warp(unsigned first) {
    unsigned end = first + warp_size < n_fibers ? first + warp_size : n_fibers;
    const Fiber* all = agreed(first, end);
    if (!all || all->wait == Barrier) return false;
    Fiber* warp = fibers + first;
    if (all->wait == Shuffle) resolve_shuffle(warp, end - first);
    if (all->wait == Vote) resolve_vote(warp, end - first);
    if (all->wait == Mma) {
        for (unsigned i = first; i < first + warp_size; i++)
            if (i >= end || fibers[i].wait == Done) fail("line %d: mma.sync without lane %u", all->line, i % warp_size);
        resolve_mma(warp);
    }
    release(first, end);
    return true;
}

static bool resolve() {
    bool resolved = false;
    for (unsigned first = 0; first < n_fibers; first += warp_size) resolved |= resolve_warp(first);
    if (resolved) return true;
    const Fiber* all = agreed(0, n_fibers);
    if (!all || all->wait != Barrier) return false;
    release(0, n_fibers);
    return true;
}

// Reports the first thread of each group that waits for the same.
[[noreturn]] static void fail_divergent() {
    char text[512];
    size_t used = 0;
    const Fiber* last = nullptr;
    for (unsigned i = 0; i < n_fibers && used < sizeof text - 96; i++) {
        const Fiber& fiber = fibers[i];
        if (fiber.wait == Done || (last && last->wait == fiber.wait && last->line == fiber.line)) continue;
        last = &fiber;
        used += snprintf(text + used, sizeof text - used, "; from thread %u: %s of line %d", i, wait_names[fiber.wait],
                         fiber.line);
    }
    fail("block %u,%u,%u: its threads wait for different things%s", blockIdx.x, blockIdx.y, blockIdx.z, text);
}

static void run_block() {
    for (unsigned i = 0; i < n_fibers; i++) {
        fibers[i].wait = Ready;
        start_context(fibers[i].context, fibers[i].stack, stack_bytes, run_fiber);
    }
    for (bool running = true; running;) {
        running = false;
        for (unsigned turn = 0; turn < n_fibers; turn++) {
            current = fibers + (backwards ? n_fibers - 1 - turn : turn);
            if (current->wait != Ready) continue;
            threadIdx = current->index;
            switch_context(scheduler, current->context);
        }
        for (unsigned i = 0; i < n_fibers; i++) running |= fibers[i].wait != Done;
        if (running && !resolve()) fail_divergent();
    }
}

static void make_fibers(char* stacks) {
    n_fibers = blockDim.x * blockDim.y * blockDim.z;
    if (n_fibers == 0 || n_fibers > max_threads) fail("a block of %u threads", n_fibers);
    for (unsigned i = 0; i < n_fibers; i++) {
        fibers[i].stack = stacks + i * stack_bytes;
        fibers[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    }
}

}  // namespace emulator
