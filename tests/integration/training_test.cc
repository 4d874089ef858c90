// Whole training runs in one process: real coordinator, worker, executors (threads) and sessions.
#include <stdlib.h>

#include <cmath>
#include <functional>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/toy_cluster.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::ConfigFor;
using testing_support::ExpectNear;
using testing_support::ReadAll;
using testing_support::ReferenceRun;
using testing_support::ToyModel;
using testing_support::ToyStep;
using testing_support::TrainToy;

class TrainingTest : public testing_support::ToyCluster {};

TEST_F(TrainingTest, ShardedAdamWMatchesTheUnshardedReferenceAtEveryWorldSize) {
  StartCluster(4);
  for (int world_size = 1; world_size <= 4; ++world_size) {
    SCOPED_TRACE(world_size);
    const JobConfig config = ConfigFor(world_size);
    ExpectNear(Train(ToyModel(4), config, 6, 1, absl::StrCat("toy", world_size)),
               ReferenceRun(ToyModel(4), config, 6), 2e-6f);
  }
}

TEST_F(TrainingTest, EveryOptimizerMatchesTheReference) {
  StartCluster(3);
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    SCOPED_TRACE(static_cast<int>(kind));
    JobConfig config = ConfigFor(3);
    config.optimizer = kind;
    config.groups[0].momentum = 0.9;
    ExpectNear(Train(ToyModel(3), config, 5, 1, absl::StrCat("toy", static_cast<int>(kind))),
               ReferenceRun(ToyModel(3), config, 5), 2e-6f);
  }
}

TEST_F(TrainingTest, ClippingUsesTheGlobalNorm) {
  StartCluster(3);
  JobConfig config = ConfigFor(3);
  config.optimizer = OptimizerKind::kSgd;
  config.max_gradient_norm = 0.5;
  ExpectNear(Train(ToyModel(3), config, 5), ReferenceRun(ToyModel(3), config, 5), 2e-6f);
}

TEST_F(TrainingTest, ParamGroupsGetTheirOwnHyperParameters) {
  StartCluster(2);
  JobConfig config = ConfigFor(2);
  ParamGroup biases = config.groups[0];
  biases.weight_decay = 0;
  biases.learning_rate = 0.05;
  biases.parameter_names = {"unit0.bias", "unit1.bias"};
  config.groups.push_back(biases);
  ExpectNear(Train(ToyModel(2), config, 4), ReferenceRun(ToyModel(2), config, 4), 2e-6f);
}

TEST_F(TrainingTest, EachStepMayHaveItsOwnHyperParametersByGroup) {
  StartCluster(2);
  JobConfig right = ConfigFor(2);
  ParamGroup biases = right.groups[0];
  biases.weight_decay = 0.3;
  biases.beta1 = 0.5;
  biases.learning_rate = 0.05;
  biases.parameter_names = {"unit0.bias", "unit1.bias"};
  right.groups.push_back(biases);
  // The same names and other numbers, which each step replaces.
  JobConfig wrong = right;
  wrong.groups[0].learning_rate = 7.0;
  static_cast<HyperParameters&>(wrong.groups[1]) = HyperParameters();
  const StepOptions numbers = {1.0, {right.groups[0], right.groups[1]}};
  std::vector<float> result;
  ForEachRank(ToyModel(2), wrong, [&](Session* session) {
    ASSERT_OK(TrainToy(session, 4, nullptr, 1, [&](int64_t) { return numbers; }));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> all, ReadAll(session));
    if (session->rank() == 0) result = all;
    EXPECT_THAT(session->Step(StepOptions{1.0, {numbers.groups[0]}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the job has 2")));
    StepOptions bad = numbers;
    bad.learning_rate_scale = 1e306;
    bad.groups[0].learning_rate = 1e3;
    EXPECT_THAT(session->Step(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("param group 0: learning_rate")));
    bad = numbers;
    bad.groups[1].beta2 = 1.5;
    EXPECT_THAT(session->Step(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("param group 1: beta2")));
  });
  ExpectNear(result, ReferenceRun(ToyModel(2), right, 4), 2e-6f);
}

TEST_F(TrainingTest, RanksThatDisagreeOnAStepsNumbersChangeNothing) {
  StartCluster(2);
  ForEachRank(ToyModel(2), ConfigFor(2), [](Session* session) {
    ASSERT_OK(TrainToy(session, 1));
    EXPECT_THAT(ToyStep(session, 2, StepOptions{session->rank() == 0 ? 1.0 : 0.5, {}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ranks 0 and 1")));
    EXPECT_EQ(session->next_step(), 2);
    ASSERT_OK(TrainToy(session, 3));
  });
}

TEST_F(TrainingTest, FrozenParametersStayAsTheyWere) {
  StartCluster(3);
  const JobConfig config = ConfigFor(3);
  ExpectNear(Train(ToyModel(3, true), config, 4), ReferenceRun(ToyModel(3, true), config, 4),
             2e-6f);
}

TEST_F(TrainingTest, GradientsAccumulateBeforeAReduction) {
  StartCluster(2);
  JobConfig config = ConfigFor(2);
  config.gradient_slots = 0;
  ExpectNear(Train(ToyModel(3), config, 4, 3), ReferenceRun(ToyModel(3), config, 4, 3), 2e-6f);
}

TEST_F(TrainingTest, GradientsAccumulateOverReductions) {
  StartCluster(2);
  JobConfig config = ConfigFor(2);
  config.optimizer = OptimizerKind::kSgd;
  config.groups[0].weight_decay = 0;
  config.groups[0].learning_rate = 1.0;
  ModelSpec model;
  model.units.push_back({"u", {{"w", {9}, DType::kFp32}}});
  ForEachRank(model, config, [](Session* session) {
    ASSERT_OK(session->Initialize(
        [](int, int, absl::Span<float> values) { std::fill(values.begin(), values.end(), 0.0f); }));
    const std::vector<float> gradient(9, static_cast<float>(1 + session->rank()));
    for (int k = 0; k < 2; ++k) {
      ASSERT_OK(session->AddGradient(0, 0, gradient));
      ASSERT_OK(session->Reduce(0));
    }
    ASSERT_OK_AND_ASSIGN(const StepResult result, session->Step());
    EXPECT_NEAR(result.gradient_norm, 3.0 * 3.0, 1e-5);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> all, ReadAll(session));
    for (float value : all) EXPECT_FLOAT_EQ(value, -3.0f);
  });
}

TEST_F(TrainingTest, NonFiniteGradientOnOneRankChangesNothingAnywhere) {
  StartCluster(3);
  const JobConfig config = ConfigFor(3);
  ForEachRank(ToyModel(2), config, [](Session* session) {
    ASSERT_OK(TrainToy(session, 1));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> before, ReadAll(session));
    std::vector<float> bad(session->layout().units[1].flat.parameters()[0].numel, 1.0f);
    if (session->rank() == 1) bad[3] = NAN;
    ASSERT_OK(session->AddGradient(1, 0, bad));
    ASSERT_OK(session->Reduce(1));
    EXPECT_THAT(session->Step(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'unit1'")));
    EXPECT_EQ(session->next_step(), 2);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> after, ReadAll(session));
    EXPECT_EQ(before, after);
    EXPECT_OK(TrainToy(session, 3)) << "and training goes on";
  });
}

TEST_F(TrainingTest, SavedModelHoldsEveryParameter) {
  StartCluster(4);
  const JobConfig config = ConfigFor(4);
  std::string folder = "/tmp/tessera-save-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/model.safetensors";
  ForEachRank(ToyModel(3), config, [&](Session* session) {
    ASSERT_OK(TrainToy(session, 2));
    ASSERT_OK(session->Save(path));
    EXPECT_THAT(session->Save("/no/such/folder/m"),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder")));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> all, ReadAll(session));
    if (session->rank() != 0) return;
    ASSERT_OK_AND_ASSIGN(const std::vector<LoadedTensor> loaded, ReadModelFile(path));
    std::map<std::string, std::vector<float>> by_name;
    for (const LoadedTensor& tensor : loaded) by_name[tensor.stored.name] = tensor.values;
    std::vector<float> in_order;
    for (const UnitLayout& unit : session->layout().units) {
      for (const PlacedParameter& parameter : unit.flat.parameters()) {
        const auto& values = by_name.at(parameter.spec.name);
        in_order.insert(in_order.end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(in_order, all);
  });
  system(absl::StrCat("rm -r ", folder).c_str());
}

TEST_F(TrainingTest, TwoJobsShareOneWorker) {
  StartCluster(4);
  const JobConfig config = ConfigFor(2);
  std::vector<float> first, second;
  std::thread other([&] { first = Train(ToyModel(2), config, 4, 1, "first"); });
  second = Train(ToyModel(3), config, 4, 1, "second");
  other.join();
  ExpectNear(first, ReferenceRun(ToyModel(2), config, 4), 2e-6f);
  ExpectNear(second, ReferenceRun(ToyModel(3), config, 4), 2e-6f);
}

TEST_F(TrainingTest, TrainerThatDetachedIsFollowedByAnotherInTheSameEpoch) {
  StartCluster(1);
  const JobConfig config = ConfigFor(1);
  for (int64_t last_step : {2, 5}) {
    SessionOptions options = OptionsFor(0, ToyModel(3), config);
    options.wait_if_attached = true;  // The worker may not have seen the last one leave yet.
    ASSERT_OK_AND_ASSIGN(auto session, Session::Open(options));
    ASSERT_OK(TrainToy(session.get(), last_step));
  }
  SessionOptions options = OptionsFor(0, ToyModel(3), config);
  options.wait_if_attached = true;  // The worker may not have seen the last one leave yet.
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(options));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> all, ReadAll(session.get()));
  ExpectNear(all, ReferenceRun(ToyModel(3), config, 5), 2e-6f);
}

TEST_F(TrainingTest, TrainerThatLeavesInTheMiddleOfAStepIsFollowedByAnotherThatBeginsItAnew) {
  StartCluster(2);
  const JobConfig config = ConfigFor(2);
  std::vector<float> result;
  std::thread peer([&] {
    ASSERT_OK_AND_ASSIGN(auto session, Session::Open(OptionsFor(0, ToyModel(3), config)));
    ASSERT_OK(TrainToy(session.get(), 5));
    ASSERT_OK_AND_ASSIGN(result, ReadAll(session.get()));
  });
  SessionOptions options = OptionsFor(1, ToyModel(3), config);
  options.wait_if_attached = true;  // The worker may not have seen the last one leave yet.
  for (int64_t last_step : {0, 2, 5}) {
    ASSERT_OK_AND_ASSIGN(auto session, Session::Open(options));
    ASSERT_OK(TrainToy(session.get(), last_step));
    if (last_step == 5) break;
    // As its peer does, up to a gradient that is on its way.
    for (int unit = 0; unit < 3; ++unit) {
      ASSERT_OK(session->Unshard(unit));
      ASSERT_OK(session->Reshard(unit));
    }
    const std::vector<float> stray(session->layout().units[2].flat.parameters()[0].numel, 1e6f);
    ASSERT_OK(session->AddGradient(2, 0, stray));
    ASSERT_OK(session->Reduce(2));
  }
  peer.join();
  ExpectNear(result, ReferenceRun(ToyModel(3), config, 5), 2e-6f);
}

TEST_F(TrainingTest, TheSameRunTwiceGivesTheSameBits) {
  StartCluster(3);
  const JobConfig config = ConfigFor(3);
  const std::vector<float> first = Train(ToyModel(3), config, 8, 1, "first");
  EXPECT_EQ(first, Train(ToyModel(3), config, 8, 1, "second"));
}

// Rank 1 does two things the other way round; first while the order is recorded, then against it.
TEST_F(TrainingTest, DifferentOrdersAreAnErrorOnEveryRankAndTrainingGoesOn) {
  StartCluster(2);
  ForEachRank(ToyModel(3), ConfigFor(2), [](Session* session) {
    ASSERT_OK(testing_support::InitializeToy(session));
    for (int64_t last_step : {0, 3}) {
      SCOPED_TRACE(last_step);
      ASSERT_OK(TrainToy(session, last_step));
      const int first = session->rank() == 0 ? 0 : 1;
      absl::Status status = session->Unshard(first);
      if (status.ok()) status = session->Reshard(first);
      if (status.ok()) status = session->Unshard(1 - first);
      // The rank that follows its record learns of it where it needs the other one.
      if (status.ok()) status = session->Step().status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   testing::AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"),
                                                  HasSubstr("unit0"), HasSubstr("unit1.weight"))));
      ASSERT_OK(session->Recover());
    }
    ASSERT_OK(TrainToy(session, 5));
    EXPECT_EQ(session->next_step(), 6);
  });
}

// --- Wrong use is a clear error and harms nobody ---

TEST_F(TrainingTest, WrongUseIsRefusedByNameAndTrainingGoesOn) {
  StartCluster(1);
  ForEachRank(ToyModel(3), ConfigFor(1), [](Session* session) {
    ASSERT_OK(testing_support::InitializeToy(session));
    EXPECT_THAT(testing_support::InitializeToy(session), IsOk());
    EXPECT_THAT(
        session->Initialize([](int, int, absl::Span<float>) {}),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("initial values already")));
    ASSERT_OK(session->Unshard(1));
    EXPECT_THAT(session->Unshard(1),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'unit1'")));
    ASSERT_OK(session->Reshard(1));
    EXPECT_THAT(session->Reshard(1),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'unit1'")));
    EXPECT_THAT(session->Unshard(9), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("9")));
    EXPECT_THAT(
        session->AddGradient(0, 0, std::vector<float>(3)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'unit0.weight' has 3 elements")));
    EXPECT_THAT(session->Step(-1.0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
    ASSERT_OK(session->Unshard(2));
    EXPECT_OK(session->Step()) << "closes the windows that are open";
    EXPECT_FALSE(session->unsharded(2));
  });
}

TEST_F(TrainingTest, SecondTrainerOfARankAndWrongWorldSizeAreRefused) {
  StartCluster(2);
  const JobConfig config = ConfigFor(2);
  ASSERT_OK_AND_ASSIGN(auto first, Session::Open(OptionsFor(0, ToyModel(2), config)));
  EXPECT_THAT(Session::Open(OptionsFor(0, ToyModel(2), config)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rank 0 is attached")));
  EXPECT_THAT(Session::Open(OptionsFor(1, ToyModel(2), ConfigFor(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world_size")));
}

TEST_F(TrainingTest, ModelThatDiffersBetweenRanksNamesTheParameterAndBothRanks) {
  StartCluster(2);
  const JobConfig config = ConfigFor(2);
  ASSERT_OK_AND_ASSIGN(auto first, Session::Open(OptionsFor(0, ToyModel(2), config)));
  ModelSpec other = ToyModel(2);
  other.units[1].parameters[1].shape = {99};
  EXPECT_THAT(
      Session::Open(OptionsFor(1, other, config)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               testing::AllOf(HasSubstr("unit1.bias"), HasSubstr("rank 0"), HasSubstr("rank 1"))));
}

}  // namespace
}  // namespace tessera
