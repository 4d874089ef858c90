// The optimizer's state read and set as a whole, through a real coordinator, worker, executors
// (threads) and sessions.
#include "tessera/optimizer_state.h"

#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing_support::ReadAll;
using testing_support::ReferenceRun;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

// By array, unit and parameter.
using Moments = std::map<std::tuple<StateArray, int, int>, std::vector<float>>;

struct State {
  std::vector<float> parameters;
  Moments moments;
  TrainingProgress progress;
};

class OptimizerStateTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 32;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions Options(int world_size, Strategy strategy = Strategy::kFullShard) {
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size);
    options.config.strategy = strategy;
    options.config.optimizer = GetParam();
    options.config.groups[0].momentum = GetParam() == OptimizerKind::kSgd ? 0.5 : 0.0;
    return options;
  }
  static absl::StatusOr<State> ReadState(Session* session) {
    State state;
    ASSIGN_OR_RETURN(state.parameters, ReadAll(session));
    ASSIGN_OR_RETURN(state.progress, ReadProgress(session));
    for (const StateArray array : MomentsOf(session->config().optimizer)) {
      for (int unit = 0; unit < session->num_units(); ++unit) {
        RETURN_IF_ERROR(ReadMoments(session, unit, array, [&](int p, ConstValues values) {
          const absl::Span<const float> all = values.as<float>();
          state.moments[{array, unit, p}].assign(all.begin(), all.end());
        }));
      }
    }
    return state;
  }
  // What every rank reads alike.
  static State StateOf(TrainerTeam* team) {
    absl::Mutex mu;
    std::vector<State> states;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(State state, ReadState(session));
      absl::MutexLock lock(&mu);
      states.push_back(std::move(state));
      return absl::OkStatus();
    }));
    for (const State& state : states) {
      EXPECT_EQ(state.moments, states[0].moments);
      EXPECT_EQ(state.progress.update_counts, states[0].progress.update_counts);
    }
    return states[0];
  }
  // Gives a job its parameters and its optimizer's state.
  static absl::Status SetState(Session* session, const State& state) {
    size_t next = 0;
    RETURN_IF_ERROR(session->Initialize([&](int, int, Values values) {
      for (float& value : values.as<float>()) value = state.parameters[next++];
    }));
    return WriteOptimizerState(
        session, state.progress, [&](StateArray array, int unit, int p, Values values) {
          const std::vector<float>& from = state.moments.at({array, unit, p});
          std::copy(from.begin(), from.end(), values.as<float>().begin());
        });
  }
  std::unique_ptr<LocalCluster> cluster_;
  int num_jobs_ = 0;
};

TEST_P(OptimizerStateTest, JobThatIsGivenItGoesOnToTheSameBits) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam whole, TrainerTeam::Open(Options(2)));
  ASSERT_OK(whole.TrainTo(4));
  const State state = StateOf(&whole);
  EXPECT_EQ(state.progress.step, 4);
  EXPECT_THAT(state.progress.update_counts, Each(4));
  ASSERT_OK(whole.TrainTo(7));

  ASSERT_OK_AND_ASSIGN(TrainerTeam next, TrainerTeam::Open(Options(2)));
  ASSERT_OK(next.RunAll([&](Session* session) { return SetState(session, state); }));
  EXPECT_EQ(next.session(0)->next_step(), 5);
  EXPECT_EQ(next.session(0)->num_writes(), 1);
  ASSERT_OK(next.TrainTo(7));
  EXPECT_EQ(StateOf(&next).parameters, StateOf(&whole).parameters);
  EXPECT_EQ(StateOf(&next).moments, StateOf(&whole).moments);
  EXPECT_EQ(StateOf(&next).progress.step, 7);
}

TEST_P(OptimizerStateTest, IsTheSameInWorldsOfAnySizeAndStrategy) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam first, TrainerTeam::Open(Options(3)));
  ASSERT_OK(first.TrainTo(2));
  State state = StateOf(&first);
  state.progress.update_counts[1] = 1;  // As of a parameter that had a gradient once.
  for (const auto& [world, strategy] :
       {std::pair(5, Strategy::kFullShard), std::pair(2, Strategy::kNoShard),
        std::pair(1, Strategy::kFullShard), std::pair(8, Strategy::kShardGradOp)}) {
    SCOPED_TRACE(world);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(world, strategy)));
    ASSERT_OK(team.RunAll([&](Session* session) { return SetState(session, state); }));
    const State read = StateOf(&team);
    EXPECT_EQ(read.parameters, state.parameters);
    EXPECT_EQ(read.moments, state.moments);
    EXPECT_EQ(read.progress.update_counts, state.progress.update_counts);
    EXPECT_EQ(read.progress.step, 2);
  }
}

TEST_P(OptimizerStateTest, RanksThatSetDifferentOnesAreToldAndNothingIsSet) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(2)));
  ASSERT_OK(team.TrainTo(2));
  const State before = StateOf(&team);
  for (const absl::Status& status : team.Run([&](Session* session) {
         TrainingProgress progress = before.progress;
         progress.step += session->rank();
         return WriteOptimizerState(session, progress, [](StateArray, int, int, Values) {});
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("another state of the optimizer")));
  }
  EXPECT_EQ(StateOf(&team).moments, before.moments);
  EXPECT_EQ(team.session(0)->next_step(), 3);
}

TEST_P(OptimizerStateTest, WhatIsNotOfTheJobIsRefused) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(1)));
  ASSERT_OK(team.TrainTo(1));
  Session* session = team.session(0);
  ASSERT_OK_AND_ASSIGN(TrainingProgress progress, ReadProgress(session));
  const auto nothing = [](StateArray, int, int, Values) {};
  TrainingProgress less = progress;
  less.update_counts.pop_back();
  EXPECT_THAT(WriteOptimizerState(session, less, nothing),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("training progress")));
  progress.step = -1;
  EXPECT_THAT(WriteOptimizerState(session, progress, nothing),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step -1")));
  const absl::Status read =
      ReadMoments(session, 0, StateArray::kParameter, [](int, ConstValues) {});
  EXPECT_THAT(read, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no state array 0")));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerStateTest,
                         testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdamW),
                         [](const auto& info) {
                           return info.param == OptimizerKind::kSgd ? "Sgd" : "AdamW";
                         });

}  // namespace
}  // namespace tessera
