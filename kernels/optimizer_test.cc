// AdamStep and SgdStep against their formulas: bit for bit in fp32, and closely in double.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"

namespace tessera {
namespace host {
namespace {

constexpr uint32_t kSeed = 77;
constexpr int kMaxCount = 300;

template <typename Real>
struct Element {
  Real p, m, v;
};

template <typename Real>
Element<Real> ReferenceAdam(const AdamParams& a, Real gradient, Element<Real> e) {
  Real g = static_cast<Real>(a.gradient_scale) * gradient;
  if (!a.decoupled_weight_decay && a.weight_decay != 0) {
    g = g + e.p * static_cast<Real>(a.weight_decay);
  }
  if (a.decoupled_weight_decay) {
    e.p = e.p * static_cast<Real>(1 - a.learning_rate * a.weight_decay);
  }
  e.m = e.m * static_cast<Real>(a.beta1) + g * static_cast<Real>(1 - a.beta1);
  e.v = e.v * static_cast<Real>(a.beta2) + g * static_cast<Real>(1 - a.beta2) * g;
  const Real denominator = std::sqrt(e.v) * static_cast<Real>(1 / std::sqrt(a.bias_correction2)) +
                           static_cast<Real>(a.epsilon);
  e.p = e.p - static_cast<Real>(a.learning_rate / a.bias_correction1) * (e.m / denominator);
  return e;
}

struct State {
  std::vector<float> g, p, m, v;
};

State RandomState(std::mt19937* random, int count) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  State s;
  for (int i = 0; i < count; ++i) {
    s.g.push_back(normal(*random));
    s.p.push_back(normal(*random));
    s.m.push_back(normal(*random));
    s.v.push_back(std::fabs(normal(*random)));
  }
  return s;
}

AdamParams ParamsOf(int variant) {
  AdamParams a;
  a.learning_rate = 3e-3;
  a.weight_decay = variant % 3 == 0 ? 0.0 : 0.01;
  a.decoupled_weight_decay = variant % 2 == 0;
  a.gradient_scale = variant % 5 == 0 ? 1.0 : 0.37;
  const int step = 1 + variant % 11;
  a.bias_correction1 = 1 - std::pow(a.beta1, step);
  a.bias_correction2 = 1 - std::pow(a.beta2, step);
  return a;
}

TEST(AdamStepTest, EqualsTheFormulaBitForBit) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int count = 0; count <= kMaxCount; ++count) {
    const int at = count % 3;
    const AdamParams a = ParamsOf(count);
    const State s = RandomState(&random, count + at);
    std::vector<float> p(count + 1, 5.0f), m(count + 1), v(count + 1), published(count + 1);
    std::vector<uint16_t> published_half(count + 1), expected_half(count + 1);
    const DType half = count % 2 == 0 ? DType::kBf16 : DType::kFp16;
    AdamStep(a, count, s.g.data() + at, s.p.data() + at, s.m.data() + at, s.v.data() + at, p.data(),
             m.data(), v.data(), published.data(), {published_half.data(), half});
    CastFp32ToHalf(half, p.data(), expected_half.data(), count);
    for (int i = 0; i < count; ++i) {
      const Element<float> e = ReferenceAdam<float>(
          a, s.g[at + i], Element<float>{s.p[at + i], s.m[at + i], s.v[at + i]});
      ASSERT_EQ(e.p, p[i]) << "count " << count << " element " << i;
      ASSERT_EQ(e.m, m[i]);
      ASSERT_EQ(e.v, v[i]);
      ASSERT_EQ(p[i], published[i]);
      ASSERT_EQ(expected_half[i], published_half[i]);
    }
    ASSERT_EQ(5.0f, p[count]) << "wrote past the end";
  }
}

TEST(AdamStepTest, InPlaceEqualsOutOfPlace) {
  std::mt19937 random(kSeed);
  for (int count : {1, 17, 64, 299}) {
    State s = RandomState(&random, count);
    std::vector<float> p(count), m(count), v(count);
    const AdamParams a = ParamsOf(1);
    AdamStep(a, count, s.g.data(), s.p.data(), s.m.data(), s.v.data(), p.data(), m.data(), v.data(),
             nullptr, {});
    AdamStep(a, count, s.g.data(), s.p.data(), s.m.data(), s.v.data(), s.p.data(), s.m.data(),
             s.v.data(), nullptr, {});
    EXPECT_EQ(p, s.p);
    EXPECT_EQ(m, s.m);
    EXPECT_EQ(v, s.v);
  }
}

TEST(AdamStepTest, HundredStepsStayNearDoublePrecision) {
  std::mt19937 random(kSeed);
  for (bool decoupled : {false, true}) {
    const int count = 37;
    State s = RandomState(&random, count);
    s.m.assign(count, 0.0f);
    s.v.assign(count, 0.0f);
    std::vector<Element<double>> exact(count);
    for (int i = 0; i < count; ++i) exact[i] = Element<double>{s.p[i], 0, 0};
    for (int step = 1; step <= 100; ++step) {
      AdamParams a = ParamsOf(1);
      a.decoupled_weight_decay = decoupled;
      a.bias_correction1 = 1 - std::pow(a.beta1, step);
      a.bias_correction2 = 1 - std::pow(a.beta2, step);
      const State gradients = RandomState(&random, count);
      for (int i = 0; i < count; ++i) {
        exact[i] = ReferenceAdam<double>(a, gradients.g[i], exact[i]);
      }
      AdamStep(a, count, gradients.g.data(), s.p.data(), s.m.data(), s.v.data(), s.p.data(),
               s.m.data(), s.v.data(), nullptr, {});
    }
    for (int i = 0; i < count; ++i) EXPECT_NEAR(exact[i].p, s.p[i], 1e-5);
  }
}

TEST(SgdStepTest, EqualsTheFormulaBitForBit) {
  std::mt19937 random(kSeed);
  for (int count = 0; count <= kMaxCount; ++count) {
    SgdParams a;
    a.learning_rate = 0.1;
    a.momentum = count % 3 == 0 ? 0.0 : 0.9;
    a.weight_decay = count % 2 == 0 ? 0.0 : 0.05;
    a.gradient_scale = 0.5;
    a.first_step = count % 5 == 0;
    const State s = RandomState(&random, count + 1);
    std::vector<float> p(count + 1, 5.0f), momentum(count + 1, 6.0f), published(count + 1);
    SgdStep(a, count, s.g.data() + 1, s.p.data() + 1, s.m.data() + 1, p.data(), momentum.data(),
            published.data(), {});
    for (int i = 0; i < count; ++i) {
      float g = s.g[i + 1] * 0.5f;
      if (a.weight_decay != 0) g = g + s.p[i + 1] * 0.05f;
      if (a.momentum != 0 && !a.first_step) g = s.m[i + 1] * 0.9f + g;
      ASSERT_EQ(a.momentum != 0 ? g : 6.0f, momentum[i]) << "count " << count;
      ASSERT_EQ(s.p[i + 1] - g * 0.1f, p[i]) << "count " << count << " element " << i;
      ASSERT_EQ(p[i], published[i]);
    }
    ASSERT_EQ(5.0f, p[count]);
  }
}

TEST(SgdStepTest, WithoutMomentumNeedsNoBuffer) {
  SgdParams a;
  a.learning_rate = 1;
  std::vector<float> p(50, 3.0f);
  const std::vector<float> g(50, 1.0f);
  SgdStep(a, 50, g.data(), p.data(), nullptr, p.data(), nullptr, nullptr, {});
  for (float v : p) EXPECT_EQ(2.0f, v);
}

}  // namespace
}  // namespace host
}  // namespace tessera
