// The kernels for shards of fp64, against their formulas, bit for bit.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"

namespace tessera {
namespace host {
namespace {

constexpr uint32_t kSeed = 41;
constexpr int64_t kCounts[] = {0, 1, 7, 511, 512, 513, 1500};

std::vector<double> RandomDoubles(std::mt19937* random, int64_t count) {
  std::normal_distribution<double> normal(0.0, 1.0);
  std::vector<double> values(count);
  for (double& value : values) value = normal(*random);
  return values;
}

// As the ranks send it, and what that is worth.
struct Sent {
  std::vector<char> bytes;
  std::vector<double> values;
};

Sent SendIn(DType dtype, const std::vector<double>& values) {
  Sent sent;
  sent.values = values;
  std::vector<float> floats(values.begin(), values.end());
  std::vector<uint16_t> halves(values.size());
  const void* from = values.data();
  if (dtype == DType::kFp32) {
    sent.values.assign(floats.begin(), floats.end());
    from = floats.data();
  } else if (IsHalf(dtype)) {
    CastFp32ToHalf(dtype, floats.data(), halves.data(), values.size());
    CastHalfToFp32(dtype, halves.data(), floats.data(), values.size());
    sent.values.assign(floats.begin(), floats.end());
    from = halves.data();
  }
  const char* begin = static_cast<const char*>(from);
  sent.bytes.assign(begin, begin + values.size() * SizeBytes(dtype));
  return sent;
}

TEST(Fp64KernelsTest, SumsOfEveryDTypeAreInFp64AndRankOrder) {
  std::mt19937 random(kSeed);
  for (const DType dtype : {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16}) {
    for (const int64_t count : kCounts) {
      for (const bool accumulate : {false, true}) {
        std::vector<Sent> sent;
        std::vector<const void*> inputs;
        for (int rank = 0; rank < 3; ++rank)
          sent.push_back(SendIn(dtype, RandomDoubles(&random, count)));
        for (const Sent& of_rank : sent) inputs.push_back(of_rank.bytes.data());
        const std::vector<double> before = RandomDoubles(&random, count);
        std::vector<double> output = before;
        GradientStats stats;
        ReduceSlices(inputs, dtype, count, 1.0 / 3, accumulate, output.data(), &stats);
        double lanes[16] = {};  // See measured_sum.h; this is one block.
        for (int64_t i = 0; i < count; ++i) {
          double expected = (sent[0].values[i] + sent[1].values[i] + sent[2].values[i]) * (1.0 / 3);
          if (accumulate) expected = before[i] + expected;
          ASSERT_EQ(output[i], expected) << Name(dtype) << ", element " << i << " of " << count;
          lanes[i % 16] += expected * expected;
        }
        double squares = 0;
        for (const double lane : lanes) squares += lane;
        EXPECT_EQ(stats.sum_of_squares, squares);
        EXPECT_FALSE(stats.non_finite);
      }
    }
  }
}

TEST(Fp64KernelsTest, OutputMayBeAnInput) {
  std::mt19937 random(kSeed);
  std::vector<double> a = RandomDoubles(&random, 700);
  const std::vector<double> b = RandomDoubles(&random, 700), before = a;
  ReduceSlices({a.data(), b.data()}, DType::kFp64, 700, 0.5, false, a.data(), nullptr);
  for (int i = 0; i < 700; ++i) EXPECT_EQ(a[i], (before[i] + b[i]) * 0.5);
}

// A square may overflow where the element is finite.
TEST(Fp64KernelsTest, OnlyWhatIsNotFiniteCountsAsSuch) {
  std::vector<double> values = {1.0, 1e200, -3.0};
  EXPECT_FALSE(MeasureGradient(values.data(), 3).non_finite);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    values[2] = bad;
    EXPECT_TRUE(MeasureGradient(values.data(), 3).non_finite);
  }
}

TEST(Fp64KernelsTest, AdamIsItsFormulaInDouble) {
  std::mt19937 random(kSeed);
  for (int variant = 0; variant < 6; ++variant) {
    AdamParams a;
    a.learning_rate = 3e-3;
    a.weight_decay = variant % 3 == 0 ? 0.0 : 0.01;
    a.decoupled_weight_decay = variant % 2 == 0;
    a.bias_correction1 = 1 - std::pow(a.beta1, variant + 1);
    a.bias_correction2 = 1 - std::pow(a.beta2, variant + 1);
    a.gradient_scale = variant < 3 ? 1.0 : 0.37;
    const int count = 600;
    const std::vector<double> g = RandomDoubles(&random, count), p = RandomDoubles(&random, count),
                              m = RandomDoubles(&random, count);
    std::vector<double> v = RandomDoubles(&random, count);
    for (double& value : v) value = std::fabs(value);
    std::vector<double> p_out(count), m_out(count), v_out(count), published(count);
    std::vector<uint16_t> half(count);
    AdamStep(a, count, g.data(), p.data(), m.data(), v.data(), p_out.data(), m_out.data(),
             v_out.data(), published.data(), {half.data(), DType::kBf16});
    for (int i = 0; i < count; ++i) {
      double grad = g[i] * a.gradient_scale, value = p[i];
      if (!a.decoupled_weight_decay && a.weight_decay != 0) grad += value * a.weight_decay;
      if (a.decoupled_weight_decay) value *= 1 - a.learning_rate * a.weight_decay;
      const double m1 = m[i] * a.beta1 + grad * (1 - a.beta1);
      const double v1 = v[i] * a.beta2 + grad * (1 - a.beta2) * grad;
      value -= a.learning_rate / a.bias_correction1 *
               (m1 / (std::sqrt(v1) * (1 / std::sqrt(a.bias_correction2)) + a.epsilon));
      ASSERT_EQ(p_out[i], value) << variant << " " << i;
      ASSERT_EQ(m_out[i], m1);
      ASSERT_EQ(v_out[i], v1);
      ASSERT_EQ(published[i], value);
      const float narrow = static_cast<float>(value);
      uint16_t expected = 0;
      CastFp32ToHalf(DType::kBf16, &narrow, &expected, 1);
      ASSERT_EQ(half[i], expected);
    }
  }
}

TEST(Fp64KernelsTest, SgdIsItsFormulaInDouble) {
  std::mt19937 random(kSeed);
  for (const double momentum : {0.0, 0.9}) {
    for (const bool first : {true, false}) {
      SgdParams s;
      s.learning_rate = 0.1;
      s.momentum = momentum;
      s.weight_decay = 0.05;
      s.gradient_scale = 0.5;
      s.first_step = first;
      const int count = 40;
      const std::vector<double> g = RandomDoubles(&random, count),
                                p = RandomDoubles(&random, count),
                                b = RandomDoubles(&random, count);
      std::vector<double> p_out(count), b_out(count, 7.0);
      SgdStep(s, count, g.data(), p.data(), b.data(), p_out.data(), b_out.data(), nullptr, {});
      for (int i = 0; i < count; ++i) {
        double grad = g[i] * 0.5 + p[i] * 0.05;
        if (momentum != 0 && !first) grad = b[i] * momentum + grad;
        EXPECT_EQ(p_out[i], p[i] - grad * 0.1);
        EXPECT_EQ(b_out[i], momentum == 0 ? 7.0 : grad);
      }
    }
  }
}

// As libtorch does, which rounds twice.
TEST(Fp64KernelsTest, HalvesAreMadeByWayOfFp32) {
  std::vector<double> values = {1.0 + 0x1p-8 + 0x1p-40, 65519.999999, 65520.0, 1e300, -1e-300, 0.1};
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    std::vector<float> floats(values.begin(), values.end());
    std::vector<uint16_t> expected(values.size()), halves(values.size());
    CastFp32ToHalf(dtype, floats.data(), expected.data(), values.size());
    CastFp64ToHalf(dtype, values.data(), halves.data(), values.size());
    EXPECT_EQ(halves, expected);
    std::vector<double> rounded = values;
    RoundToHalf(dtype, rounded.data(), rounded.size());
    RoundToHalf(dtype, floats.data(), floats.size());
    EXPECT_EQ(rounded, std::vector<double>(floats.begin(), floats.end()));
  }
}

}  // namespace
}  // namespace host
}  // namespace tessera
