// Whole parameters and gradients, read and set through the session: on all ranks or on none.
#include <cmath>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::ReadAll;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;
const std::vector<int> kAllUnits = {0, 1, 2};

float Written(int unit, int parameter, int64_t element) {
  return std::cos(0.3f * static_cast<float>(element)) + static_cast<float>(10 * unit + parameter);
}

void FillWritten(int unit, int parameter, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = Written(unit, parameter, i);
}

// What ReadAll gives where all that is FillWritten's.
std::vector<float> AllWritten() {
  std::vector<float> all;
  const ModelSpec model = ToyModel(3);
  for (int unit : kAllUnits) {
    for (size_t p = 0; p < model.units[unit].parameters.size(); ++p) {
      std::vector<float> values(*Numel(model.units[unit].parameters[p]));
      FillWritten(unit, p, absl::MakeSpan(values));
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

absl::StatusOr<std::vector<float>> ReadWhole(Session* session) {
  std::vector<float> all;
  for (int unit = 0; unit < session->num_units(); ++unit) {
    RETURN_IF_ERROR(session->ReadParameters(unit, [&](int, absl::Span<const float> values) {
      all.insert(all.end(), values.begin(), values.end());
    }));
  }
  return all;
}

class WriteParametersTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2 * kWorldSize;
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  TrainerTeam OpenTeam(const SessionOptions& options) {
    auto team = TrainerTeam::Open(options);
    EXPECT_OK(team);
    return *std::move(team);
  }
  std::vector<float> Values(TrainerTeam* team) {
    std::vector<float> values;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      auto all = ReadAll(session);
      if (all.ok() && session->rank() == 0) values = *std::move(all);
      return all.status();
    }));
    return values;
  }
  static absl::Status WriteAll(Session* session) {
    return session->WriteParameters(kAllUnits, FillWritten);
  }
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(WriteParametersTest, EveryRankReadsTheMasterCopyAlsoWhereTheUnitsAreBf16) {
  SessionOptions options = ToyOptions(*cluster_, "toy", kWorldSize);
  options.config.compute_dtype = DType::kBf16;
  TrainerTeam team = OpenTeam(options);
  ASSERT_OK(team.TrainTo(0));
  ASSERT_OK(team.RunAll(WriteAll));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<float> all, ReadWhole(session));
    EXPECT_EQ(all, AllWritten()) << "bf16 holds none of these";
    return absl::OkStatus();
  }));
}

TEST_F(WriteParametersTest, IsSeenByAllRanksCountsNoStepAndKeepsTheMoments) {
  TrainerTeam team = OpenTeam(ToyOptions(*cluster_, "toy", kWorldSize));
  ASSERT_OK(team.TrainTo(3));
  const std::vector<float> at_three = Values(&team);
  ASSERT_OK(team.RunAll(WriteAll));
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(team.session(rank)->next_step(), 4);
    EXPECT_EQ(team.session(rank)->num_writes(), 1);
  }
  EXPECT_EQ(Values(&team), AllWritten());
  // Back again: what follows is what it would have been, so nothing but parameters was written.
  ASSERT_OK(team.RunAll([&](Session* session) {
    size_t at = 0;
    return session->WriteParameters(kAllUnits, [&](int, int, absl::Span<float> values) {
      std::copy(at_three.begin() + at, at_three.begin() + at + values.size(), values.begin());
      at += values.size();
    });
  }));
  ASSERT_OK(team.TrainTo(6));
  TrainerTeam undisturbed = OpenTeam(ToyOptions(*cluster_, "undisturbed", kWorldSize));
  ASSERT_OK(undisturbed.TrainTo(6));
  EXPECT_EQ(Values(&team), Values(&undisturbed));
}

TEST_F(WriteParametersTest, UnitsThatAreNotWrittenStayAndEachRanksOwnSliceCounts) {
  TrainerTeam team = OpenTeam(ToyOptions(*cluster_, "toy", kWorldSize));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<float> before = Values(&team);
  ASSERT_OK(team.RunAll([](Session* session) {
    return session->WriteParameters({1}, [&](int, int, absl::Span<float> values) {
      std::fill(values.begin(), values.end(), 100.0f + session->rank());
    });
  }));
  const std::vector<float> after = Values(&team);
  const UnitLayout* units = team.session(0)->layout().units.data();
  size_t at = 0;
  for (int u = 0; u < 3; ++u) {
    for (const PlacedParameter& parameter : units[u].flat.parameters()) {
      for (int64_t i = 0; i < parameter.numel; ++i, ++at) {
        const int owner = units[u].shards.OwnerOf(parameter.offset_elements + i).value();
        EXPECT_EQ(after[at], u == 1 ? 100.0f + owner : before[at]);
      }
    }
  }
}

// What a slot held before, a gradient or other values, is nobody's value, frozen or not.
TEST_F(WriteParametersTest, WhatAFillerDoesNotWriteIsZero) {
  SessionOptions options = ToyOptions(*cluster_, "zeroes", kWorldSize);
  options.model = ToyModel(3, /*with_frozen=*/true);
  TrainerTeam team = OpenTeam(options);
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(team.RunAll([](Session* session) {
    return session->WriteParameters(kAllUnits, [](int, int, absl::Span<float>) {});
  }));
  const std::vector<float> values = Values(&team);
  EXPECT_FALSE(values.empty());
  for (const float value : values) EXPECT_EQ(value, 0.0f);
}

TEST_F(WriteParametersTest, RanksThatWriteDifferentUnitsGetAnErrorAndNothingIsWritten) {
  TrainerTeam team = OpenTeam(ToyOptions(*cluster_, "toy", kWorldSize));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<float> before = Values(&team);
  const std::vector<absl::Status> statuses = team.Run([](Session* session) {
    return session->WriteParameters({session->rank() == 2 ? 2 : 1}, FillWritten);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("ranks 0 and 2 set parameters of different units")));
  }
  EXPECT_EQ(Values(&team), before);
  ASSERT_OK(team.TrainTo(4));
}

TEST_F(WriteParametersTest, ReducedGradientIsTheMeanCanBeSetAndTheStepTakesWhatWasSet) {
  SessionOptions options = ToyOptions(*cluster_, "toy", kWorldSize);
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.groups[0] = ParamGroup();
  options.config.groups[0].learning_rate = 0.5;
  options.config.groups[0].weight_decay = 0;
  TrainerTeam team = OpenTeam(options);
  ASSERT_OK(team.TrainTo(0));
  ASSERT_OK(team.RunAll(WriteAll));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    const auto& parameters = session->layout().units[1].flat.parameters();
    const std::vector<float> gradient(parameters[0].numel, 1.0f + session->rank());
    RETURN_IF_ERROR(session->AddGradient(1, 0, gradient));
    EXPECT_THAT(session->ReadGradients(1, [](int, absl::Span<const float>) {}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not reduced yet")));
    RETURN_IF_ERROR(session->Reduce(1));
    std::vector<int> seen;
    RETURN_IF_ERROR(session->ReadGradients(1, [&](int p, absl::Span<const float> values) {
      seen.push_back(p);
      for (const float value : values) EXPECT_FLOAT_EQ(value, 2.0f) << "the mean of 1, 2, 3";
    }));
    EXPECT_EQ(seen, std::vector<int>{0}) << "the bias got none";
    RETURN_IF_ERROR(session->WriteGradients(1, [](int p, bool has, absl::Span<float> values) {
      EXPECT_EQ(has, p == 0);
      for (float& value : values) value *= 3;
      return p == 0;
    }));
    ASSIGN_OR_RETURN(const StepResult result, session->Step());
    EXPECT_FLOAT_EQ(result.gradient_norm, 6 * std::sqrt(gradient.size()));
    RETURN_IF_ERROR(session->ReadParameters(1, [&](int p, absl::Span<const float> values) {
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_FLOAT_EQ(values[i], Written(1, p, i) - (p == 0 ? 3.0f : 0.0f));
    }));
    return absl::OkStatus();
  }));
}

TEST_F(WriteParametersTest, WriteBetweenReduceAndStepKeepsTheReducedGradient) {
  TrainerTeam team = OpenTeam(ToyOptions(*cluster_, "toy", kWorldSize));
  ASSERT_OK(team.TrainTo(1));
  double norms[2] = {};
  for (double& norm : norms) {
    ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
      for (int unit : kAllUnits) {
        const std::vector<float> gradient(session->layout().units[unit].flat.parameters()[0].numel,
                                          0.5f);
        RETURN_IF_ERROR(session->AddGradient(unit, 0, gradient));
        RETURN_IF_ERROR(session->Reduce(unit));
      }
      if (&norm == &norms[1]) RETURN_IF_ERROR(WriteAll(session));
      ASSIGN_OR_RETURN(const StepResult result, session->Step(0.0));
      if (session->rank() == 0) norm = result.gradient_norm;
      return absl::OkStatus();
    }));
  }
  EXPECT_GT(norms[0], 0);
  EXPECT_EQ(norms[1], norms[0]);
  EXPECT_EQ(Values(&team), AllWritten());
}

TEST_F(WriteParametersTest, RanksOfSeveralWorkersSeeTheSameAlsoInUnitsThatAreOpen) {
  LocalCluster::Options cluster_options;
  cluster_options.num_workers = 2;
  cluster_options.num_devices = 2;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(cluster_options));
  const SessionOptions options = ToyOptions(*cluster, "toy", kWorldSize);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options, {cluster->worker_address(0),
                                                                     cluster->worker_address(0),
                                                                     cluster->worker_address(1)}));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(session->Unshard(1));
    RETURN_IF_ERROR(WriteAll(session));
    const float* open = reinterpret_cast<const float*>(session->parameter(1, 0));
    const int64_t numel = session->layout().units[1].flat.parameters()[0].numel;
    for (int64_t i = 0; i < numel; ++i) EXPECT_EQ(open[i], Written(1, 0, i)) << i;
    RETURN_IF_ERROR(session->Reshard(1));
    ASSIGN_OR_RETURN(const std::vector<float> whole, ReadWhole(session));
    EXPECT_EQ(whole, AllWritten());
    ASSIGN_OR_RETURN(const std::vector<float> unsharded, ReadAll(session));
    EXPECT_EQ(unsharded, AllWritten());
    return absl::OkStatus();
  }));
  ASSERT_OK(team.TrainTo(4));
}

TEST_F(WriteParametersTest, BeforeTheInitialValuesIsRefused) {
  TrainerTeam team = OpenTeam(ToyOptions(*cluster_, "toy", 1));
  EXPECT_THAT(WriteAll(team.session(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no initial values")));
  EXPECT_THAT(team.session(0)->ReadParameters(0, [](int, absl::Span<const float>) {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no initial values")));
}

}  // namespace
}  // namespace tessera
