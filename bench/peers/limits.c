// Measures the limits of a machine: clock, register peaks of f32, int8 and bf16 (AVX-512), memory and page-fault rates.
//
// gcc -O3 -march=native -pthread limits.c -o limits
// usage: limits [threads, at most 8] [repetitions, at most 64]
//
// Prints one JSON line. min, med, max: wall-clock rates of all threads together (clock: of one thread). cpu_med: work per
// CPU second of a thread, summed over the threads; other jobs on the same cores affect it least.
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_THREADS 8
#define MAX_REPS 64
#define BYTES (512ull << 20)  // of each of the two buffers, divided among the threads
#define PASSES 3
#define PAGE 4096

typedef struct {
  int core, kernel;
  size_t bytes;
  char *from, *to;
  double start, end, cpu, work;
  volatile float sink;
} Job;

static pthread_barrier_t barrier;

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// ---- registers ------------------------------------------------------------------------------------------------------

#define ROUNDS 40000000L
// Twelve independent accumulators hide the latency of the instruction.
#define TWELVE(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

static void fma512(Job *job) {
  __m512 x[12], m = _mm512_set1_ps(0.999f), a = _mm512_set1_ps(1e-3f);
  for (int i = 0; i < 12; i++) x[i] = _mm512_set1_ps(i);
  for (long n = 0; n < ROUNDS; n++) {
#define STEP(i) x[i] = _mm512_fmadd_ps(x[i], m, a);
    TWELVE(STEP)
#undef STEP
  }
  for (int i = 1; i < 12; i++) x[0] = _mm512_add_ps(x[0], x[i]);
  job->sink = _mm512_reduce_add_ps(x[0]);
  job->work = (double)ROUNDS * 12 * 32;
}

static void fma256(Job *job) {
  __m256 x[12], m = _mm256_set1_ps(0.999f), a = _mm256_set1_ps(1e-3f);
  for (int i = 0; i < 12; i++) x[i] = _mm256_set1_ps(i);
  for (long n = 0; n < ROUNDS; n++) {
#define STEP(i) x[i] = _mm256_fmadd_ps(x[i], m, a);
    TWELVE(STEP)
#undef STEP
  }
  for (int i = 1; i < 12; i++) x[0] = _mm256_add_ps(x[0], x[i]);
  job->sink = _mm256_cvtss_f32(x[0]);
  job->work = (double)ROUNDS * 12 * 16;
}

// The dot products are in assembly, so that the compiler can neither fold nor reorder them. They use twelve variables,
// because an array of operands would be on the stack.
#define DOT(instruction, i) __asm__ volatile(instruction " %2,%1,%0" : "+v"(x##i) : "v"(u), "v"(v));
#define VPDPBUSD(i) DOT("vpdpbusd", i)
#define VDPBF16PS(i) DOT("vdpbf16ps", i)

static void vnni512(Job *job) {
  __m512i u = _mm512_set1_epi8(3), v = _mm512_set1_epi8(-2), sum = _mm512_setzero_si512();
#define DECLARE(i) __m512i x##i = _mm512_setzero_si512();
  TWELVE(DECLARE)
  for (long n = 0; n < ROUNDS; n++) {
    TWELVE(VPDPBUSD)
  }
#define ADD(i) sum = _mm512_add_epi32(sum, x##i);
  TWELVE(ADD)
#undef DECLARE
#undef ADD
  job->sink = _mm512_reduce_add_epi32(sum);
  job->work = (double)ROUNDS * 12 * 128;
}

static void vnni256(Job *job) {
  __m256i u = _mm256_set1_epi8(3), v = _mm256_set1_epi8(-2), sum = _mm256_setzero_si256();
#define DECLARE(i) __m256i x##i = _mm256_setzero_si256();
  TWELVE(DECLARE)
  for (long n = 0; n < ROUNDS; n++) {
    TWELVE(VPDPBUSD)
  }
#define ADD(i) sum = _mm256_add_epi32(sum, x##i);
  TWELVE(ADD)
#undef DECLARE
#undef ADD
  job->sink = _mm256_extract_epi32(sum, 0);
  job->work = (double)ROUNDS * 12 * 64;
}

static void bf16_512(Job *job) {
  __m512i u = _mm512_set1_epi16(0x3f80), v = _mm512_set1_epi16(0x3c00);
  __m512 sum = _mm512_setzero_ps();
#define DECLARE(i) __m512 x##i = _mm512_setzero_ps();
  TWELVE(DECLARE)
  for (long n = 0; n < ROUNDS; n++) {
    TWELVE(VDPBF16PS)
  }
#define ADD(i) sum = _mm512_add_ps(sum, x##i);
  TWELVE(ADD)
#undef DECLARE
#undef ADD
  job->sink = _mm512_reduce_add_ps(sum);
  job->work = (double)ROUNDS * 12 * 64;
}

// One dependent add per cycle. It adds a register, because newer cores fold many adds of constants per cycle at rename.
static void clock_rate(Job *job) {
  uint64_t x = job->core, step = 1;
  const long n = 1000000000;
#define ADD __asm__ volatile("add %1,%0" : "+r"(x) : "r"(step));
  for (long i = 0; i < n; i += 16) {
    ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD
  }
#undef ADD
  job->sink = x;
  job->work = n;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

static void copy(Job *job) {  // counts the bytes copied; the traffic is twice as much
  for (int pass = 0; pass < PASSES; pass++) {
    memcpy(job->to, job->from, job->bytes);
    __asm__ volatile("" ::: "memory");
  }
  job->work = (double)PASSES * job->bytes;
}

static void streaming_copy(Job *job) {
  for (int pass = 0; pass < PASSES; pass++)
    for (size_t i = 0; i < job->bytes; i += 64)
      _mm512_stream_si512((void *)(job->to + i), _mm512_load_si512(job->from + i));
  _mm_sfence();
  job->work = (double)PASSES * job->bytes;
}

static void read_all(Job *job) {
  __m512i sum[4];
  for (int i = 0; i < 4; i++) sum[i] = _mm512_setzero_si512();
  for (int pass = 0; pass < PASSES; pass++)
    for (size_t i = 0; i < job->bytes; i += 256) {
      sum[0] = _mm512_add_epi32(sum[0], _mm512_load_si512(job->from + i));
      sum[1] = _mm512_add_epi32(sum[1], _mm512_load_si512(job->from + i + 64));
      sum[2] = _mm512_add_epi32(sum[2], _mm512_load_si512(job->from + i + 128));
      sum[3] = _mm512_add_epi32(sum[3], _mm512_load_si512(job->from + i + 192));
    }
  for (int i = 1; i < 4; i++) sum[0] = _mm512_add_epi32(sum[0], sum[i]);
  job->sink = _mm512_reduce_add_epi32(sum[0]);
  job->work = (double)PASSES * job->bytes;
}

static void fill(Job *job) {
  for (int pass = 0; pass < PASSES; pass++) {
    memset(job->to, pass, job->bytes);
    __asm__ volatile("" ::: "memory");
  }
  job->work = (double)PASSES * job->bytes;
}

static void streaming_fill(Job *job) {
  __m512i ones = _mm512_set1_epi8(1);
  for (int pass = 0; pass < PASSES; pass++)
    for (size_t i = 0; i < job->bytes; i += 64) _mm512_stream_si512((void *)(job->to + i), ones);
  _mm_sfence();
  job->work = (double)PASSES * job->bytes;
}

static void touch_pages(Job *job, int huge) {
  char *p = mmap(0, job->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  if (huge) madvise(p, job->bytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < job->bytes; i += PAGE) p[i] = 1;
  munmap(p, job->bytes);
  job->work = job->bytes;
}

static void page_fault(Job *job) { touch_pages(job, 0); }
static void page_fault_huge(Job *job) { touch_pages(job, 1); }

// ---- the table ------------------------------------------------------------------------------------------------------

static const struct {
  const char *name;
  void (*run)(Job *);
} KERNELS[] = {
    {"clock_ghz", clock_rate},       {"f32_fma512_gflops", fma512},    {"f32_fma256_gflops", fma256},
    {"int8_vnni512_gops", vnni512},  {"int8_vnni256_gops", vnni256},   {"bf16_dp512_gflops", bf16_512},
    {"memcpy_gbs", copy},            {"ntcopy_gbs", streaming_copy},   {"read_gbs", read_all},
    {"memset_gbs", fill},            {"ntwrite_gbs", streaming_fill},  {"pagefault_gbs", page_fault},
    {"pagefault_thp_gbs", page_fault_huge},
};
#define N_KERNELS (int)(sizeof KERNELS / sizeof *KERNELS)

static void *on_own_core(void *argument) {
  Job *job = argument;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(job->core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  pthread_barrier_wait(&barrier);
  job->start = seconds(CLOCK_MONOTONIC);
  double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
  KERNELS[job->kernel].run(job);
  job->cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
  job->end = seconds(CLOCK_MONOTONIC);
  return 0;
}

// Runs one kernel on all threads; returns billions of units of work per second of wall time and of CPU time.
static void measure(Job *jobs, int n_threads, int kernel, double *per_wall, double *per_cpu) {
  pthread_t threads[MAX_THREADS];
  pthread_barrier_init(&barrier, 0, n_threads);
  for (int i = 0; i < n_threads; i++) {
    jobs[i].kernel = kernel;
    pthread_create(&threads[i], 0, on_own_core, &jobs[i]);
  }
  double start = 1e99, end = 0, work = 0;
  *per_cpu = 0;
  for (int i = 0; i < n_threads; i++) {
    pthread_join(threads[i], 0);
    if (jobs[i].start < start) start = jobs[i].start;
    if (jobs[i].end > end) end = jobs[i].end;
    work += jobs[i].work;
    *per_cpu += jobs[i].work / jobs[i].cpu / 1e9;
  }
  pthread_barrier_destroy(&barrier);
  *per_wall = work / (end - start) / 1e9;
}

static int compare_double(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
  int n_threads = argc > 1 ? atoi(argv[1]) : 1, reps = argc > 2 ? atoi(argv[2]) : 7;
  if (n_threads < 1 || n_threads > MAX_THREADS || reps < 1 || reps > MAX_REPS) {
    fprintf(stderr, "usage: limits [threads, at most %d] [repetitions, at most %d]\n", MAX_THREADS, MAX_REPS);
    return 2;
  }
  Job jobs[MAX_THREADS];
  for (int i = 0; i < n_threads; i++) {
    size_t bytes = BYTES / n_threads / PAGE * PAGE;
    jobs[i] = (Job){.core = i, .bytes = bytes, .from = aligned_alloc(PAGE, bytes), .to = aligned_alloc(PAGE, bytes)};
    memset(jobs[i].from, 1, bytes);
    memset(jobs[i].to, 2, bytes);
  }
  printf("{\"threads\":%d", n_threads);
  for (int kernel = 0; kernel < N_KERNELS; kernel++) {
    double wall[MAX_REPS], cpu[MAX_REPS], ignored;
    measure(jobs, n_threads, kernel, &ignored, &ignored);  // warm-up
    for (int r = 0; r < reps; r++) measure(jobs, n_threads, kernel, &wall[r], &cpu[r]);
    qsort(wall, reps, sizeof *wall, compare_double);
    qsort(cpu, reps, sizeof *cpu, compare_double);
    double share = kernel == 0 ? n_threads : 1;
    printf(",\"%s\":{\"min\":%.2f,\"med\":%.2f,\"max\":%.2f,\"cpu_med\":%.2f}", KERNELS[kernel].name, wall[0] / share,
           wall[reps / 2] / share, wall[reps - 1] / share, cpu[reps / 2] / share);
    fflush(stdout);
  }
  printf("}\n");
  return 0;
}
