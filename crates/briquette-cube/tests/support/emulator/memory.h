// Buffers between pages that cannot be touched. A buffer ends (or, in a launch that runs backwards, begins) right at
// such a page, so that an access behind its end (before its begin) stops the launch; the bytes that are left over on
// the other side are checked afterwards.
#pragma once
#include "fibers.h"

namespace emulator {

constexpr unsigned char poison = 0x7f;  // i8 127, f32 3.4e38, f16 NaN
constexpr unsigned max_arenas = 34;
// As far as an index of 32 bits can reach in a buffer of 16-byte vectors, so that one that wrapped around is found too.
constexpr size_t reach = (size_t)64 << 30;

// A page that cannot be touched, `usable` bytes with the `bytes` at `data` among them, and such pages for `reach` bytes.
struct Arena {
    char *map, *data;
    size_t map_bytes, usable, bytes;
};
static Arena arenas[max_arenas];
static unsigned n_arenas;

static char* allocate(size_t bytes, bool at_begin) {
    if (n_arenas == max_arenas) fail("more than %u buffers", max_arenas - 1);
    size_t page = sysconf(_SC_PAGESIZE), usable = (bytes + page) / page * page;
    Arena arena = {nullptr, nullptr, page + usable + reach, usable, bytes};
    void* map = mmap(nullptr, arena.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) fail("no memory for a buffer of %zu bytes", bytes);
    arena.map = (char*)map;
    char* begin = arena.map + page;
    mprotect(begin, usable, PROT_READ | PROT_WRITE);
    memset(begin, poison, usable);
    // 16 bytes: what the widest vector load needs.
    arena.data = at_begin ? begin : begin + ((usable - bytes) & ~(size_t)15);
    arenas[n_arenas++] = arena;
    return arena.data;
}

// Fails where the bytes around a buffer were written.
static void check_canaries() {
    size_t page = sysconf(_SC_PAGESIZE);
    for (unsigned i = 0; i < n_arenas; i++) {
        const Arena& arena = arenas[i];
        for (char* at = arena.map + page; at < arena.map + page + arena.usable; at++) {
            if (at >= arena.data && at < arena.data + arena.bytes) continue;
            if ((unsigned char)*at != poison)
                fail("buffer %u of %zu bytes was written at byte %td", i, arena.bytes, at - arena.data);
        }
    }
}

static void free_arenas() {
    for (unsigned i = 0; i < n_arenas; i++) munmap(arenas[i].map, arenas[i].map_bytes);
    n_arenas = 0;
}

static struct sigaction old_fault, old_bus, old_trap;
static bool in_kernel;
static pthread_t launcher;

static void restore_handlers() {
    sigaction(SIGSEGV, &old_fault, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
    sigaction(SIGILL, &old_trap, nullptr);
}

static void on_fault(int signal, siginfo_t* info, void*) {
    if (!in_kernel || !pthread_equal(launcher, pthread_self())) {
        // Not the kernel's: the access is repeated and meets the former handler.
        restore_handlers();
        return;
    }
    char* at = (char*)info->si_addr;
    uint3 t = threadIdx, b = blockIdx;
    if (signal == SIGILL)
        fail("thread %u,%u,%u of block %u,%u,%u shifted by the width of a type or more, or divided by zero", t.x, t.y, t.z, b.x, b.y, b.z);
    for (unsigned i = 0; i < n_arenas; i++)
        if (at >= arenas[i].map && at < arenas[i].map + arenas[i].map_bytes)
            fail("thread %u,%u,%u of block %u,%u,%u touched byte %td of buffer %u, which has %zu", t.x, t.y, t.z, b.x,
                 b.y, b.z, at - arenas[i].data, i, arenas[i].bytes);
    fail("thread %u,%u,%u of block %u,%u,%u touched memory outside of all buffers", t.x, t.y, t.z, b.x, b.y, b.z);
}

static void install_handlers() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &old_fault);
    sigaction(SIGBUS, &action, &old_bus);
    sigaction(SIGILL, &action, &old_trap);
    launcher = pthread_self();
}

}  // namespace emulator
