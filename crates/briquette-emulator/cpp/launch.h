// A launch: runs the arguments of cuLaunchKernel with fibers.
#pragma once
#include <utility>

#include "faults.h"
#include "schedule.h"

namespace emulator {

// Must match kernel.rs.
struct Launch {
    unsigned grid[3], block[3];
    char* shared;  // of a block
    size_t shared_bytes;
    void** parameters;  // pointers to the parameters
    char* stacks;       // max_threads of stack_bytes
    bool backwards;     // run threads and blocks from the last to the first
    bool saturates;     // saturate out-of-range conversions to integers, as on a device
    char* message;
    size_t message_bytes;
    const void* fault;  // out: the address of an invalid memory access
};

static char* shared;
inline char* shared_memory() { return shared; }

template <class T>
struct element_bytes_of {
    static constexpr size_t value = 0;
};
template <class T>
struct element_bytes_of<T*> {
    static constexpr size_t value = sizeof(T);
};

// A kernel's parameters, passed by address.
template <class... P>
struct Parameters {
    static constexpr size_t count = sizeof...(P);
    static constexpr size_t element_bytes[] = {element_bytes_of<P>::value...};
    static constexpr size_t bytes[] = {sizeof(P)...};
    template <size_t... I>
    static void call(void (*kernel)(P...), void** values, std::index_sequence<I...>) {
        kernel(*(P*)values[I]...);
    }
};
template <class... P>
Parameters<P...> parameters_of(void (*)(P...));

static void run_grid(const Launch& launch) {
    size_t n_blocks = (size_t)gridDim.x * gridDim.y * gridDim.z;
    for (size_t turn = 0; turn < n_blocks; turn++) {
        size_t i = backwards ? n_blocks - 1 - turn : turn;
        blockIdx = {(unsigned)(i % gridDim.x), (unsigned)(i / gridDim.x % gridDim.y),
                    (unsigned)(i / gridDim.x / gridDim.y)};
        // Shared memory is uninitialized: each direction has a different poison value, so that reads of it are detected.
        memset(shared, backwards ? 0x55 : 0x7f, launch.shared_bytes);
        run_block();
    }
}

// Returns 0, or 1 with a message.
static int run(Launch& launch, void (*kernel)(void**)) {
    message = launch.message;
    message_bytes = launch.message_bytes;
    fault = nullptr;
    install_handlers();
    int failed = sigsetjmp(escape, 1);
    if (!failed) {
        backwards = launch.backwards;
        saturates = launch.saturates;
        gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
        blockDim = {launch.block[0], launch.block[1], launch.block[2]};
        shared = launch.shared;
        body = kernel;
        parameters = launch.parameters;
        make_fibers(launch.stacks);
        in_kernel = true;
        run_grid(launch);
    }
    in_kernel = false;
    restore_handlers();
    launch.fault = fault;
    return failed;
}

}  // namespace emulator
