// Jobs that continue as jobs of other sizes, through a real coordinator, workers, executors
// (threads) and sessions.
#include "tessera/hand_over.h"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/optimizer_state.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

// Whatever units it is cut into.
struct State {
  std::map<std::string, std::vector<double>> tensors;  // "w", "w/1" is its first moment.
  std::map<std::string, int64_t> update_counts;
  int64_t step = 0;

  bool operator==(const State& other) const {
    return tensors == other.tensors && update_counts == other.update_counts && step == other.step;
  }
};

absl::StatusOr<State> ReadState(Session* session) {
  State state;
  ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
  state.step = progress.step;
  size_t number = 0;
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const auto& parameters = session->layout().units[unit].flat.parameters();
    const auto keep = [&](const std::string& suffix) {
      return [&, suffix](int p, ConstValues values) {
        std::vector<double>& to = state.tensors[parameters[p].spec.name + suffix];
        const auto copy = [&](auto all) { to.assign(all.begin(), all.end()); };
        values.dtype() == DType::kFp64 ? copy(values.as<double>()) : copy(values.as<float>());
      };
    };
    RETURN_IF_ERROR(session->ReadParameters(unit, keep("")));
    for (const StateArray array : MomentsOf(session->config().optimizer)) {
      RETURN_IF_ERROR(
          ReadMoments(session, unit, array, keep(absl::StrCat("/", static_cast<int>(array)))));
    }
    for (const PlacedParameter& parameter : parameters)
      state.update_counts[parameter.spec.name] = progress.update_counts[number++];
  }
  return state;
}

State StateOf(TrainerTeam* team) {
  State state;
  EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(State read, ReadState(session));
    if (session->rank() == 0) state = std::move(read);
    return absl::OkStatus();
  }));
  return state;
}

// The same parameters, `per_unit` of them in each unit, from the last one on.
ModelSpec Rewrapped(const ModelSpec& model, size_t per_unit) {
  std::vector<TensorSpec> all;
  for (const UnitSpec& unit : model.units)
    all.insert(all.begin(), unit.parameters.begin(), unit.parameters.end());
  ModelSpec wrapped;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % per_unit == 0) wrapped.units.push_back({absl::StrCat("other", i), {}});
    wrapped.units.back().parameters.push_back(all[i]);
  }
  return wrapped;
}

// A step whose gradient is the same on every rank and depends on names alone, not on units; gives
// the loss. Gradients have few bits, so that sums over ranks are exact.
absl::StatusOr<double> EqualStep(Session* session) {
  const int64_t step = session->next_step();
  double loss = 0;
  RETURN_IF_ERROR(session->RunStep([&]() -> absl::Status {
    loss = 0;
    std::map<std::string, double> losses;
    std::vector<std::vector<std::vector<float>>> gradients(session->num_units());
    for (int u = 0; u < session->num_units(); ++u) {
      RETURN_IF_ERROR(session->Unshard(u));
      const auto& parameters = session->layout().units[u].flat.parameters();
      for (size_t p = 0; p < parameters.size(); ++p) {
        const float* values = reinterpret_cast<const float*>(session->parameter(u, p));
        std::vector<float>& gradient = gradients[u].emplace_back(parameters[p].numel);
        double& of_parameter = losses[parameters[p].spec.name];
        for (int64_t i = 0; i < parameters[p].numel; ++i) {
          const float difference = values[i] - static_cast<float>((i * 7 + step * 3) % 11) / 8;
          gradient[i] = std::nearbyint(difference * 1024) / 1024;
          of_parameter += 0.5 * gradient[i] * gradient[i];
        }
      }
      RETURN_IF_ERROR(session->Reshard(u));
    }
    for (const auto& [name, of_parameter] : losses) loss += of_parameter;
    for (int u = session->num_units() - 1; u >= 0; --u) {
      for (size_t p = 0; p < gradients[u].size(); ++p)
        RETURN_IF_ERROR(session->AddGradient(u, p, gradients[u][p]));
      RETURN_IF_ERROR(session->Reduce(u));
    }
    return session->Step().status();
  }));
  return loss;
}

class HandOverTest : public testing::Test {
 protected:
  void SetUp() override { DisarmAllFaultPoints(); }
  void TearDown() override {
    DisarmAllFaultPoints();
    if (background_.joinable()) background_.join();  // After a failure.
  }

  void StartCluster(int num_devices, int num_workers = 1) {
    LocalCluster::Options options;
    options.num_devices = num_devices;
    options.num_workers = num_workers;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions Options(const std::string& job, int world_size,
                         Strategy strategy = Strategy::kFullShard) {
    SessionOptions options = ToyOptions(*cluster_, job, world_size);
    options.config.strategy = strategy;
    return options;
  }
  // On threads of their own, until Join.
  void HandOverInBackground(TrainerTeam* team, absl::Duration patience = absl::Minutes(1)) {
    background_ = std::thread([this, team, patience] {
      ended_ = team->Run([&](Session* session) {
        return HandOver(session, {absl::StrCat("of rank ", session->rank()), patience});
      });
    });
  }
  std::vector<absl::Status> Join() {
    background_.join();
    return ended_;
  }
  static std::vector<absl::Status> TakeOverFrom(const std::string& job, TrainerTeam* team,
                                                std::vector<TakenOver>* taken = nullptr) {
    absl::Mutex mu;
    return team->Run([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(TakenOver own, TakeOver(session, {job, absl::Seconds(30)}));
      EXPECT_EQ(session->next_step(), own.step + 1);
      absl::MutexLock lock(&mu);
      if (taken != nullptr) taken->push_back(std::move(own));
      return absl::OkStatus();
    });
  }
  v1::Job JobOf(const std::string& job) {
    auto view = GetJob({cluster_->coordinator_address()}, job, absl::Now() + absl::Seconds(10));
    EXPECT_OK(view);
    return view.ok() ? *view : v1::Job();
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::thread background_;
  std::vector<absl::Status> ended_;
};

#define EXPECT_ALL_OK(statuses) \
  for (const absl::Status& status : (statuses)) EXPECT_OK(status)

TEST_F(HandOverTest, StateGoesFromAnyWorldToAnyOtherToTheBit) {
  StartCluster(16);
  SessionOptions options = Options("world8", 8);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(3));
  struct Next {
    int world;
    Strategy strategy;
    size_t per_unit;
  };
  for (const Next& next : {Next{3, Strategy::kShardGradOp, 1}, Next{5, Strategy::kNoShard, 4},
                           Next{1, Strategy::kFullShard, 100}, Next{8, Strategy::kFullShard, 2}}) {
    SCOPED_TRACE(next.world);
    const State expected = StateOf(&team);
    const std::string from = options.job_id;
    const int old_world = options.config.world_size;
    HandOverInBackground(&team);
    options = Options(absl::StrCat(from, "-", next.world), next.world, next.strategy);
    options.model = Rewrapped(ToyModel(3), next.per_unit);
    ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(options));
    std::vector<TakenOver> taken;
    EXPECT_ALL_OK(TakeOverFrom(from, &taker, &taken));
    EXPECT_ALL_OK(Join());
    ASSERT_EQ(taken.size(), next.world);
    for (const TakenOver& own : taken) {
      EXPECT_EQ(own.step, expected.step);
      ASSERT_EQ(own.trainer_states.size(), old_world);
      EXPECT_EQ(own.trainer_states.back(), absl::StrCat("of rank ", old_world - 1));
    }
    EXPECT_TRUE(StateOf(&taker) == expected);
    EXPECT_EQ(JobOf(from).state(), v1::JOB_STATE_HANDED_OVER);
    EXPECT_THAT(JobOf(from).state_reason(), HasSubstr(options.job_id));
    for (const absl::Status& status : team.Run([](Session* s) { return s->Recover(); }))
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr(from)));
    ASSERT_OK(taker.TrainTo(expected.step + 1));
    team = std::move(taker);
  }
}

TEST_F(HandOverTest, TrainingGoesOnWithTheLossCurveOfAnUninterruptedRun) {
  StartCluster(16);
  const auto train = [](TrainerTeam* team, int steps, std::vector<double>* losses) {
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(testing_support::InitializeToy(session));
      for (int i = 0; i < steps; ++i) {
        ASSIGN_OR_RETURN(const double loss, EqualStep(session));
        if (session->rank() == 0) losses->push_back(loss);
      }
      return absl::OkStatus();
    }));
  };
  std::vector<double> expected, losses;
  ASSERT_OK_AND_ASSIGN(TrainerTeam whole, TrainerTeam::Open(Options("whole", 2)));
  train(&whole, 12, &expected);
  std::string from = "part0";
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(from, 8)));
  train(&team, 3, &losses);
  // In worlds of these sizes the mean is exact too, so every bit is that of the other run.
  for (const int world : {2, 1, 4}) {
    HandOverInBackground(&team);
    SessionOptions options = Options(absl::StrCat("part", world), world);
    options.model = Rewrapped(ToyModel(3), world);
    ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(options));
    EXPECT_ALL_OK(TakeOverFrom(from, &taker));
    EXPECT_ALL_OK(Join());
    train(&taker, 3, &losses);
    team = std::move(taker);
    from = options.job_id;
  }
  EXPECT_EQ(losses, expected);
  EXPECT_TRUE(StateOf(&team) == StateOf(&whole));
}

TEST_F(HandOverTest, HybridJobOfTwoHostsGoesOnOnOneAndBack) {
  StartCluster(4, 2);
  SessionOptions options = Options("hybrid", 4, Strategy::kHybridShard);
  options.config.shard_group_size = 2;
  const std::vector<std::string> on_both = {
      cluster_->worker_address(0), cluster_->worker_address(0), cluster_->worker_address(1),
      cluster_->worker_address(1)};
  ASSERT_OK_AND_ASSIGN(TrainerTeam hybrid, TrainerTeam::Open(options, on_both));
  ASSERT_OK(hybrid.TrainTo(2));
  const State expected = StateOf(&hybrid);
  HandOverInBackground(&hybrid);
  SessionOptions one_host = Options("one-host", 2);
  one_host.config.compute_dtype = DType::kBf16;
  one_host.model = Rewrapped(ToyModel(3), 3);
  // Whichever worker it is on.
  one_host.worker_address = cluster_->worker_address(0);
  auto single = TrainerTeam::Open(one_host);
  ASSERT_OK(single);
  EXPECT_ALL_OK(TakeOverFrom("hybrid", &*single));
  EXPECT_ALL_OK(Join());
  EXPECT_TRUE(StateOf(&*single) == expected);
  HandOverInBackground(&*single);
  options.job_id = "hybrid-again";
  ASSERT_OK_AND_ASSIGN(TrainerTeam again, TrainerTeam::Open(options, on_both));
  EXPECT_ALL_OK(TakeOverFrom("one-host", &again));
  EXPECT_ALL_OK(Join());
  EXPECT_TRUE(StateOf(&again) == expected);
  ASSERT_OK(again.TrainTo(4));
}

TEST_F(HandOverTest, MomentumWideParametersAndFrozenOnesGoOver) {
  StartCluster(8);
  SessionOptions options = Options("old", 3);
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.groups[0].momentum = 0.9;
  options.model = {{{"wide", {{"w", {11, 3}, DType::kFp64}}},
                    {"narrow", {{"x", {7}, DType::kFp32}, {"frozen", {5}, DType::kFp32, false}}}}};
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const auto fill = [](double first, Values values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = first + 1.0 / static_cast<double>(i + 3);
      if (values.dtype() == DType::kFp64) {
        values.as<double>()[i] = value;
      } else {
        values.as<float>()[i] = static_cast<float>(value);
      }
    }
  };
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(
        session->Initialize([&](int unit, int p, Values values) { fill(10 * unit + p, values); }));
    TrainingProgress progress;
    progress.step = 41;
    progress.update_counts = {41, 40, 0};
    for (const ParamGroup& group : session->config().groups) progress.groups.push_back(group);
    return WriteOptimizerState(session, progress, [&](StateArray, int unit, int p, Values values) {
      if (unit == 0 || p == 0) fill(100 * unit + p, values);
    });
  }));
  const State expected = StateOf(&team);
  HandOverInBackground(&team);
  options.job_id = "new";
  options.config.world_size = 2;
  options.model = Rewrapped(options.model, 1);
  ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(options));
  EXPECT_ALL_OK(TakeOverFrom("old", &taker));
  EXPECT_ALL_OK(Join());
  EXPECT_EQ(taker.session(0)->next_step(), 42);
  EXPECT_TRUE(StateOf(&taker) == expected);
}

TEST_F(HandOverTest, ErrorWhileItIsReadIsEveryRanksAndTheNextTryHasAll) {
  StartCluster(8);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options("old", 2)));
  ASSERT_OK(team.TrainTo(2));
  const State expected = StateOf(&team);
  HandOverInBackground(&team);
  ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(Options("new", 3)));
  Fault fault;
  fault.at_hit = 4;
  ArmFaultPoint("hand-over.read", fault);
  for (const absl::Status& status : TakeOverFrom("old", &taker)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("worker 'local'"), HasSubstr("injected fault"))));
  }
  EXPECT_FALSE(taker.session(0)->initialized());
  fault.status = absl::UnavailableError("away");  // Is tried again, by that rank alone.
  ArmFaultPoint("hand-over.read", fault);
  EXPECT_ALL_OK(TakeOverFrom("old", &taker));
  EXPECT_ALL_OK(Join());
  EXPECT_TRUE(StateOf(&taker) == expected);
}

TEST_F(HandOverTest, FailureInTheMiddleOfItsCommitLeavesItToTheNextTry) {
  for (const std::string point : {"initialize.before-barrier", "initialize.after-barrier"}) {
    SCOPED_TRACE(point);
    StartCluster(8);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options("old", 2)));
    ASSERT_OK(team.TrainTo(2));
    const State expected = StateOf(&team);
    HandOverInBackground(&team);
    ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(Options("new", 3)));
    ArmFaultPoint(point, Fault());
    int failed = 0;
    for (const absl::Status& status : TakeOverFrom("old", &taker)) failed += !status.ok();
    EXPECT_GT(failed, 0);
    ASSERT_OK(taker.RunAll([](Session* session) { return session->Recover(); }));
    EXPECT_EQ(JobOf("old").state(), v1::JOB_STATE_RUNNING) << "its memory stands";
    EXPECT_ALL_OK(TakeOverFrom("old", &taker));
    EXPECT_ALL_OK(Join());
    EXPECT_TRUE(StateOf(&taker) == expected);
  }
}

TEST_F(HandOverTest, JobThatNobodyTakesOverGoesOnToTheSameBits) {
  StartCluster(8);
  ASSERT_OK_AND_ASSIGN(TrainerTeam whole, TrainerTeam::Open(Options("whole", 3)));
  ASSERT_OK(whole.TrainTo(6));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options("old", 3)));
  ASSERT_OK(team.TrainTo(2));
  for (const int64_t step : {4, 6}) {  // More than once.
    HandOverInBackground(&team, absl::ZeroDuration());
    for (const absl::Status& status : Join())
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("in time")));
    ASSERT_OK(team.TrainTo(step));
  }
  EXPECT_TRUE(StateOf(&team) == StateOf(&whole));
  EXPECT_EQ(JobOf("old").state(), v1::JOB_STATE_RUNNING);
}

TEST_F(HandOverTest, WhatDiffersIsEveryRanksErrorByNameAndNothingIsChanged) {
  StartCluster(16);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options("old", 2)));
  ASSERT_OK(team.TrainTo(2));
  const State expected = StateOf(&team);
  HandOverInBackground(&team);
  SessionOptions options = Options("other-shape", 3);
  options.model.units[1].parameters[0].shape = {7, 14};
  ASSERT_OK_AND_ASSIGN(TrainerTeam other, TrainerTeam::Open(options));
  for (const absl::Status& status : TakeOverFrom("old", &other)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("'unit1.weight'"), HasSubstr("[7, 14]"))));
  }
  EXPECT_FALSE(other.session(0)->initialized());
  EXPECT_OK(other.TrainTo(1)) << "the session is ready, for values of its own";
  for (const absl::Status& status : TakeOverFrom("old", &other)) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has its values")));
  }
  for (const absl::Status& status : TakeOverFrom("none", &other))
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("'none'")));
  EXPECT_EQ(JobOf("old").state(), v1::JOB_STATE_RUNNING);
  ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(Options("taker", 3)));
  EXPECT_ALL_OK(TakeOverFrom("old", &taker));
  EXPECT_ALL_OK(Join());
  EXPECT_TRUE(StateOf(&taker) == expected);
  // It may ask again, and nobody else may.
  EXPECT_ALL_OK(TakeOverFrom("old", &taker));
  EXPECT_TRUE(StateOf(&taker) == expected);
  ASSERT_OK_AND_ASSIGN(TrainerTeam late, TrainerTeam::Open(Options("late", 1)));
  for (const absl::Status& status : TakeOverFrom("old", &late)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'taker'")));
  }
}

TEST_F(HandOverTest, WhatTrainersAskForOutOfBoundsIsRefused) {
  StartCluster(4);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options("old", 2)));
  EXPECT_THAT(HandOver(team.session(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no initial values")));
  ASSERT_OK(team.TrainTo(1));
  const std::string large(kMaxHandOverTrainerState + 1, 'x');
  EXPECT_THAT(HandOver(team.session(0), {large}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65537")));
  EXPECT_THAT(HandOver(team.session(0), {"", -absl::Seconds(1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("patience")));
  EXPECT_OK(team.TrainTo(2));
}

}  // namespace
}  // namespace tessera
