// Units that are updated as soon as their gradient is reduced: the same bits as ever, nothing is
// seen before the decision, and what was assumed wrong is computed again.
#include <algorithm>
#include <cctype>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::FlightOp;
using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ReadFlightLog;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;
constexpr int kUnits = 3;
constexpr int kSteps = 4;

using Body = std::function<absl::Status(Session*, int64_t step)>;
using Configure = std::function<void(SessionOptions*)>;

class OptimizerInBackwardTest : public testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void Start(LocalCluster::Options options) {
    options.num_devices = 16 * kWorldSize;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }

  // The parameters after kSteps of `body`.
  std::vector<float> Train(const std::string& job, bool in_backward, const Configure& configure,
                           const Body& body) {
    SessionOptions options = ToyOptions(*cluster_, job, kWorldSize);
    options.model = ToyModel(kUnits, /*with_frozen=*/true);
    options.config.groups[0].weight_decay = 0.1;
    options.config.groups[0].momentum = 0.5;
    options.config.optimizer_in_backward = in_backward;
    if (configure) configure(&options);
    std::vector<float> result;
    auto team = TrainerTeam::Open(options);
    EXPECT_OK(team);
    if (!team.ok()) return result;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(InitializeToy(session));
      while (session->next_step() <= kSteps) {
        const int64_t step = session->next_step();
        RETURN_IF_ERROR(session->RunStep([&] { return body(session, step); }));
      }
      absl::StatusOr<std::vector<float>> values = ReadAll(session);
      while (absl::IsAborted(values.status())) {
        RETURN_IF_ERROR(session->Recover());
        values = ReadAll(session);
      }
      if (session->rank() == 0) result = *values;
      return values.status();
    }));
    return result;
  }
  // Both ways, to the same bits.
  void ExpectSameBits(const std::string& job, const Configure& configure, const Body& body) {
    const std::vector<float> expected = Train(absl::StrCat(job, "-after"), false, configure, body);
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(Train(job, true, configure, body), expected) << job;
  }
  // Updates of units in backward in the step, and whether some were computed again after it.
  std::pair<int, bool> UpdatesIn(const std::string& job, int64_t step) {
    std::pair<int, bool> updates = {0, false};
    for (const FlightOp& op : ReadFlightLog(cluster_->worker_address(), job, 0)) {
      if (op.op != "update" || op.step != step) continue;
      if (op.unit.empty()) updates.second = true;
      if (!op.unit.empty()) ++updates.first;
    }
    return updates;
  }
  std::unique_ptr<LocalCluster> cluster_;
};

absl::Status PlainStep(Session* session, int64_t step) { return ToyStep(session, step); }

// Of the whole unit's parameters that take gradients, on this rank.
absl::Status AddConstant(Session* session, int unit, float value) {
  const auto& parameters = session->layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].spec.requires_grad) continue;
    RETURN_IF_ERROR(session->AddGradient(unit, p, std::vector<float>(parameters[p].numel, value)));
  }
  return absl::OkStatus();
}

TEST_F(OptimizerInBackwardTest, GivesTheBitsOfTheUpdateAfterIt) {  // MISC-6, F2AUT-5
  for (const OptimizerKind optimizer :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      const std::string job = absl::StrCat("job", static_cast<int>(optimizer), Name(dtype));
      ExpectSameBits(
          job,
          [&](SessionOptions* options) {
            options->config.optimizer = optimizer;
            options->config.compute_dtype = dtype;
          },
          [&](Session* session, int64_t step) {
            // ToyStep reads fp32 parameters.
            if (dtype == DType::kFp32) return ToyStep(session, step);
            for (int unit = kUnits - 1; unit >= 0; --unit) {
              RETURN_IF_ERROR(AddConstant(session, unit, 0.25f * (session->rank() + step)));
              RETURN_IF_ERROR(session->Reduce(unit));
            }
            return session->Step().status();
          });
      EXPECT_EQ(UpdatesIn(job, 1), std::pair(kUnits, false)) << "all of it was used";
      EXPECT_EQ(UpdatesIn(job, kSteps), std::pair(kUnits, false));
      EXPECT_EQ(UpdatesIn(absl::StrCat(job, "-after"), 1), std::pair(0, false));
    }
  }
}

TEST_F(OptimizerInBackwardTest, RateOfEachStepIsUsedIfItIsAnnouncedAndElseTheUpdateIsRepeated) {
  for (const bool announced : {true, false}) {
    const std::string job = absl::StrCat("rates", announced);
    ExpectSameBits(job, nullptr, [&](Session* session, int64_t step) {
      StepOptions options;
      options.learning_rate_scale = 1.0 / static_cast<double>(step);
      if (announced) RETURN_IF_ERROR(session->AnnounceStep(options));
      return ToyStep(session, step, options);
    });
    EXPECT_EQ(UpdatesIn(job, 1), std::pair(kUnits, false));
    EXPECT_EQ(UpdatesIn(job, 2), std::pair(kUnits, !announced));
  }
}

TEST_F(OptimizerInBackwardTest, WhatOnlyTheDecisionTellsIsComputedAgain) {
  // A division of the gradient; a parameter that got a gradient on one rank alone.
  ExpectSameBits("divided", nullptr, [](Session* session, int64_t step) {
    StepOptions options;
    options.gradient_divisor = 4;
    return ToyStep(session, step, options);
  });
  EXPECT_EQ(UpdatesIn("divided", 2), std::pair(kUnits, true));
  ExpectSameBits("partial", nullptr, [](Session* session, int64_t step) -> absl::Status {
    RETURN_IF_ERROR(AddConstant(session, 0, 1));
    if (session->rank() == 1) RETURN_IF_ERROR(AddConstant(session, 1, step));
    for (const int unit : {1, 0}) RETURN_IF_ERROR(session->Reduce(unit));
    return session->Step().status();
  });
  EXPECT_EQ(UpdatesIn("partial", 2), std::pair(2, true));
}

TEST_F(OptimizerInBackwardTest, AccumulationAndWritesWithinAStepAreTakenIn) {
  ExpectSameBits("twice", nullptr, [](Session* session, int64_t step) -> absl::Status {
    for (int i = 0; i < 2; ++i) {
      for (int unit = kUnits - 1; unit >= 0; --unit) {
        RETURN_IF_ERROR(AddConstant(session, unit, 0.5f * (session->rank() + i) + step));
        RETURN_IF_ERROR(session->Reduce(unit));
      }
    }
    return session->Step().status();
  });
  EXPECT_EQ(UpdatesIn("twice", 1), std::pair(2 * kUnits, false));
  ExpectSameBits("written", nullptr, [](Session* session, int64_t step) -> absl::Status {
    for (int unit = kUnits - 1; unit >= 0; --unit) {
      RETURN_IF_ERROR(AddConstant(session, unit, session->rank()));
      RETURN_IF_ERROR(session->Reduce(unit));
    }
    RETURN_IF_ERROR(session->WriteParameters({1}, [&](int, int, absl::Span<float> values) {
      std::fill(values.begin(), values.end(), 1.5f * step);
    }));
    RETURN_IF_ERROR(session->WriteGradients(2, [](int, bool, absl::Span<float> values) {
      std::fill(values.begin(), values.end(), 2.0f);
      return true;
    }));
    return session->Step().status();
  });
}

TEST_F(OptimizerInBackwardTest, NothingIsSeenBeforeTheDecisionAndAnUndoneStepLeavesNothing) {
  SessionOptions options = ToyOptions(*cluster_, "undone", kWorldSize);
  options.config.optimizer_in_backward = true;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<float> before, ReadAll(session));
    for (int unit = kUnits - 1; unit >= 0; --unit) {
      RETURN_IF_ERROR(AddConstant(
          session, unit,
          unit == 0 && session->rank() == 2 ? std::numeric_limits<float>::infinity() : 1.0f));
      RETURN_IF_ERROR(session->Reduce(unit));
    }
    // Reading a gradient waits for the reductions and updates before it.
    RETURN_IF_ERROR(session->ReadGradients(1, [](int, absl::Span<const float>) {}));
    ASSIGN_OR_RETURN(const std::vector<float> during, ReadAll(session));
    EXPECT_EQ(during, before);
    EXPECT_THAT(session->Step(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'unit0'")));
    ASSIGN_OR_RETURN(const std::vector<float> after, ReadAll(session));
    EXPECT_EQ(after, before);
    return ToyStep(session, 2);
  }));
}

TEST_F(OptimizerInBackwardTest, ClippingWithItIsRefusedByName) {
  SessionOptions options = ToyOptions(*cluster_, "clipped", kWorldSize);
  options.config.optimizer_in_backward = true;
  options.config.max_gradient_norm = 1;
  EXPECT_THAT(Session::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("optimizer_in_backward with max_gradient_norm")));
}

class OptimizerInBackwardKillTest : public OptimizerInBackwardTest,
                                    public testing::WithParamInterface<const char*> {};

TEST_P(OptimizerInBackwardKillTest, StepIsUndoneOrRedoneToTheSameBits) {
  const std::vector<float> expected = Train("undisturbed", true, nullptr, PlainStep);
  LocalCluster::Options options;
  options.executor_binary = "worker/tessera-executor";
  options.executor_flags = {absl::StrCat("--fault-points=", GetParam())};
  Start(options);
  EXPECT_EQ(Train("killed", true, nullptr, PlainStep), expected);
}

// In the middle of the last step's updates in backward, and around its decision.
INSTANTIATE_TEST_SUITE_P(Points, OptimizerInBackwardKillTest,
                         testing::Values("update.in-backward=kill@11", "step.before-vote=kill@4",
                                         "step.after-decision=kill@4",
                                         "step.before-publish=kill@4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(std::remove_if(name.begin(), name.end(),
                                                     [](char c) { return !isalpha(c); }),
                                      name.end());
                           return name;
                         });

}  // namespace
}  // namespace tessera
