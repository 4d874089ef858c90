// The same model and data under PyTorch's FSDP1 and FSDP2 (real processes; their record is in
// tests/reference/torch/golden) and under Tessera: every strategy, hybrid ones on two workers, low
// precision, clipping, accumulation. HSDP-6, F2TR-17 and F2MP-2 against PyTorch itself.
#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/conformance/fsdp/golden_training.h"

namespace tessera::conformance {
namespace {

// Of a dtype, half the distance from 1 to the next number, which a rounding of 1 errs by at most.
double RoundingOf(const std::string& dtype) {
  if (dtype == "bf16") return std::ldexp(1.0, -9);
  if (dtype == "fp16") return std::ldexp(1.0, -12);
  return 0;
}

Strategy StrategyOf(const Json& run) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard,
                                  Strategy::kHybridShard, Strategy::kHybridShardZero2}) {
    if (run["strategy"] == std::string(Name(strategy))) return strategy;
  }
  ADD_FAILURE() << "there is no strategy " << run["strategy"];
  return Strategy::kFullShard;
}

// In fp32 as in fully_shard_training_test; SGD divides by nothing small. In low precision both
// sides round at the same places, but the last bit of an fp32 sum may send a rounding the other
// way: an output of size 1 is then off by 2 * RoundingOf, of which the gradient of the mean of 24
// squares has 2 / 24, and momentum takes that lr / (1 - momentum) = 0.5 times.
Tolerance ToleranceOf(const Json& run) {
  const double rounding = std::max(RoundingOf(run["param_dtype"].get<std::string>()),
                                   RoundingOf(run["reduce_dtype"].get<std::string>()));
  Tolerance tolerance;
  tolerance.loss = 2e-6 + rounding / 12;
  tolerance.parameter = (run["optimizer"] == "sgd" ? 2e-6 : 2e-5) + rounding / 12;
  return tolerance;
}

// The largest one.
double DifferenceOfParameters(const Json& run, const Json& other) {
  double difference = 0;
  for (const auto& [name, values] : run["parameters"].items()) {
    for (size_t i = 0; i < values.size(); ++i)
      difference = std::max(difference, std::abs(values[i].get<double>() -
                                                 other["parameters"][name][i].get<double>()));
  }
  return difference;
}

class TrainingVariantsTest : public testing::Test {
 protected:
  // The runs of a topic; `num_runs` of them. A world of four is on two workers.
  void TrainAll(const std::string& topic, int num_runs) {
    int seen = 0;
    for (const Json& run : golden_["runs"]) {
      if (run["topic"] != topic) continue;
      const int num_workers = run["world_size"] == 4 ? 2 : 1;
      const std::string name = absl::StrCat(topic, seen++);
      SCOPED_TRACE(absl::StrCat(name, ": ", run["api"].get<std::string>(), " ",
                                run["strategy"].get<std::string>()));
      LocalCluster::Options options;
      options.num_workers = num_workers;
      options.num_devices = 2;
      ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
      TrainGolden({golden_, run, name, StrategyOf(run), *cluster, num_workers, ToleranceOf(run)});
    }
    EXPECT_EQ(seen, num_runs);
  }

  const Json golden_ = ReadGolden("training_variants");
};

TEST_F(TrainingVariantsTest, EveryStrategyTrainsAsThatOfFsdp1AndFsdp2) {
  TrainAll("strategies", 9);
}

TEST_F(TrainingVariantsTest, LowPrecisionTrainsAsThereButForRoundingsOfTheDType) {
  TrainAll("precision", 8);
}

TEST_F(TrainingVariantsTest, WhatLowPrecisionChangesIsMoreThanTheToleranceOfItsRuns) {
  const Json* fp32 = nullptr;
  for (const Json& run : golden_["runs"]) {
    if (run["topic"] != "precision") continue;
    if (fp32 == nullptr) {
      fp32 = &run;  // The first one.
      EXPECT_EQ(run["param_dtype"], "fp32");
      EXPECT_EQ(run["reduce_dtype"], "fp32");
    } else {
      EXPECT_GT(DifferenceOfParameters(run, *fp32), 1.5 * ToleranceOf(run).parameter)
          << run["param_dtype"] << ", reduced in " << run["reduce_dtype"];
    }
  }
}

TEST_F(TrainingVariantsTest, ClippedStepsAndTheirNormsAreThoseOfPyTorch) {
  TrainAll("clipping", 4);
}

TEST_F(TrainingVariantsTest, AccumulatedGradientsTrainAsThereWhetherEachOrTheLastIsReduced) {
  TrainAll("accumulation", 6);
}

}  // namespace
}  // namespace tessera::conformance
