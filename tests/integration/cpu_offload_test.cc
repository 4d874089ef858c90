// cpu_offload on a CPU worker, where everything is in host memory anyway: accepted with every
// strategy, and no bit or operation differs. What it forbids elsewhere is forbidden here too.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
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
using testing_support::FlightOps;
using testing_support::OpsOfSteps;
using testing_support::ReadAll;
using testing_support::ReadFlightLog;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 2;
constexpr int kSteps = 4;

class CpuOffloadTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 6 * kWorldSize;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions OptionsFor(const std::string& job, bool offload) {
    SessionOptions options = ToyOptions(*cluster_, job, kWorldSize);
    options.config.cpu_offload = offload;
    options.config.max_gradient_norm = 0.5;
    return options;
  }
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(CpuOffloadTest, ChangesNoBitAndNoOperation) {  // CORE-1, CLIP-2 (offload), SGS-5 (offload)
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    std::vector<std::vector<float>> values;
    std::vector<FlightOps> logs;
    for (const bool offload : {false, true}) {
      const std::string job = absl::StrCat("job", static_cast<int>(strategy), offload);
      SessionOptions options = OptionsFor(job, offload);
      options.config.strategy = strategy;
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
      ASSERT_OK(team.TrainTo(kSteps));
      values.resize(values.size() + 1);
      ASSERT_OK(team.RunAll([&](Session* session) {
        const auto all = ReadAll(session);
        if (all.ok() && session->rank() == 0) values.back() = *all;
        return all.status();
      }));
      logs.push_back(OpsOfSteps(ReadFlightLog(cluster_->worker_address(), job, 0), kSteps));
    }
    ASSERT_FALSE(values[0].empty());
    EXPECT_EQ(values[0], values[1]);
    EXPECT_GT(logs[0].size(), kSteps * 3 * 2);
    EXPECT_EQ(logs[0], logs[1]);
  }
}

TEST_F(CpuOffloadTest, ReducedGradientsAreNotAddedToAndTrainingGoesOn) {  // GA-2, A0.7
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor("once", true)));
  ASSERT_OK(team.TrainTo(1));
  for (const absl::Status& status : team.Run([](Session* session) {
         const int64_t numel = session->layout().units[1].flat.parameters()[0].numel;
         const std::vector<float> gradient(numel, 1.0f);
         for (int i = 0; i < 2; ++i) {
           const absl::Status added = session->AddGradient(1, 0, gradient);
           if (!added.ok()) return added;
           const absl::Status reduced = session->Reduce(1);
           if (!reduced.ok()) return reduced;
         }
         return absl::OkStatus();
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 testing::AllOf(HasSubstr("'unit1'"), HasSubstr("cpu_offload"))));
  }
  ASSERT_OK(team.RunAll([](Session* session) { return session->DropGradients(); }));
  EXPECT_OK(team.TrainTo(2));
}

TEST_F(CpuOffloadTest, RanksThatDifferInItAreTold) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor("differ", true)));
  SessionOptions other = OptionsFor("differ", false);
  other.rank = 1;
  EXPECT_THAT(Session::Open(other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cpu_offload differs")));
}

}  // namespace
}  // namespace tessera
