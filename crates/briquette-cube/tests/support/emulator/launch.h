// One launch: what cuLaunchKernel is given, done by the fibers.
#pragma once
#include <utility>

#include "memory.h"
#include "schedule.h"

namespace emulator {

// The same in library.rs.
struct Launch {
    unsigned grid[3], block[3];
    size_t shared_bytes;
    size_t n_buffers;
    char* const* buffers;
    const size_t* buffer_bytes;
    const void* info;  // passed by value, behind the buffers
    size_t info_bytes;
    bool backwards;
    char* message;
    size_t message_bytes;
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

// A kernel's parameters, each given by its address.
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
        // Nothing is in shared memory at first: what reads it sees another poison in each direction.
        memset(shared, backwards ? 0x55 : poison, launch.shared_bytes);
        run_block();
    }
}

static void prepare(const Launch& launch, void** values, char** pointers) {
    backwards = launch.backwards;
    gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    blockDim = {launch.block[0], launch.block[1], launch.block[2]};
    make_fibers();
    for (size_t i = 0; i < launch.n_buffers; i++) {
        pointers[i] = allocate(launch.buffer_bytes[i], backwards);
        memcpy(pointers[i], launch.buffers[i], launch.buffer_bytes[i]);
        values[i] = &pointers[i];
    }
    values[launch.n_buffers] = (void*)launch.info;
    shared = allocate(launch.shared_bytes, backwards);
    parameters = values;
}

static void check_parameters(const Launch& launch, size_t n_parameters, const size_t* parameter_bytes) {
    if (launch.n_buffers + 1 > max_arenas) fail("%zu buffers", launch.n_buffers);
    if (n_parameters == launch.n_buffers) return;
    if (n_parameters != launch.n_buffers + 1)
        fail("the kernel has %zu parameters, the launch %zu buffers", n_parameters, launch.n_buffers);
    if (parameter_bytes[launch.n_buffers] != launch.info_bytes)
        fail("the kernel's scalars and lengths have %zu bytes, the launch's %zu: other scalars, or other types",
             parameter_bytes[launch.n_buffers], launch.info_bytes);
}

// 0, or 1 with a message. `n_parameters` are those of the kernel.
static int run(const Launch& launch, size_t n_parameters, const size_t* parameter_bytes, void (*kernel)(void**)) {
    static void* values[max_arenas];
    static char* pointers[max_arenas];
    message = launch.message;
    message_bytes = launch.message_bytes;
    install_handlers();
    int failed = sigsetjmp(escape, 1);
    if (!failed) {
        check_parameters(launch, n_parameters, parameter_bytes);
        body = kernel;
        prepare(launch, values, pointers);
        in_kernel = true;
        run_grid(launch);
        in_kernel = false;
        check_canaries();
        for (size_t i = 0; i < launch.n_buffers; i++)
            memcpy(launch.buffers[i], pointers[i], launch.buffer_bytes[i]);
    }
    in_kernel = false;
    restore_handlers();
    free_arenas();
    return failed;
}

}  // namespace emulator
