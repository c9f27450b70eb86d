// Handling of invalid memory accesses: the launch ends with a message that names the thread.
#pragma once
#include "fibers.h"

namespace emulator {

static struct sigaction old_fault, old_bus, old_trap;
static bool in_kernel;
static pthread_t launcher;
static const void* fault;

static void restore_handlers() {
    sigaction(SIGSEGV, &old_fault, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
    sigaction(SIGILL, &old_trap, nullptr);
}

static void on_fault(int signal, siginfo_t* info, void*) {
    if (!in_kernel || !pthread_equal(launcher, pthread_self())) {
        // Not caused by the kernel: the access is repeated and reaches the previous handler.
        restore_handlers();
        return;
    }
    uint3 t = threadIdx, b = blockIdx;
    if (signal == SIGILL)
        fail("thread %u,%u,%u of block %u,%u,%u shifted by the width of a type or more, or divided by zero", t.x, t.y, t.z, b.x, b.y, b.z);
    fault = info->si_addr;
    fail("thread %u,%u,%u of block %u,%u,%u accessed", t.x, t.y, t.z, b.x, b.y, b.z);
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
