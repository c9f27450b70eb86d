// Measures the shortest time for exact L1 pruning of one f32 tensor on one thread (AVX-512).
//
// Finds the k-th smallest magnitude in two ways: (a) by a 16-bit histogram and a selection within one bin; (b) by a
// sampled bracket, one pass that counts and compresses, and a selection within the bracket. Then it zeroes all values up
// to that magnitude in place.
//
// gcc -O3 -march=native fastprune.c -o fastprune -lm
// usage: fastprune [elements, a multiple of 16] [fraction] [repetitions, at most 64]
// Prints one JSON line with medians.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES 65536
#define MAX_REPS 64
#define SIGNLESS 0x7fffffffu

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint64_t random_state = 88172645463325252ull;

static uint64_t random_u64(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static double random_unit(void) { return (random_u64() >> 11) / 9007199254740992.0; }

static int compare_u32(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

static int compare_double(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median(double *values, int n) {
  qsort(values, n, sizeof *values, compare_double);
  return values[n / 2];
}

// Returns the k-th smallest value (from 0) by quickselect; reorders v.
static uint32_t nth(uint32_t *v, size_t n, size_t k) {
  size_t low = 0, high = n - 1;
  while (low < high) {
    uint32_t pivot = v[low + (high - low) / 2];
    size_t i = low, j = high;
    for (;;) {
      while (v[i] < pivot) i++;
      while (v[j] > pivot) j--;
      if (i >= j) break;
      uint32_t t = v[i];
      v[i] = v[j];
      v[j] = t;
      i++;
      j--;
    }
    if (k <= j)
      high = j;
    else
      low = j + 1;
  }
  return v[low];
}

// Returns the k-th smallest magnitude (from 1). Four histograms avoid store dependencies between equal neighbours.
static uint32_t select_by_histogram(const uint32_t *w, size_t n, size_t k, uint32_t *scratch) {
  static uint32_t counts[4][32768];
  memset(counts, 0, sizeof counts);
  for (size_t i = 0; i < n; i += 4)
    for (int q = 0; q < 4; q++) counts[q][(w[i + q] & SIGNLESS) >> 16]++;
  size_t below = 0;
  int bin = 0;
  for (;; bin++) {
    size_t here = (size_t)counts[0][bin] + counts[1][bin] + counts[2][bin] + counts[3][bin];
    if (below + here >= k) break;
    below += here;
  }
  size_t found = 0;
  __m512i signless = _mm512_set1_epi32(SIGNLESS), wanted = _mm512_set1_epi32(bin);
  for (size_t i = 0; i < n; i += 16) {
    __m512i x = _mm512_and_si512(_mm512_loadu_si512(w + i), signless);
    __mmask16 m = _mm512_cmpeq_epi32_mask(_mm512_srli_epi32(x, 16), wanted);
    if (m) {
      _mm512_storeu_si512(scratch + found, _mm512_maskz_compress_epi32(m, x));
      found += __builtin_popcount(m);
    }
  }
  return nth(scratch, found, k - below - 1);
}

// Returns the same from a bracket of five standard deviations around the sampled quantile. Uses the histogram if the
// bracket misses.
static uint32_t select_by_sample(const uint32_t *w, size_t n, size_t k, uint32_t *scratch) {
  static uint32_t sample[SAMPLES];
  for (int i = 0; i < SAMPLES; i++) sample[i] = w[random_u64() % n] & SIGNLESS;
  qsort(sample, SAMPLES, sizeof *sample, compare_u32);
  double f = (double)k / n;
  int margin = (int)(5 * sqrt(SAMPLES * f * (1 - f))) + 2;
  int first = (int)(SAMPLES * f) - margin, last = (int)(SAMPLES * f) + margin;
  uint32_t low = first < 0 ? 0 : sample[first], high = last >= SAMPLES ? SIGNLESS : sample[last];
  size_t below = 0, found = 0;
  __m512i signless = _mm512_set1_epi32(SIGNLESS), from = _mm512_set1_epi32(low), to = _mm512_set1_epi32(high);
  for (size_t i = 0; i < n; i += 16) {
    __m512i x = _mm512_and_si512(_mm512_loadu_si512(w + i), signless);
    __mmask16 under = _mm512_cmplt_epu32_mask(x, from), inside = _mm512_cmple_epu32_mask(x, to) & ~under;
    below += __builtin_popcount(under);
    _mm512_storeu_si512(scratch + found, _mm512_maskz_compress_epi32(inside, x));
    found += __builtin_popcount(inside);
  }
  if (k <= below || k > below + found) return select_by_histogram(w, n, k, scratch);
  return nth(scratch, found, k - below - 1);
}

// Zeroes all values up to the threshold; returns their number.
static size_t mask(uint32_t *w, size_t n, uint32_t threshold) {
  __m512i signless = _mm512_set1_epi32(SIGNLESS), limit = _mm512_set1_epi32(threshold);
  size_t zeros = 0;
  for (size_t i = 0; i < n; i += 16) {
    __m512i x = _mm512_loadu_si512(w + i);
    __mmask16 kept = _mm512_cmpgt_epu32_mask(_mm512_and_si512(x, signless), limit);
    zeros += 16 - __builtin_popcount(kept);
    _mm512_storeu_si512(w + i, _mm512_maskz_mov_epi32(kept, x));
  }
  return zeros;
}

int main(int argc, char **argv) {
  size_t n = argc > 1 ? strtoull(argv[1], 0, 10) : 1 << 24;
  double fraction = argc > 2 ? atof(argv[2]) : 0.4;
  int reps = argc > 3 ? atoi(argv[3]) : 7;
  if (n == 0 || n % 16 || reps < 1 || reps > MAX_REPS) {
    fprintf(stderr, "usage: fastprune [elements, a multiple of 16] [fraction] [repetitions, at most %d]\n", MAX_REPS);
    return 2;
  }
  size_t k = (size_t)(fraction * n);
  float *weights = aligned_alloc(64, n * 4);
  uint32_t *work = aligned_alloc(64, n * 4), *scratch = aligned_alloc(64, n * 4 + 64);
  for (size_t i = 0; i < n; i++) {
    double radius = sqrt(-2 * log(random_unit() + 1e-12));
    weights[i] = radius * cos(6.283185307 * random_unit()) * (1 + (i / 4096 % 7));
  }
  memset(scratch, 1, n * 4);

  double histogram_s[MAX_REPS], sample_s[MAX_REPS], mask_s[MAX_REPS];
  uint32_t by_histogram = 0, by_sample = 0;
  size_t zeros = 0;
  for (int r = 0; r < reps; r++) {
    memcpy(work, weights, n * 4);
    double t0 = cpu_seconds();
    by_histogram = select_by_histogram(work, n, k, scratch);
    double t1 = cpu_seconds();
    by_sample = select_by_sample(work, n, k, scratch);
    double t2 = cpu_seconds();
    zeros = mask(work, n, by_sample);
    double t3 = cpu_seconds();
    histogram_s[r] = t1 - t0;
    sample_s[r] = t2 - t1;
    mask_s[r] = t3 - t2;
  }
  printf("{\"elems\":%zu,\"hist_select_ms\":%.2f,\"sampled_select_ms\":%.2f,\"mask_ms\":%.2f,", n,
         median(histogram_s, reps) * 1e3, median(sample_s, reps) * 1e3, median(mask_s, reps) * 1e3);
  printf("\"agree\":%d,\"zeros\":%zu,\"k\":%zu}\n", by_histogram == by_sample, zeros, k);
  return 0;
}
