#include "kernels/element_reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/narrow_floats.h"

namespace tessera {
namespace {

using narrow::Fp8E4M3;
using narrow::Fp8E5M2;
using narrow::Narrow;
using narrow::Widen;

std::vector<uint8_t> AllPairs(bool second) {
  std::vector<uint8_t> codes(256 * 256);
  for (int i = 0; i < 256 * 256; ++i) codes[i] = static_cast<uint8_t>(second ? i >> 8 : i);
  return codes;
}

template <typename Fp8>
void ExpectSumsOfAllPairs(Fp8Format format) {
  const std::vector<uint8_t> a = AllPairs(false), b = AllPairs(true);
  const int64_t count = static_cast<int64_t>(a.size());
  const void* inputs[] = {a.data(), b.data()};
  std::vector<float> sums(count, 0.5f);
  host::GradientStats stats;
  host::SumElements(inputs, format, count, 0.3, /*accumulate=*/true, sums.data(), &stats);
  std::vector<uint8_t> rounded(count);
  host::CombineElements(inputs, format, ReduceOp::kSum, 0.3, count, rounded.data());
  for (int64_t i = 0; i < count; ++i) {
    const float sum = (Widen(Fp8{a[i]}) + Widen(Fp8{b[i]})) * 0.3f;
    Fp8 expected;
    Narrow(sum, &expected);
    if (std::isnan(sum)) {
      EXPECT_TRUE(std::isnan(sums[i]) && std::isnan(Widen(Fp8{rounded[i]}))) << i;
      continue;
    }
    ASSERT_EQ(sums[i], 0.5f + sum) << i;
    ASSERT_EQ(rounded[i], expected.bits) << i;
  }
  EXPECT_TRUE(stats.non_finite);  // A code is not a number.
}

TEST(ElementReduceTest, SumsOfEightBitsAreInFp32AndRoundedOnce) {
  ExpectSumsOfAllPairs<Fp8E4M3>(Fp8Format::kE4M3);
  ExpectSumsOfAllPairs<Fp8E5M2>(Fp8Format::kE5M2);
}

TEST(ElementReduceTest, StatsOfEightBitsAreTheMeasureOfTheSums) {
  std::vector<uint8_t> codes(5000);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i % 0x70);
  const void* inputs[] = {codes.data(), codes.data(), codes.data()};
  std::vector<float> sums(codes.size());
  host::GradientStats stats;
  host::SumElements(inputs, Fp8Format::kE4M3, sums.size(), 1, false, sums.data(), &stats);
  const host::GradientStats again = host::MeasureGradient(sums.data(), sums.size());
  EXPECT_GT(stats.sum_of_squares, 0);
  EXPECT_EQ(stats.sum_of_squares, again.sum_of_squares);
  EXPECT_FALSE(stats.non_finite);
}

// A thousand and some: several blocks, and a rest.
TEST(ElementReduceTest, HalvesAreSummedInFp32AlsoIntoOneOfTheInputs) {
  constexpr int64_t kCount = 3001;
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    std::vector<float> values(kCount);
    for (int64_t i = 0; i < kCount; ++i) values[i] = std::sin(static_cast<float>(i)) * 3000;
    std::vector<uint16_t> a(kCount), b(kCount), expected(kCount);
    host::CastFp32ToHalf(dtype, values.data(), a.data(), kCount);
    for (float& value : values) value *= 0.0017f;
    host::CastFp32ToHalf(dtype, values.data(), b.data(), kCount);
    std::vector<float> wide_a(kCount), wide_b(kCount);
    host::CastHalfToFp32(dtype, a.data(), wide_a.data(), kCount);
    host::CastHalfToFp32(dtype, b.data(), wide_b.data(), kCount);
    // Added in the type the small ones would be lost each time.
    for (int64_t i = 0; i < kCount; ++i)
      values[i] = (wide_a[i] + wide_b[i] + wide_b[i] + wide_b[i]) * 0.25f;
    host::CastFp32ToHalf(dtype, values.data(), expected.data(), kCount);
    const void* inputs[] = {a.data(), b.data(), b.data(), b.data()};
    host::CombineElements(inputs, dtype, ReduceOp::kSum, 0.25, kCount, a.data());
    EXPECT_EQ(a, expected) << Name(dtype);
  }
}

TEST(ElementReduceTest, WhatIsTooLargeIsInfiniteAndInEightBitsTheLargest) {
  uint16_t half = 0x7BFF;  // 65504
  const void* halves[] = {&half, &half};
  uint16_t sum = 0;
  host::CombineElements(halves, DType::kFp16, ReduceOp::kSum, 1, 1, &sum);
  EXPECT_EQ(sum, 0x7C00);
  host::CombineElements(halves, DType::kFp16, ReduceOp::kSum, 0.5, 1, &sum);
  EXPECT_EQ(sum, half) << "an average of what fits fits, though the sum would not";
  const uint8_t largest = 0x7E, infinity = 0x7C;
  uint8_t code = 0;
  const void* codes[] = {&largest, &largest};
  host::CombineElements(codes, Fp8Format::kE4M3, ReduceOp::kSum, 1, 1, &code);
  EXPECT_EQ(code, largest);
  const void* infinite[] = {&infinity, &code};
  code = 0;
  host::CombineElements(infinite, Fp8Format::kE5M2, ReduceOp::kSum, 1, 1, &code);
  EXPECT_EQ(code, 0x7B);
  code = 0;
  host::CombineElements(infinite, Fp8Format::kE5M2, ReduceOp::kMax, 1, 1, &code);
  EXPECT_EQ(code, infinity) << "an element as it was";
}

TEST(ElementReduceTest, ExtremesKeepNanAndTheFirstOfTheZeros) {
  const float nan = std::nanf(""), one = 1, zero = 0, minus_zero = -0.0f;
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    float result = 0;
    const void* nan_first[] = {&nan, &one};
    host::CombineElements(nan_first, DType::kFp32, op, 1, 1, &result);
    EXPECT_TRUE(std::isnan(result));
    const void* nan_last[] = {&one, &nan};
    host::CombineElements(nan_last, DType::kFp32, op, 1, 1, &result);
    EXPECT_TRUE(std::isnan(result));
    const void* zeros[] = {&minus_zero, &zero};
    host::CombineElements(zeros, DType::kFp32, op, 1, 1, &result);
    EXPECT_TRUE(std::signbit(result));
  }
}

}  // namespace
}  // namespace tessera
