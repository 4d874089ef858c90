#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "layout/dtype.h"

namespace tessera {
namespace host {
namespace {

constexpr uint32_t kSeed = 20240611;
constexpr int kMaxCount = 300;

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Written from the definition: nearest value with an 8-bit mantissa, ties to even.
uint16_t ReferenceBf16(float value) {
  const uint32_t bits = Bits(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  const uint32_t low = bits & 0xFFFF;
  uint32_t high = bits >> 16;
  if (low > 0x8000 || (low == 0x8000 && (high & 1) != 0)) ++high;
  return static_cast<uint16_t>(high);
}

// Written from the definition: nearest multiple of the unit of the last place, ties to even.
uint16_t ReferenceFp16(float value) {
  const uint32_t sign = Bits(value) >> 16 & 0x8000;
  if (std::isnan(value)) return sign | 0x7E00 | (Bits(value) >> 13 & 0x1FF);
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  if (exponent > 15) return sign | 0x7C00;
  // 1024 to 2048, or less for the smallest exponent; 2048 is the next exponent's 1024.
  const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return sign | (mantissa < 1024 ? mantissa : ((exponent + 15) << 10) + mantissa - 1024);
}

float ValueOfFp16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int mantissa = bits & 0x3FF;
  double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  if (exponent == 0x1F) magnitude = mantissa == 0 ? INFINITY : NAN;
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

uint16_t ReferenceHalf(DType dtype, float value) {
  return dtype == DType::kFp16 ? ReferenceFp16(value) : ReferenceBf16(value);
}

float ValueOfHalf(DType dtype, uint16_t bits) {
  return dtype == DType::kFp16 ? ValueOfFp16(bits) : FromBits(uint32_t{bits} << 16);
}

constexpr DType kHalves[] = {DType::kBf16, DType::kFp16};

// Values whose start is `offset` elements past an aligned address.
std::vector<float> RandomFloats(std::mt19937* random, int count) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(count);
  for (float& v : values) v = normal(*random);
  return values;
}

template <typename T>
std::vector<T> Guarded(int count, T guard) {
  return std::vector<T>(count + 1, guard);
}

TEST(ReduceSlicesTest, SumsInRankOrderBitExactly) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int count = 0; count <= kMaxCount; ++count) {
    const int ranks = 1 + count % 9;
    const int offset = count % 5;
    const bool accumulate = count % 2 == 1;
    const float scale = count % 3 == 0 ? 1.0f : 1.0f / ranks;
    std::vector<std::vector<float>> inputs;
    std::vector<const void*> pointers;
    for (int r = 0; r < ranks; ++r) inputs.push_back(RandomFloats(&random, count + offset + r));
    for (int r = 0; r < ranks; ++r) pointers.push_back(inputs[r].data() + offset);
    std::vector<float> output = RandomFloats(&random, count + offset + 1);
    const std::vector<float> before = output;
    GradientStats stats;
    ReduceSlices(pointers, DType::kFp32, count, scale, accumulate, output.data() + offset,
                 count % 4 == 0 ? nullptr : &stats);
    for (int i = 0; i < count; ++i) {
      float sum = inputs[0][offset + i];
      for (int r = 1; r < ranks; ++r) sum += inputs[r][offset + i];
      sum *= scale;
      if (accumulate) sum = before[offset + i] + sum;
      ASSERT_EQ(Bits(sum), Bits(output[offset + i])) << "count " << count << " element " << i;
    }
    ASSERT_EQ(before.back(), output.back()) << "wrote past the end, count " << count;
    for (int i = 0; i < offset; ++i) ASSERT_EQ(before[i], output[i]);
  }
}

TEST(ReduceSlicesTest, SumsHalfInputsInFp32) {
  std::mt19937 random(kSeed);
  for (int count = 0; count <= kMaxCount; ++count) {
    const DType dtype = kHalves[count % 2];
    const int ranks = 1 + count % 4;
    const int offset = count % 3;
    std::vector<std::vector<uint16_t>> inputs(ranks);
    std::vector<const void*> pointers;
    for (std::vector<uint16_t>& input : inputs) {
      for (float v : RandomFloats(&random, count + offset))
        input.push_back(ReferenceHalf(dtype, v));
      pointers.push_back(input.data() + offset);
    }
    std::vector<float> output = Guarded(count, 7.0f);
    ReduceSlices(pointers, dtype, count, 0.5f, false, output.data(), nullptr);
    for (int i = 0; i < count; ++i) {
      float sum = ValueOfHalf(dtype, inputs[0][offset + i]);
      for (int r = 1; r < ranks; ++r) sum += ValueOfHalf(dtype, inputs[r][offset + i]);
      ASSERT_EQ(Bits(sum * 0.5f), Bits(output[i])) << "count " << count << " element " << i;
    }
    ASSERT_EQ(7.0f, output[count]);
  }
}

// Division before and after the sum, as PyTorch's for fp16, would be for nothing.
TEST(ReduceSlicesTest, SumOfTheLargestFp16OfEveryRankDoesNotOverflow) {
  constexpr int kRanks = 64;
  const std::vector<uint16_t> largest(33, 0x7BFF);  // 65504.
  const std::vector<const void*> inputs(kRanks, largest.data());
  std::vector<float> output(33);
  GradientStats stats;
  ReduceSlices(inputs, DType::kFp16, 33, 1.0f / kRanks, false, output.data(), &stats);
  for (const float value : output) EXPECT_EQ(65504.0f, value);
  EXPECT_FALSE(stats.non_finite);
}

TEST(ReduceSlicesTest, Fp16ThatOverflowedOnOneRankIsSeen) {
  std::vector<float> wide(33, 1.0f);
  std::vector<uint16_t> fine(33), bad(33);
  CastFp32ToHalf(DType::kFp16, wide.data(), fine.data(), 33);
  wide[17] = 65520.0f;  // The least that rounds to infinity.
  CastFp32ToHalf(DType::kFp16, wide.data(), bad.data(), 33);
  const void* inputs[] = {fine.data(), bad.data(), fine.data()};
  std::vector<float> output(33);
  GradientStats stats;
  ReduceSlices(inputs, DType::kFp16, 33, 1.0f, false, output.data(), &stats);
  EXPECT_TRUE(stats.non_finite);
}

TEST(ReduceSlicesTest, OutputMayBeAnInput) {
  std::vector<float> a(131, 1.5f), b(131, 2.0f);
  const void* inputs[] = {a.data(), b.data()};
  ReduceSlices(inputs, DType::kFp32, 131, 2.0f, false, b.data(), nullptr);
  for (float v : b) EXPECT_EQ(7.0f, v);
}

// Of 256 blocks each, the sums of the groups are added up.
double ReferenceSquares(const float* values, int count) {
  double total = 0, group = 0;
  for (int begin = 0; begin < count; begin += 2048) {
    double lanes[16] = {};
    for (int i = begin; i < std::min(count, begin + 2048); ++i) {
      lanes[i % 16] += static_cast<double>(values[i]) * values[i];
    }
    double block = 0;
    for (double lane : lanes) block += lane;
    group += block;
    if (begin / 2048 % 256 < 255 && begin + 2048 < count) continue;
    total += group;
    group = 0;
  }
  return total;
}

TEST(GradientStatsTest, SumsLaneByLaneWhateverTheWidth) {
  std::mt19937 random(kSeed);
  for (int count : {0, 1, 15, 16, 17, 255, 2047, 2048, 2049, 5000, 256 * 2048, 600 * 2048 + 5}) {
    const std::vector<float> values = RandomFloats(&random, count + 3);
    const double expected = ReferenceSquares(values.data() + 3, count);
    EXPECT_EQ(expected, MeasureGradient(values.data() + 3, count).sum_of_squares) << count;

    std::vector<float> output(count);
    const void* inputs[] = {values.data() + 3};
    GradientStats stats;
    ReduceSlices(inputs, DType::kFp32, count, 1.0f, false, output.data(), &stats);
    EXPECT_EQ(expected, stats.sum_of_squares) << count;
    EXPECT_FALSE(stats.non_finite);
  }
}

TEST(GradientStatsTest, OneNonFiniteElementAnywhereIsSeen) {
  for (int count : {1, 16, 33, 300}) {
    for (float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (int at = 0; at < count; ++at) {
        std::vector<float> values(count, 1.0f);
        values[at] = bad;
        ASSERT_TRUE(MeasureGradient(values.data(), count).non_finite) << count << " " << at;
      }
    }
  }
}

TEST(GradientStatsTest, LargestFiniteValuesAreFinite) {
  const std::vector<float> values(4096, std::numeric_limits<float>::max());
  EXPECT_FALSE(MeasureGradient(values.data(), 4096).non_finite);
}

TEST(AccumulateTest, AddsEachElementOnce) {
  for (int count = 0; count <= kMaxCount; ++count) {
    std::vector<float> dst = Guarded(count, 0.5f);
    const std::vector<float> src(count + 1, 0.25f);
    Accumulate(dst.data(), src.data() + 1, count);
    for (int i = 0; i < count; ++i) ASSERT_EQ(0.75f, dst[i]);
    ASSERT_EQ(0.5f, dst[count]);
  }
}

TEST(CastTest, RoundsToNearestEvenForEveryUpperHalf) {
  const uint32_t lows[] = {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x3000,
                           0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF};
  std::vector<float> values;
  for (uint32_t high = 0; high <= 0xFFFF; ++high) {
    for (uint32_t low : lows) values.push_back(FromBits((high << 16) | low));
  }
  std::vector<uint16_t> cast(values.size());
  for (const DType dtype : kHalves) {
    CastFp32ToHalf(dtype, values.data(), cast.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(ReferenceHalf(dtype, values[i]), cast[i])
          << Name(dtype) << " " << std::hex << Bits(values[i]);
    }
  }
}

TEST(CastTest, EveryHalfSurvivesTheRoundTrip) {
  std::vector<uint16_t> all;
  for (uint32_t b = 0; b <= 0xFFFF; ++b) all.push_back(static_cast<uint16_t>(b));
  std::vector<float> wide(all.size());
  std::vector<uint16_t> back(all.size());
  for (const DType dtype : kHalves) {
    CastHalfToFp32(dtype, all.data(), wide.data(), all.size());
    CastFp32ToHalf(dtype, wide.data(), back.data(), all.size());
    const int quiet = dtype == DType::kFp16 ? 0x200 : 0x40;
    for (size_t i = 0; i < all.size(); ++i) {
      const float expected = ValueOfHalf(dtype, all[i]);
      ASSERT_EQ(std::isnan(expected), std::isnan(wide[i])) << Name(dtype) << " " << i;
      if (!std::isnan(expected)) {
        ASSERT_EQ(Bits(expected), Bits(wide[i])) << Name(dtype);
      }
      ASSERT_EQ(std::isnan(wide[i]) ? all[i] | quiet : all[i], back[i]) << Name(dtype);
    }
  }
}

TEST(CastTest, OddCountsAndUnalignedPointersStayInBounds) {
  std::mt19937 random(kSeed);
  for (int count = 0; count <= kMaxCount; ++count) {
    const DType dtype = kHalves[count % 2];
    const int offset = count % 7;
    const std::vector<float> values = RandomFloats(&random, count + offset);
    std::vector<uint16_t> narrow = Guarded<uint16_t>(count, 0x1234);
    CastFp32ToHalf(dtype, values.data() + offset, narrow.data(), count);
    for (int i = 0; i < count; ++i) ASSERT_EQ(ReferenceHalf(dtype, values[offset + i]), narrow[i]);
    ASSERT_EQ(0x1234, narrow[count]);
    std::vector<float> wide = Guarded(count, 9.0f);
    CastHalfToFp32(dtype, narrow.data(), wide.data(), count);
    for (int i = 0; i < count; ++i) ASSERT_EQ(ValueOfHalf(dtype, narrow[i]), wide[i]);
    ASSERT_EQ(9.0f, wide[count]);
  }
}

}  // namespace
}  // namespace host
}  // namespace tessera
