// Values that clients set in jobs that train: through a real coordinator, workers and executors
// (threads), with trainers that continue meanwhile. Jobs of every kind.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tests/integration/live_put_fixture.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::PutOutcome;
using testing_support::PutValue;
using testing_support::ReadStored;
using testing_support::StoredValues;
using testing_support::ToyModel;
using testing_support::TrainerTeam;
using testing_support::WritePutFile;

// Sets what is PutValue's, as a trainer does.
absl::Status WriteAsTrainer(Session* session, const std::vector<int>& units) {
  return session->WriteParameters(units, [&](int unit, int parameter, absl::Span<float> values) {
    const std::string& name = session->layout().units[unit].flat.parameters()[parameter].spec.name;
    for (size_t i = 0; i < values.size(); ++i) values[i] = PutValue(name, i);
  });
}

TEST_P(LivePutTest, IsOneVersionOnAllRanksAndTrainingIsThatOfTrainersWhoWroteTheSame) {
  StoredValues after, end;
  int64_t step = 0;
  {
    const auto cluster = StartCluster(GetParam());
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
    ASSERT_OK(team.TrainTo(2));
    WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
    const PutOutcome put = Put(*cluster, &team, {"--from", Path("put.safetensors"), "--json"});
    ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
    ASSERT_TRUE(put.applied);
    const auto json = nlohmann::json::parse(put.result.out);
    step = json["step"];
    EXPECT_EQ(json["committed_step"], put.after.committed_step);
    EXPECT_EQ(put.after.committed_step, step + 1);
    EXPECT_EQ(put.after.step, step);
    after = put.after.values;
    for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
      EXPECT_EQ(after.at(name), tensor) << name;
    for (int rank = 0; rank < GetParam().world_size; ++rank) {
      EXPECT_EQ(team.session(rank)->next_step(), step + 1);
      EXPECT_EQ(team.session(rank)->num_writes(), 0) << "no trainer wrote anything";
    }
    ASSERT_OK(team.TrainTo(step + 3));
    end = Read(*cluster).values;
  }
  const auto cluster = StartCluster(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
  ASSERT_OK(team.TrainTo(step));
  ASSERT_OK(team.RunAll([](Session* session) { return WriteAsTrainer(session, {0, 1, 2}); }));
  EXPECT_EQ(Read(*cluster).values, after);
  ASSERT_OK(team.TrainTo(step + 3));
  EXPECT_EQ(Read(*cluster).values, end);
}

TEST_P(LivePutTest, MomentsOfACheckpointComeWithTheirCounts) {
  const auto cluster = StartCluster(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
  ASSERT_OK(team.TrainTo(2));
  const std::string path = Path("saved");
  ASSERT_OK(team.RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));
  ASSERT_OK(team.TrainTo(5));
  const PutOutcome put = Put(*cluster, &team, {"--from", path, "--moments"});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  for (const auto& [name, tensor] : ReadStored(path))
    EXPECT_EQ(put.after.values.at(name), tensor) << name;
  EXPECT_EQ(team.session(0)->next_step(), put.after.step + 1) << "the trainers' steps go on";
  ASSERT_OK(team.TrainTo(put.after.step + 2));
}

TEST_P(LivePutTest, WhatIsNotNamedStaysAsTheStepLeftIt) {
  int64_t step = 0;
  StoredValues after;
  {
    const auto cluster = StartCluster(GetParam());
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
    ASSERT_OK(team.TrainTo(1));
    WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
    const std::string one = ToyModel(3, true).units[1].parameters[0].name;
    const PutOutcome put =
        Put(*cluster, &team, {"--from", Path("put.safetensors"), "--include", one});
    ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
    step = put.after.step;
    after = put.after.values;
    EXPECT_EQ(after.at(one), ReadStored(Path("put.safetensors")).at(one));
    after.erase(one);
  }
  const auto cluster = StartCluster(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
  ASSERT_OK(team.TrainTo(step));
  StoredValues expected = Read(*cluster).values;
  expected.erase(ToyModel(3, true).units[1].parameters[0].name);
  EXPECT_EQ(after, expected);
}

INSTANTIATE_TEST_SUITE_P(Jobs, LivePutTest,
                         testing::Values(Case{"OneRank", 1, 1, 1}, Case{"ThreeRanks", 1, 3, 3},
                                         Case{"Sgd", 1, 2, 2, Strategy::kFullShard, 0, false,
                                              OptimizerKind::kSgd},
                                         Case{"NoShard", 1, 2, 2, Strategy::kNoShard},
                                         Case{"InBackward", 1, 2, 2, Strategy::kFullShard, 0, true},
                                         Case{"TwoWorkers", 2, 2, 3}, Case{"FourRanks", 1, 4, 4},
                                         Case{"Hybrid", 2, 2, 4, Strategy::kHybridShard, 2}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
