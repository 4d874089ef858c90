// Executors are killed while trainers commit what their own optimizers made: each step is done once
// on all ranks, and the model is bit-identical.
#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_shards.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ToyGradient;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;
constexpr int kSteps = 4;

absl::Status OwnStep(Session* session, LocalShards* shards, int64_t step) {
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const int64_t numel = session->layout().units[unit].flat.parameters()[0].numel;
    std::vector<float> gradient(numel);
    for (int64_t i = 0; i < numel; ++i) gradient[i] = ToyGradient(1, i, session->rank(), step);
    RETURN_IF_ERROR(session->AddGradient(unit, 0, gradient));
  }
  RETURN_IF_ERROR(shards->Begin().status());
  for (size_t i = 0; i < shards->parts().size(); ++i) {
    const absl::Span<float> values = shards->values(i), gradient = shards->gradient(i);
    for (size_t k = 0; k < values.size(); ++k) values[k] -= 0.1f * gradient[k];
  }
  return shards->Commit();
}

// What the job's parameters are after kSteps, and how many tries were repeated.
std::vector<float> Train(const std::string& faults, int* redone) {
  LocalCluster::Options options;
  options.num_devices = kWorldSize;
  options.executor_binary = "worker/tessera-executor";
  if (!faults.empty()) options.executor_flags = {"--fault-points=" + faults};
  std::vector<float> result;
  auto cluster = LocalCluster::Start(options);
  EXPECT_OK(cluster);
  auto team = TrainerTeam::Open(ToyOptions(**cluster, "toy", kWorldSize));
  EXPECT_OK(team);
  if (!team.ok()) return result;
  EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    ASSIGN_OR_RETURN(const auto shards, LocalShards::Open(session));
    int own_redone = 0;
    while (session->next_step() <= kSteps) {
      const int64_t step = session->next_step();
      int tries = 0;
      RETURN_IF_ERROR(session->RunStep([&] {
        ++tries;
        return OwnStep(session, shards.get(), step);
      }));
      own_redone += tries - 1;
      EXPECT_EQ(session->next_step(), step + 1);
    }
    absl::StatusOr<std::vector<float>> values = ReadAll(session);
    while (absl::IsAborted(values.status())) {
      RETURN_IF_ERROR(session->Recover());
      values = ReadAll(session);
    }
    if (session->rank() == 0) {
      result = *values;
      *redone = own_redone;
    }
    return values.status();
  }));
  return result;
}

struct Place {
  const char* point;
  bool decided;  // There, for sure.
};

class LocalShardsKillTest : public testing::TestWithParam<Place> {};

// Each executor dies there in the last step, and one that did not get so far in its repetition.
TEST_P(LocalShardsKillTest, EachStepIsDoneOnceOnAllRanksToTheSameBits) {
  int redone = 0;
  const std::vector<float> undisturbed = Train("", &redone);
  ASSERT_FALSE(undisturbed.empty());
  EXPECT_EQ(redone, 0);
  const std::string fault = absl::StrCat(GetParam().point, "=kill@", kSteps);
  EXPECT_EQ(Train(fault, &redone), undisturbed);
  if (GetParam().decided) {
    EXPECT_EQ(redone, 0) << "a step that is decided is not done again";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Points, LocalShardsKillTest,
    testing::Values(Place{"step.before-vote", false}, Place{"step.after-vote", false},
                    Place{"write.before-vote", false}, Place{"write.after-vote", false},
                    Place{"write.after-decision", true}, Place{"write.before-publish", true}),
    [](const auto& info) {
      std::string name = info.param.point;
      name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !isalpha(c); }),
                 name.end());
      return name;
    });

}  // namespace
}  // namespace tessera
