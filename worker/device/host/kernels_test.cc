#include "worker/device/host/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

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

TEST(ReduceSlicesTest, SumsBf16InputsInFp32) {
  std::mt19937 random(kSeed);
  for (int count = 0; count <= kMaxCount; ++count) {
    const int ranks = 1 + count % 4;
    const int offset = count % 3;
    std::vector<std::vector<uint16_t>> inputs(ranks);
    std::vector<const void*> pointers;
    for (std::vector<uint16_t>& input : inputs) {
      for (float v : RandomFloats(&random, count + offset)) input.push_back(ReferenceBf16(v));
      pointers.push_back(input.data() + offset);
    }
    std::vector<float> output = Guarded(count, 7.0f);
    ReduceSlices(pointers, DType::kBf16, count, 0.5f, false, output.data(), nullptr);
    for (int i = 0; i < count; ++i) {
      float sum = FromBits(uint32_t{inputs[0][offset + i]} << 16);
      for (int r = 1; r < ranks; ++r) sum += FromBits(uint32_t{inputs[r][offset + i]} << 16);
      ASSERT_EQ(Bits(sum * 0.5f), Bits(output[i])) << "count " << count << " element " << i;
    }
    ASSERT_EQ(7.0f, output[count]);
  }
}

TEST(ReduceSlicesTest, OutputMayBeAnInput) {
  std::vector<float> a(131, 1.5f), b(131, 2.0f);
  const void* inputs[] = {a.data(), b.data()};
  ReduceSlices(inputs, DType::kFp32, 131, 2.0f, false, b.data(), nullptr);
  for (float v : b) EXPECT_EQ(7.0f, v);
}

double ReferenceSquares(const float* values, int count) {
  double total = 0;
  for (int begin = 0; begin < count; begin += 2048) {
    double lanes[16] = {};
    for (int i = begin; i < std::min(count, begin + 2048); ++i) {
      lanes[i % 16] += static_cast<double>(values[i]) * values[i];
    }
    double block = 0;
    for (double lane : lanes) block += lane;
    total += block;
  }
  return total;
}

TEST(GradientStatsTest, SumsLaneByLaneWhateverTheWidth) {
  std::mt19937 random(kSeed);
  for (int count : {0, 1, 15, 16, 17, 255, 2047, 2048, 2049, 5000}) {
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
  const uint32_t lows[] = {0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  std::vector<float> values;
  for (uint32_t high = 0; high <= 0xFFFF; ++high) {
    for (uint32_t low : lows) values.push_back(FromBits((high << 16) | low));
  }
  std::vector<uint16_t> cast(values.size());
  CastFp32ToBf16(values.data(), cast.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(ReferenceBf16(values[i]), cast[i]) << std::hex << Bits(values[i]);
  }
}

TEST(CastTest, EveryBf16SurvivesTheRoundTrip) {
  std::vector<uint16_t> all;
  for (uint32_t b = 0; b <= 0xFFFF; ++b) all.push_back(static_cast<uint16_t>(b));
  std::vector<float> wide(all.size());
  std::vector<uint16_t> back(all.size());
  CastBf16ToFp32(all.data(), wide.data(), all.size());
  CastFp32ToBf16(wide.data(), back.data(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(uint32_t{all[i]} << 16, Bits(wide[i]));
    ASSERT_EQ(std::isnan(wide[i]) ? all[i] | 0x40 : all[i], back[i]);
  }
}

TEST(CastTest, OddCountsAndUnalignedPointersStayInBounds) {
  std::mt19937 random(kSeed);
  for (int count = 0; count <= kMaxCount; ++count) {
    const int offset = count % 7;
    const std::vector<float> values = RandomFloats(&random, count + offset);
    std::vector<uint16_t> narrow = Guarded<uint16_t>(count, 0x1234);
    CastFp32ToBf16(values.data() + offset, narrow.data(), count);
    for (int i = 0; i < count; ++i) ASSERT_EQ(ReferenceBf16(values[offset + i]), narrow[i]);
    ASSERT_EQ(0x1234, narrow[count]);
    std::vector<float> wide = Guarded(count, 9.0f);
    CastBf16ToFp32(narrow.data(), wide.data(), count);
    for (int i = 0; i < count; ++i) ASSERT_EQ(uint32_t{narrow[i]} << 16, Bits(wide[i]));
    ASSERT_EQ(9.0f, wide[count]);
  }
}

}  // namespace
}  // namespace host
}  // namespace tessera
