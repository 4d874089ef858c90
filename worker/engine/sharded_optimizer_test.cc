#include "worker/engine/sharded_optimizer.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {
namespace {

// Over random models: the segments of all ranks cover each element of each parameter once.
TEST(SegmentsTest, CoverEveryElementOfEveryParameterOnce) {
  const int seed = 11;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    ModelSpec model;
    const int num_units = 1 + random() % 4;
    for (int u = 0; u < num_units; ++u) {
      UnitSpec& unit = model.units.emplace_back();
      unit.name = absl::StrCat("u", u);
      const int count = 1 + random() % 4;
      for (int p = 0; p < count; ++p) {
        unit.parameters.push_back(
            {absl::StrCat("u", u, ".p", p), {static_cast<int64_t>(random() % 9), 3}});
      }
    }
    JobConfig config;
    config.world_size = 1 + random() % 8;
    ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                         ModelLayout::Create(model, config.layout, config.world_size));
    ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(layout, config));
    std::vector<std::vector<std::vector<int>>> covered(num_units);
    for (int u = 0; u < num_units; ++u) {
      for (const PlacedParameter& p : layout.units[u].flat.parameters())
        covered[u].emplace_back(p.numel, 0);
    }
    for (int rank = 0; rank < config.world_size; ++rank) {
      int64_t state_end = 0;
      for (const ShardSegment& s : SegmentsOf(layout, config, memory, Rank(rank))) {
        for (int64_t i = 0; i < s.numel; ++i)
          ++covered[s.unit][s.parameter][s.parameter_begin_elements + i];
        EXPECT_GE(s.state_begin_elements, state_end) << "segments overlap in the state";
        state_end = s.state_begin_elements + s.numel;
        EXPECT_LE(state_end, memory.shard_numel());
      }
    }
    for (const auto& unit : covered) {
      for (const auto& parameter : unit) {
        for (int count : parameter) EXPECT_EQ(count, 1);
      }
    }
  }
}

const std::byte* BytesOf(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

const float* ParametersOf(const ShardedOptimizer& optimizer, int version) {
  return reinterpret_cast<const float*>(optimizer.Array(StateArray::kParameter, version));
}

// A job of one rank, its memory and its optimizer.
struct OneRank {
  OneRank(const JobConfig& config, ModelLayout of_model, JobMemory plan, RankKernels* kernels)
      : layout(std::move(of_model)),
        memory(std::move(plan)),
        state(memory.state_region_bytes()),
        parameters(memory.parameter_region_bytes()),
        optimizer(config, memory, SegmentsOf(layout, config, memory, Rank(0)), state.data(),
                  LocateParameters(ParameterPlan::InPlaces(memory), layout, memory, Rank(0),
                                   parameters.data(), {}),
                  kernels) {}

  float* gradient() {
    return reinterpret_cast<float*>(state.data() + memory.ReducedGradientOffsetBytes());
  }
  void InitializeWith(float value) {
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      const std::vector<float> values(layout.units[unit].shards.padded_numel(), value);
      optimizer.Initialize(unit, BytesOf(values));
    }
  }

  const ModelLayout layout;
  const JobMemory memory;
  std::vector<std::byte> state, parameters;
  ShardedOptimizer optimizer;
};

absl::StatusOr<std::unique_ptr<OneRank>> MakeRank(const ModelSpec& model, const JobConfig& config,
                                                  RankKernels* kernels) {
  ASSIGN_OR_RETURN(ModelLayout layout, ModelLayout::Create(model, config.layout, 1));
  ASSIGN_OR_RETURN(JobMemory memory, JobMemory::Create(layout, config));
  return std::make_unique<OneRank>(config, std::move(layout), std::move(memory), kernels);
}

TEST(ShardedOptimizerTest, RepeatingAnUpdateGivesTheSameBytesAndLeavesTheOldVersion) {
  ModelSpec model;
  model.units.push_back({"u", {{"w", {37}, DType::kFp32}}});
  HostRankKernels kernels;
  ASSERT_OK_AND_ASSIGN(const auto rank, MakeRank(model, JobConfig(), &kernels));
  std::vector<float> initial(rank->layout.units[0].shards.padded_numel());
  for (int i = 0; i < 37; ++i) initial[i] = static_cast<float>(i);
  rank->optimizer.Initialize(0, BytesOf(initial));
  for (int i = 0; i < 37; ++i) rank->gradient()[i] = 1.0f + static_cast<float>(i % 3);
  rank->optimizer.Apply({1, 1.0, {HyperParameters()}, {1}});
  const std::vector<std::byte> once = rank->state, published = rank->parameters;
  rank->optimizer.Apply({1, 1.0, {HyperParameters()}, {1}});
  EXPECT_EQ(rank->state, once);
  EXPECT_EQ(rank->parameters, published);
  EXPECT_EQ(ParametersOf(rank->optimizer, 0)[5], 5.0f)
      << "the version that a repetition starts from";
  EXPECT_NEAR(ParametersOf(rank->optimizer, 1)[5], 5.0f - 1e-3f, 1e-5f);
}

TEST(ShardedOptimizerTest, ParameterWithoutAGradientIsCarriedOverWithItsMoments) {
  ModelSpec model;
  model.units.push_back({"u", {{"a", {5}, DType::kFp32}, {"b", {7}, DType::kFp32}}});
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    JobConfig config;
    config.optimizer = kind;
    config.groups[0].weight_decay = 0.5;  // Would act on a gradient of zero too.
    config.groups[0].momentum = 0.5;
    HostRankKernels kernels;
    ASSERT_OK_AND_ASSIGN(const auto rank, MakeRank(model, config, &kernels));
    const std::vector<ShardSegment>& segments = rank->optimizer.segments();
    rank->InitializeWith(3.0f);
    std::fill_n(rank->gradient(), rank->memory.shard_numel(), 1.0f);
    const auto values = [&](const ShardSegment& segment, StateArray array, int64_t step) {
      const float* from = reinterpret_cast<const float*>(
                              rank->state.data() + rank->memory.StateOffsetBytes(array, step % 2)) +
                          segment.state_begin_elements;
      return std::vector<float>(from, from + segment.numel);
    };
    rank->optimizer.Apply({1, 1.0, {config.groups[0]}, {1, 1}});
    rank->optimizer.Apply({2, 1.0, {config.groups[0]}, {2, 0}});
    for (const StateArray array : {StateArray::kParameter, StateArray::kFirstMoment}) {
      EXPECT_NE(values(segments[0], array, 2), values(segments[0], array, 1));
      EXPECT_EQ(values(segments[1], array, 2), values(segments[1], array, 1));
    }
    const float* published = reinterpret_cast<const float*>(rank->parameters.data());
    EXPECT_EQ(published[segments[1].unit_begin_elements],
              values(segments[1], StateArray::kParameter, 2)[0]);
  }
}

// Notes how many elements each update has.
class CountingKernels : public HostRankKernels {
 public:
  void AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) override {
    counts.push_back(arrays.count);
    HostRankKernels::AdamStep(params, arrays);
  }
  std::vector<int64_t> counts;
};

TEST(ShardedOptimizerTest, ParametersSideBySideAreOnePassAndOthersTheirOwn) {
  ModelSpec model;
  model.units.push_back({"u",
                         {{"a", {8}, DType::kFp32},
                          {"b", {2, 4}, DType::kFp32},
                          {"c", {8}, DType::kFp32},
                          {"d", {5}, DType::kFp32},
                          {"e", {8}, DType::kFp32}}});
  model.units.push_back({"v", {{"f", {8}, DType::kFp32}}});
  JobConfig config;
  config.optimizer = OptimizerKind::kAdamW;
  CountingKernels kernels;
  ASSERT_OK_AND_ASSIGN(const auto rank, MakeRank(model, config, &kernels));
  rank->InitializeWith(3.0f);
  std::fill_n(rank->gradient(), rank->memory.shard_numel(), 1.0f);
  rank->optimizer.Apply({1, 1.0, {HyperParameters()}, {1, 1, 0, 1, 1, 1}});
  EXPECT_THAT(kernels.counts, testing::ElementsAre(16, 5, 8, 8))
      << "c has no gradient, there is a gap behind d, and f is another unit's";
  kernels.counts.clear();
  rank->optimizer.Apply({2, 1.0, {HyperParameters()}, {2, 2, 1, 2, 2, 2}});
  EXPECT_THAT(kernels.counts, testing::ElementsAre(16, 8, 5, 8, 8)) << "c has another update";
}

// A step may set the momentum to 0; the next one continues from the buffers.
TEST(ShardedOptimizerTest, MomentumOutlivesAStepWithoutIt) {
  ModelSpec model;
  model.units.push_back({"u", {{"w", {5}, DType::kFp32}}});
  JobConfig config;
  config.optimizer = OptimizerKind::kSgd;
  HostRankKernels kernels;
  ASSERT_OK_AND_ASSIGN(const auto rank, MakeRank(model, config, &kernels));
  rank->InitializeWith(0);
  std::fill_n(rank->gradient(), 5, 1.0f);
  HyperParameters with, without;
  with.learning_rate = without.learning_rate = 1;
  with.momentum = 0.5;
  rank->optimizer.Apply({1, 1.0, {with}, {1}});     // b = 1, p = -1
  rank->optimizer.Apply({2, 1.0, {without}, {2}});  // b = 1, p = -2
  rank->optimizer.Apply({3, 1.0, {without}, {3}});  // b = 1, p = -3
  rank->optimizer.Apply({4, 1.0, {with}, {4}});     // b = 1.5, p = -4.5
  EXPECT_EQ(ParametersOf(rank->optimizer, 0)[4], -4.5f);
}

}  // namespace
}  // namespace tessera
