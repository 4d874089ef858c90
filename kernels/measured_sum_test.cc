// Compares the order in which measured values are added with its definition written out.
#include "kernels/measured_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr uint32_t kSeed = 61;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// More than two groups, and a piece of a lane's row over.
constexpr int64_t kManyGroups = 2 * 256 * 2048 + 3 * 2048 + 5;

template <typename Real>
std::vector<Real> RandomReals(int64_t count) {
  std::mt19937 random(kSeed);
  std::normal_distribution<double> normal(0.0, 3.0);
  std::vector<Real> values(count);
  for (Real& value : values) value = static_cast<Real>(normal(random));
  return values;
}

double Plus(double a, double b) { return a + b; }
double Larger(double a, double b) { return std::max(a, b); }

// Level by level: terms into lanes, lanes into blocks, blocks into groups, groups into the sum.
template <typename Real>
double ByDefinition(const std::vector<Real>& values, double (*term)(double),
                    double (*add)(double, double)) {
  std::vector<double> blocks, groups;
  for (size_t begin = 0; begin < values.size(); begin += 2048) {
    std::vector<double> lanes(16);
    for (size_t i = begin; i < std::min(values.size(), begin + 2048); ++i) {
      lanes[i % 16] = add(lanes[i % 16], term(values[i]));
    }
    blocks.push_back(0);
    for (const double lane : lanes) blocks.back() = add(blocks.back(), lane);
  }
  for (size_t k = 0; k < blocks.size(); ++k) {
    if (k % 256 == 0) groups.push_back(0);
    groups.back() = add(groups.back(), blocks[k]);
  }
  double sum = 0;
  for (const double group : groups) sum = add(sum, group);
  return sum;
}

template <typename Real>
double SumFor(double p, const std::vector<Real>& values) {
  return WithMeasured(p, [&](auto measured) {
    return MeasuredSum<decltype(measured)::value>(values.data(), values.size(), p);
  });
}

template <typename Real>
void ExpectTheDefinition(int64_t count) {
  const std::vector<Real> values = RandomReals<Real>(count);
  const auto magnitude = [](double x) { return std::fabs(x); };
  EXPECT_EQ(SumFor(1, values), ByDefinition<Real>(values, magnitude, Plus));
  EXPECT_EQ(SumFor(2, values), ByDefinition<Real>(
                                   values, [](double x) { return x * x; }, Plus));
  EXPECT_EQ(SumFor(3, values),
            ByDefinition<Real>(
                values, [](double x) { return std::pow(std::fabs(x), 3.0); }, Plus));
  EXPECT_EQ(SumFor(kInfinity, values), ByDefinition<Real>(values, magnitude, Larger));
}

TEST(MeasuredSumTest, GoesByLanesBlocksAndGroups) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{16}, int64_t{2047},
                              int64_t{2048}, int64_t{2049}, int64_t{10007}, kManyGroups}) {
    SCOPED_TRACE(count);
    ExpectTheDefinition<float>(count);
    ExpectTheDefinition<double>(count);
  }
}

TEST(MeasuredSumTest, NanAnywhereStaysAndInfinityIsOne) {
  for (const double p : {0.5, 1.0, 2.0, 3.0, kInfinity}) {
    for (const size_t at : {0, 17, 2047, 2048, 4999}) {
      std::vector<float> values = RandomReals<float>(5000);
      values[at] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(SumFor(p, values), kInfinity) << "p = " << p << ", element " << at;
      values[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(SumFor(p, values))) << "p = " << p << ", element " << at;
    }
  }
  EXPECT_TRUE(std::isnan(AddTerm<Measured::kLargest>(1, kNan)));
  EXPECT_TRUE(std::isnan(AddTerm<Measured::kLargest>(kNan, 1)));
}

TEST(MeasuredSumTest, SmallestNumbersCount) {
  const std::vector<float> values(3, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(SumFor(1, values), 3.0 * std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(SumFor(2, values), 3 * std::pow(std::numeric_limits<float>::denorm_min(), 2.0));
  EXPECT_EQ(SumFor(kInfinity, values), std::numeric_limits<float>::denorm_min());
}

}  // namespace
}  // namespace tessera
