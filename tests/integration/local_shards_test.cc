// An optimizer of the trainer's own, on this rank's shard of each parameter.
#include "tessera/local_shards.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ReferenceRun;
using testing_support::ToyGradient;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr float kRate = 0.1f;

// Adds ToyTraining's gradients of the step; those of `parameter` of unit 0 on `only_rank` alone.
absl::Status Backward(Session* session, int64_t step, int parameter = -1, int only_rank = -1) {
  for (int unit = session->num_units() - 1; unit >= 0; --unit) {
    RETURN_IF_ERROR(session->Unshard(unit));
    const auto& parameters = session->layout().units[unit].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (!parameters[p].spec.requires_grad) continue;
      if (unit == 0 && static_cast<int>(p) == parameter && session->rank() != only_rank) continue;
      const auto* values = reinterpret_cast<const float*>(session->parameter(unit, p));
      std::vector<float> gradient(parameters[p].numel);
      for (size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = ToyGradient(values[i], i, session->rank(), step);
      RETURN_IF_ERROR(session->AddGradient(unit, p, gradient));
    }
    RETURN_IF_ERROR(session->Reshard(unit));
    RETURN_IF_ERROR(session->Reduce(unit));
  }
  return absl::OkStatus();
}

void Descend(LocalShards* shards) {
  for (size_t i = 0; i < shards->parts().size(); ++i) {
    if (!shards->has_gradient(i)) continue;
    const absl::Span<float> values = shards->values(i), gradient = shards->gradient(i);
    for (size_t k = 0; k < values.size(); ++k) values[k] -= kRate * gradient[k];
  }
}

absl::Status OwnStep(Session* session, LocalShards* shards, int64_t step) {
  RETURN_IF_ERROR(Backward(session, step));
  RETURN_IF_ERROR(shards->Begin().status());
  Descend(shards);
  return shards->Commit();
}

class LocalShardsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 8;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions OptionsFor(int world_size) {
    SessionOptions options = ToyOptions(*cluster_, "own", world_size);
    options.model = ToyModel(3, /*with_frozen=*/true);
    options.config.optimizer = OptimizerKind::kAdamW;  // Which is never asked.
    options.config.groups[0].learning_rate = 1000;
    return options;
  }
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_P(LocalShardsTest, OwnDescentIsThatOfTheUnshardedReference) {
  constexpr int kSteps = 3;
  SessionOptions options = OptionsFor(GetParam());
  options.config.max_gradient_norm = 2;  // Clipping acts: the norm is some tens.
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  std::vector<float> all;
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    ASSIGN_OR_RETURN(const auto shards, LocalShards::Open(session));
    const void* const address = shards->values(0).data();
    for (int64_t step = 1; step <= kSteps; ++step) {
      EXPECT_EQ(session->next_step(), step);
      RETURN_IF_ERROR(session->RunStep([&] { return OwnStep(session, shards.get(), step); }));
    }
    EXPECT_EQ(session->next_step(), kSteps + 1);
    EXPECT_EQ(session->num_writes(), 0) << "they are steps";
    EXPECT_EQ(shards->values(0).data(), address);
    ASSIGN_OR_RETURN(const std::vector<float> values, ReadAll(session));
    if (session->rank() == 0) all = values;
    return absl::OkStatus();
  }));
  JobConfig reference = options.config;
  reference.optimizer = OptimizerKind::kSgd;
  reference.groups[0] = ParamGroup();
  reference.groups[0].learning_rate = kRate;
  const std::vector<float> expected = ReferenceRun(options.model, reference, kSteps);
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], expected[i], 1e-6) << i;
}

class SeveralWorkersShardsTest : public testing::TestWithParam<Strategy> {};

TEST_P(SeveralWorkersShardsTest, OwnDescentIsSeenOnEveryWorker) {
  constexpr int kRanks = 4, kSteps = 4;
  LocalCluster::Options two;
  two.num_workers = two.num_devices = 2;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(two));
  SessionOptions options = ToyOptions(*cluster, "own", kRanks);
  options.config.strategy = GetParam();
  options.config.shard_group_size = IsHybrid(GetParam()) ? 2 : 0;
  std::vector<std::string> workers;
  for (int rank = 0; rank < kRanks; ++rank) workers.push_back(cluster->worker_address(rank / 2));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options, workers));
  std::vector<std::vector<float>> seen(kRanks);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    ASSIGN_OR_RETURN(const auto shards, LocalShards::Open(session));
    for (int64_t step = 1; step <= kSteps; ++step)
      RETURN_IF_ERROR(session->RunStep([&] { return OwnStep(session, shards.get(), step); }));
    ASSIGN_OR_RETURN(seen[session->rank()], ReadAll(session));
    return absl::OkStatus();
  }));
  JobConfig reference = options.config;
  reference.optimizer = OptimizerKind::kSgd;
  reference.groups[0] = ParamGroup();
  reference.groups[0].learning_rate = kRate;
  const std::vector<float> expected = ReferenceRun(options.model, reference, kSteps);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(seen[rank].size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(seen[rank][i], expected[i], 1e-5) << "element " << i << " of rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, SeveralWorkersShardsTest,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGradOp,
                                         Strategy::kHybridShard));

TEST_P(LocalShardsTest, PartsOfAllRanksAreEachElementOnce) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor(GetParam())));
  ASSERT_OK(team.RunAll([](Session* session) { return InitializeToy(session); }));
  std::vector<std::vector<int>> held;
  for (int rank = 0; rank < GetParam(); ++rank) {
    ASSERT_OK_AND_ASSIGN(const auto shards, LocalShards::Open(team.session(rank)));
    held.resize(shards->parts().size());
    for (size_t i = 0; i < shards->parts().size(); ++i) {
      const LocalShards::Part& part = shards->parts()[i];
      held[i].resize(*Numel(shards->spec(i)));
      for (int64_t k = 0; k < part.numel; ++k) {
        const int64_t element = part.begin_elements + k;
        ++held[i][element];
        EXPECT_EQ(shards->values(i).as<float>()[k],
                  testing_support::InitialValue(part.unit, part.parameter, element));
      }
    }
  }
  for (const auto& parameter : held) EXPECT_EQ(parameter, std::vector<int>(parameter.size(), 1));
}

INSTANTIATE_TEST_SUITE_P(Worlds, LocalShardsTest, testing::Values(1, 2, 3, 8));

class LocalShardsOfTwoTest : public LocalShardsTest {};
INSTANTIATE_TEST_SUITE_P(World, LocalShardsOfTwoTest, testing::Values(2));

TEST_P(LocalShardsOfTwoTest, GradientOfOneRankIsAGradientOnAll) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor(2)));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    ASSIGN_OR_RETURN(const auto shards, LocalShards::Open(session));
    for (const int only_rank : {1, 7}) {
      RETURN_IF_ERROR(Backward(session, 1, /*parameter=*/0, only_rank));
      RETURN_IF_ERROR(shards->Begin().status());
      EXPECT_EQ(shards->has_gradient(0), only_rank == 1);
      EXPECT_TRUE(shards->has_gradient(1));
      EXPECT_FALSE(shards->has_gradient(2)) << "frozen";
      RETURN_IF_ERROR(shards->Commit());
    }
    return absl::OkStatus();
  }));
}

TEST_P(LocalShardsOfTwoTest, NonFiniteGradientIsEveryRanksErrorAndNothingChanges) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor(2)));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    ASSIGN_OR_RETURN(const auto shards, LocalShards::Open(session));
    ASSIGN_OR_RETURN(const std::vector<float> before, ReadAll(session));
    const auto overflow = [&] {
      std::vector<float> gradient(session->layout().units[1].flat.parameters()[0].numel);
      if (session->rank() == 1) gradient[3] = std::numeric_limits<float>::infinity();
      return session->AddGradient(1, 0, gradient);
    };
    RETURN_IF_ERROR(overflow());
    EXPECT_THAT(shards->Begin(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'unit1'")));
    EXPECT_THAT(shards->Commit(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("without its begin")));
    RETURN_IF_ERROR(overflow());
    StepOptions skip;
    skip.skip_non_finite = true;
    ASSIGN_OR_RETURN(const StepResult result, shards->Begin(skip));
    EXPECT_TRUE(result.skipped);
    ASSIGN_OR_RETURN(const std::vector<float> after, ReadAll(session));
    EXPECT_EQ(before, after);
    EXPECT_EQ(session->next_step(), 1);
    return OwnStep(session, shards.get(), 1);
  }));
}

TEST_P(LocalShardsOfTwoTest, WhatOthersSetMeanwhileIsSeenByTheNextBegin) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor(2)));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    ASSIGN_OR_RETURN(const auto shards, LocalShards::Open(session));
    RETURN_IF_ERROR(OwnStep(session, shards.get(), 1));
    RETURN_IF_ERROR(session->WriteParameters({0, 1, 2}, [](int, int, absl::Span<float> values) {
      std::fill(values.begin(), values.end(), 2.5f);
    }));
    RETURN_IF_ERROR(Backward(session, 2));
    RETURN_IF_ERROR(shards->Begin().status());
    for (size_t i = 0; i < shards->parts().size(); ++i) {
      for (const float value : shards->values(i).as<float>()) EXPECT_EQ(value, 2.5f);
    }
    EXPECT_EQ(session->num_writes(), 1);
    RETURN_IF_ERROR(shards->Commit());
    EXPECT_EQ(session->next_step(), 3);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace tessera
