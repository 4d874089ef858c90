#include "tessera/initializer.h"

#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "layout/model_layout.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::vector<float> Whole(const Initializer& initializer, uint64_t seed, const TensorSpec& spec) {
  std::vector<float> values(*Numel(spec));
  FillSlice(initializer, seed, spec, 0, absl::MakeSpan(values));
  return values;
}

double Mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double Deviation(const std::vector<float>& values) {
  const double mean = Mean(values);
  double sum = 0;
  for (const float value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// The known answers of Random123.
TEST(PhiloxTest, GivesThePublishedVectors) {
  using Out = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (Out{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Out{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Out{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(InitializerTest, AnyPartIsThatOfTheWhole) {
  const TensorSpec spec = {"blocks.3.weight", {37, 5}};
  for (const Initializer& initializer :
       {Initializer::Normal(1, 2), Initializer::Uniform(-1, 3), Initializer::XavierNormal(),
        Initializer::KaimingUniform(0.2), Initializer::Constant(4)}) {
    const std::vector<float> whole = Whole(initializer, 9, spec);
    for (int64_t begin = 0; begin < 185; begin += 7) {
      for (int64_t size : {1, 13}) {
        std::vector<float> part(std::min<int64_t>(size, 185 - begin));
        FillSlice(initializer, 9, spec, begin, absl::MakeSpan(part));
        EXPECT_EQ(part,
                  std::vector<float>(whole.begin() + begin, whole.begin() + begin + part.size()));
      }
    }
  }
}

TEST(InitializerTest, SlicesOfRanksMakeTheSameModelInEveryWorld) {
  const ModelSpec model = {{{"root", {{"a", {13, 7}}, {"b", {5}}}}, {"u", {{"c", {3, 3, 3}}}}}};
  for (int world_size = 1; world_size <= 8; ++world_size) {
    ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                         ModelLayout::Create(model, LayoutOptions(), world_size));
    for (const UnitLayout& unit : layout.units) {
      for (const PlacedParameter& placed : unit.flat.parameters()) {
        std::vector<float> joined(placed.numel, NAN);
        for (int rank = 0; rank < world_size; ++rank) {
          const ElementRange part =
              Intersect({placed.offset_elements, placed.offset_elements + placed.numel},
                        unit.shards.RangeOf(Rank(rank)));
          if (part.empty()) continue;
          const int64_t begin = part.begin - placed.offset_elements;
          FillSlice(Initializer::Normal(0, 1), 4, placed.spec, begin,
                    absl::MakeSpan(joined).subspan(begin, part.size()));
        }
        EXPECT_EQ(joined, Whole(Initializer::Normal(0, 1), 4, placed.spec)) << placed.spec.name;
      }
    }
  }
}

TEST(InitializerTest, SeedAndNameMakeOtherValues) {
  const auto values = [](uint64_t seed, const char* name) {
    return Whole(Initializer::Uniform(0, 1), seed, {name, {16}});
  };
  EXPECT_EQ(values(1, "a"), values(1, "a"));
  EXPECT_NE(values(1, "a"), values(2, "a"));
  EXPECT_NE(values(1, "a"), values(1, "b"));
}

// Computed by other builds and on other machines: a job that is created again must start alike.
TEST(InitializerTest, ValuesStayFromReleaseToRelease) {
  const TensorSpec spec = {"head.weight", {2, 2}};
  const std::vector<float> uniform = Whole(Initializer::Uniform(0, 1), 42, spec);
  const std::vector<float> normal = Whole(Initializer::Normal(0, 1), 42, spec);
  const float expected_uniform[] = {0.803595609f, 0.0302904281f, 0.722874068f, 0.377840979f};
  const float expected_normal[] = {0.382660775f, -0.0762972076f, -0.719854384f, 0.77459684f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(uniform[i], expected_uniform[i]);
    EXPECT_FLOAT_EQ(normal[i], expected_normal[i]);
  }
}

TEST(InitializerTest, DistributionsHaveTheirMomentsAndBounds) {
  const TensorSpec spec = {"w", {200, 300}};  // fan_in 300, fan_out 200.
  const auto check = [&](const Initializer& initializer, double mean, double deviation, double low,
                         double high) {
    const std::vector<float> values = Whole(initializer, 3, spec);
    EXPECT_NEAR(Mean(values), mean, 0.02 * deviation);
    EXPECT_NEAR(Deviation(values), deviation, 0.01 * deviation);
    for (const float value : values) {
      EXPECT_GE(value, low);
      EXPECT_LE(value, high);
    }
  };
  constexpr double kInf = INFINITY;
  check(Initializer::Uniform(-1, 3), 1, 4 / std::sqrt(12), -1, 3);
  check(Initializer::Normal(2, 0.5), 2, 0.5, -kInf, kInf);
  const double xavier = 3 * std::sqrt(2.0 / 500);
  check(Initializer::XavierNormal(3), 0, xavier, -kInf, kInf);
  check(Initializer::XavierUniform(3), 0, xavier, -3 * std::sqrt(6.0 / 500),
        3 * std::sqrt(6.0 / 500));
  const double kaiming = std::sqrt(2 / (1 + 0.25)) / std::sqrt(300);
  check(Initializer::KaimingNormal(0.5), 0, kaiming, -kInf, kInf);
  check(Initializer::KaimingUniform(0.5), 0, kaiming, -std::sqrt(3) * kaiming,
        std::sqrt(3) * kaiming);
  EXPECT_EQ(Whole(Initializer::Ones(), 3, {"w", {3}}), std::vector<float>(3, 1.0f));
  EXPECT_EQ(Whole(Initializer::Zeros(), 3, {"w", {3}}), std::vector<float>(3, 0.0f));
}

TEST(InitializerTest, WhatIsImpossibleIsRefusedByName) {
  const auto refused = [](const Initializer& initializer, std::vector<int64_t> shape,
                          const char* why) {
    EXPECT_THAT(ValidateInitializer(initializer, {"norm.bias", std::move(shape)}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::AllOf(HasSubstr("'norm.bias'"), HasSubstr(why))));
  };
  refused(Initializer::XavierNormal(), {5}, "two dimensions");
  refused(Initializer::KaimingUniform(), {5, 0}, "some elements");
  refused(Initializer::Uniform(1, 0), {5}, "lower bound");
  refused(Initializer::Normal(0, -1), {5}, "negative");
  refused(Initializer::Constant(NAN), {5}, "not finite");
  EXPECT_OK(ValidateInitializer(Initializer::Normal(0, 1), {"norm.bias", {}}));
}

}  // namespace
}  // namespace tessera
