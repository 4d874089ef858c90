// The machine's own rates, for the other side of a ratio: plain loops that the compiler
// vectorizes, with no protocol around them. Counts are ELEMENTS.
#ifndef TESSERA_TESTS_BENCH_LIMITS_H_
#define TESSERA_TESTS_BENCH_LIMITS_H_

#include <cstdint>

namespace tessera {
namespace bench {

// out[i] = in[0][i] + ... + in[num_inputs - 1][i], for num_inputs 1, 2, 4 or 8.
void ReadManyWriteOne(const float* const* in, int num_inputs, int64_t count, float* out);

// out[i] = the upper half of in[i]: reads four bytes for two that it writes.
void ReadFourWriteTwo(const float* in, int64_t count, uint16_t* out);

// Four reads, three writes, in place: the traffic of Adam, a few sums of arithmetic.
void FourReadThreeWrite(const float* g, float* p, float* m, float* v, int64_t count);

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_LIMITS_H_
