// A rank that does something else than its peers, at every position of a step, in the step that
// records the order and in one that follows the record: an error on every rank that names both,
// never a hang; and training continues. The slowest is printed.
// Conformance: ORD-2, and ORD-3 where an error takes the place of the warning.
#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kUnits = 3;

enum class Kind { kWindow, kReduce, kStep };
struct Operation {
  Kind kind;
  int unit;
};

// A forward and a backward: windows of units 0, 1, 2, reductions of 2, 1, 0, the step.
std::vector<Operation> Plan() {
  std::vector<Operation> plan;
  for (int u = 0; u < kUnits; ++u) plan.push_back({Kind::kWindow, u});
  for (int u = kUnits - 1; u >= 0; --u) plan.push_back({Kind::kReduce, u});
  plan.push_back({Kind::kStep, -1});
  return plan;
}

// What the rank that deviates does instead of `operation`.
Operation Other(Operation operation) {
  switch (operation.kind) {
    case Kind::kWindow:
      return {Kind::kWindow, (operation.unit + 1) % kUnits};
    case Kind::kReduce:
      return {Kind::kReduce, (operation.unit + 1) % kUnits};
    case Kind::kStep:
      break;
  }
  return {Kind::kWindow, 1};
}

absl::Status Do(Session* session, Operation operation) {
  if (operation.kind == Kind::kStep) return session->Step().status();
  if (operation.kind == Kind::kWindow) {
    RETURN_IF_ERROR(session->Unshard(operation.unit));
    return session->Reshard(operation.unit);
  }
  const auto& parameters = session->layout().units[operation.unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].spec.requires_grad) continue;
    const std::vector<float> gradient(parameters[p].numel, 1.0f);
    RETURN_IF_ERROR(session->AddGradient(operation.unit, p, gradient));
  }
  return session->Reduce(operation.unit);
}

// One step; `deviates_at` is a position of the plan, or -1.
absl::Status RunPlan(Session* session, int deviates_at) {
  const std::vector<Operation> plan = Plan();
  for (int position = 0; position < static_cast<int>(plan.size()); ++position) {
    const bool deviates = position == deviates_at;
    RETURN_IF_ERROR(Do(session, deviates ? Other(plan[position]) : plan[position]));
  }
  // The one that did something in place of its step makes it now, and so do the others next.
  return session->Step().status();
}

class OrderDivergenceTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(OrderDivergenceTest, AtEveryPositionIsAnErrorOnEveryRankAndTrainingGoesOn) {
  const auto [world_size, steps_before] = GetParam();
  LocalCluster::Options cluster_options;
  cluster_options.num_devices = world_size;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(cluster_options));
  SessionOptions options = ToyOptions(*cluster, "toy", world_size, kUnits);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.RunAll([](Session* session) { return testing_support::InitializeToy(session); }));
  absl::Duration slowest;
  for (int position = 0; position < static_cast<int>(Plan().size()); ++position) {
    const int deviant = position % world_size;
    SCOPED_TRACE(absl::StrCat("rank ", deviant, " at position ", position));
    ASSERT_OK(team.RunAll([before = steps_before](Session* session) -> absl::Status {
      for (int i = 0; i < before; ++i) {
        for (const Operation& operation : Plan()) RETURN_IF_ERROR(Do(session, operation));
      }
      return absl::OkStatus();
    }));
    const absl::Time begin = absl::Now();
    const std::vector<absl::Status> statuses = team.Run([&](Session* session) {
      return RunPlan(session, session->rank() == deviant ? position : -1);
    });
    slowest = std::max(slowest, absl::Now() - begin);
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_THAT(statuses[rank],
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr(absl::StrCat("rank ", deviant)), HasSubstr("unit"),
                                 AnyOf(HasSubstr(".weight"), HasSubstr("step")))))
          << "rank " << rank;
    }
    ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  }
  printf("slowest: %s\n", absl::FormatDuration(slowest).c_str());
  const int64_t next = team.session(0)->next_step();
  ASSERT_OK(team.TrainTo(next + 1));
  EXPECT_EQ(team.session(0)->next_step(), next + 2);
}

// Windows of all units, as a forward without gradients, and its end.
absl::Status Evaluate(Session* session, int deviates_at) {
  for (int unit = 0; unit < kUnits; ++unit) {
    const int other = (unit + 1) % kUnits;
    RETURN_IF_ERROR(Do(session, {Kind::kWindow, unit == deviates_at ? other : unit}));
  }
  return session->EndForward();
}

// The one that deviates ends no forward at position kUnits, but trains.
TEST(EvaluationOrderTest, DivergenceAtEveryPositionIsAnErrorOnEveryRankAndTrainingGoesOn) {
  constexpr int kWorldSize = 2, kForwards = 6;
  LocalCluster::Options cluster_options;
  cluster_options.num_devices = kWorldSize;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(cluster_options));
  SessionOptions options = ToyOptions(*cluster, "toy", kWorldSize, kUnits);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.RunAll([](Session* session) { return testing_support::InitializeToy(session); }));
  absl::Duration slowest;
  for (int position = 0; position <= kUnits; ++position) {
    for (const int forward : {0, 1, kForwards}) {
      const int deviant = (position + forward) % kWorldSize;
      SCOPED_TRACE(
          absl::StrCat("rank ", deviant, " at position ", position, " of forward ", forward));
      ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
        for (const Operation& operation : Plan()) RETURN_IF_ERROR(Do(session, operation));
        for (int i = 0; i < forward; ++i) RETURN_IF_ERROR(Evaluate(session, -1));
        return absl::OkStatus();
      }));
      const absl::Time begin = absl::Now();
      const std::vector<absl::Status> statuses = team.Run([&](Session* session) {
        const bool deviates = session->rank() == deviant;
        if (deviates && position == kUnits) {
          for (const Operation& operation : Plan()) RETURN_IF_ERROR(Do(session, operation));
        } else {
          RETURN_IF_ERROR(Evaluate(session, deviates ? position : -1));
        }
        return session->Step().status();
      });
      slowest = std::max(slowest, absl::Now() - begin);
      for (int rank = 0; rank < kWorldSize; ++rank) {
        EXPECT_THAT(statuses[rank],
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr(absl::StrCat("rank ", deviant)), HasSubstr("unit"))))
            << "rank " << rank;
      }
      ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
    }
  }
  printf("slowest: %s\n", absl::FormatDuration(slowest).c_str());
  const int64_t next = team.session(0)->next_step();
  ASSERT_OK(team.TrainTo(next + 1));
}

INSTANTIATE_TEST_SUITE_P(Worlds, OrderDivergenceTest,
                         testing::Combine(testing::Values(2, 3), testing::Values(0, 2)));

}  // namespace
}  // namespace tessera
