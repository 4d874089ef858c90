#include "tests/bench/limits.h"

#include <cstring>

#include "base/check.h"

// One body for each instruction set, chosen when the program is loaded.
#define TESSERA_BENCH_CLONES \
  __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))

namespace tessera {
namespace bench {
namespace {

TESSERA_BENCH_CLONES
void Sum1(const float* __restrict a, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] * 0.5f;
}

TESSERA_BENCH_CLONES
void Sum2(const float* __restrict a, const float* __restrict b, int64_t count,
          float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

TESSERA_BENCH_CLONES
void Sum3(const float* __restrict a, const float* __restrict b, const float* __restrict c,
          int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i] + c[i];
}

TESSERA_BENCH_CLONES
void Sum4(const float* __restrict a, const float* __restrict b, const float* __restrict c,
          const float* __restrict d, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i] + c[i] + d[i];
}

TESSERA_BENCH_CLONES
void Sum5(const float* __restrict a, const float* __restrict b, const float* __restrict c,
          const float* __restrict d, const float* __restrict e, int64_t count,
          float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i] + c[i] + d[i] + e[i];
}

TESSERA_BENCH_CLONES
void Sum7(const float* __restrict a, const float* __restrict b, const float* __restrict c,
          const float* __restrict d, const float* __restrict e, const float* __restrict f,
          const float* __restrict g, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i];
}

TESSERA_BENCH_CLONES
void Sum8(const float* __restrict a, const float* __restrict b, const float* __restrict c,
          const float* __restrict d, const float* __restrict e, const float* __restrict f,
          const float* __restrict g, const float* __restrict h, int64_t count,
          float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
  }
}

TESSERA_BENCH_CLONES
void Triad(const float* __restrict g, float* __restrict p, float* __restrict m, float* __restrict v,
           int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float mi = m[i] + g[i];
    const float vi = v[i] + g[i];
    m[i] = mi;
    v[i] = vi;
    p[i] = p[i] + mi;
  }
}

}  // namespace

void ReadManyWriteOne(const float* const* in, int num_inputs, int64_t count, float* out) {
  switch (num_inputs) {
    case 1:
      return Sum1(in[0], count, out);
    case 2:
      return Sum2(in[0], in[1], count, out);
    case 3:
      return Sum3(in[0], in[1], in[2], count, out);
    case 4:
      return Sum4(in[0], in[1], in[2], in[3], count, out);
    case 5:
      return Sum5(in[0], in[1], in[2], in[3], in[4], count, out);
    case 7:
      return Sum7(in[0], in[1], in[2], in[3], in[4], in[5], in[6], count, out);
    case 8:
      return Sum8(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], count, out);
  }
  TESSERA_CHECK(false);
}

TESSERA_BENCH_CLONES
void ReadFourWriteTwo(const float* in, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, in + i, sizeof(bits));
    out[i] = static_cast<uint16_t>(bits >> 16);
  }
}

void FourReadThreeWrite(const float* g, float* p, float* m, float* v, int64_t count) {
  Triad(g, p, m, v, count);
}

}  // namespace bench
}  // namespace tessera
