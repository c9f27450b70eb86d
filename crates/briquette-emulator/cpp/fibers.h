// The threads of a block as fibers. Each has a stack, runs until it waits for other threads, and then returns control to
// the scheduler. One fiber runs at a time, in a fixed order, so that launches are deterministic.
#pragma once
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

namespace emulator {

#if defined(__x86_64__)
// ucontext would also work, but calls the operating system for the signal mask at each switch.
struct Context {
    void* stack_pointer;
};
extern "C" __attribute__((visibility("hidden"))) void briquette_switch(void** from, void* to);
asm(R"(
.text
.type briquette_switch, @function
briquette_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size briquette_switch, .-briquette_switch
)");
inline void switch_context(Context& from, Context& to) { briquette_switch(&from.stack_pointer, to.stack_pointer); }
inline void start_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
    // `ret` pops the entry; after it the stack has the alignment that it has after a call.
    void** slot = (void**)(((size_t)stack + bytes - 32) & ~(size_t)15);
    slot[0] = (void*)entry;
    slot[1] = nullptr;
    context.stack_pointer = slot - 6;
    memset(context.stack_pointer, 0, 6 * sizeof(void*));
}
#else
struct Context {
    ucontext_t context;
};
inline void switch_context(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
inline void start_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = bytes;
    context.context.uc_link = nullptr;
    makecontext(&context.context, entry, 0);
}
#endif

struct uint3 {
    unsigned x, y, z;
};

// What a thread waits for. Every thread of its warp or block has to wait for the same.
enum Wait { Ready, Barrier, WarpBarrier, Shuffle, Vote, Mma, Done };
static const char* const wait_names[] = {
    "runs", "__syncthreads", "__syncwarp", "a shuffle", "a vote", "mma.sync", "returned",
};

struct Fiber {
    Context context;
    char* stack;
    uint3 index;
    Wait wait;
    int line;
    // Operands and result of the pending collective operation.
    unsigned long long value[2], result[2];
    int source_lane;
    unsigned a[4], b[2], c[4], d[4];
};

// max_threads and stack_bytes must match kernel.rs.
constexpr unsigned warp_size = 32, max_threads = 1024;
constexpr size_t stack_bytes = 128 << 10;

static Fiber fibers[max_threads];
static unsigned n_fibers;
static Fiber* current;
static Context scheduler;

// CUDA's built-in variables for the current thread and launch.
static uint3 threadIdx, blockIdx, blockDim, gridDim;

// Whether out-of-range conversions to integers saturate; otherwise they are a fault.
static bool saturates;

// The return point and the message of a failed launch.
static sigjmp_buf escape;
static char* message;
static size_t message_bytes;

[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, message_bytes, format, arguments);
    va_end(arguments);
    siglongjmp(escape, 1);
}

static unsigned position(const Fiber& fiber) { return &fiber - fibers; }

// Suspends the current thread until the scheduler resumes it.
__attribute__((noinline)) static void wait_for(Wait what, int line) {
    current->wait = what;
    current->line = line;
    switch_context(current->context, scheduler);
}

}  // namespace emulator
