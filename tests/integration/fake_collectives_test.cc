// Collectives that move nothing: the same operations, no training, and no way to take it for one.
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/cli/cli.h"
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
using testing_support::InitializeToy;
using testing_support::OpsOfSteps;
using testing_support::ReadAll;
using testing_support::ReadFlightLog;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 2;
constexpr int kSteps = 2;

class FakeCollectivesTest : public testing::Test {
 protected:
  void Start(int num_workers) {
    LocalCluster::Options options;
    options.num_workers = num_workers;
    options.num_devices = num_workers == 1 ? 2 * kWorldSize : 1;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions OptionsFor(const std::string& job) {
    SessionOptions options = ToyOptions(*cluster_, job, kWorldSize);
    options.config.optimizer = OptimizerKind::kSgd;
    options.config.groups[0].weight_decay = 0;
    return options;
  }
  FlightOps OpsOf(const std::string& job) {
    return OpsOfSteps(ReadFlightLog(cluster_->worker_address(), job, 0), kSteps);
  }
  // What `tessera` prints of the job "fake", asking the coordinator and the worker.
  std::vector<std::string> Shown(const std::vector<std::string>& flags) {
    const std::string& worker = cluster_->worker_address();
    const std::string& coordinator = cluster_->coordinator_address();
    std::vector<std::string> shown;
    for (std::vector<std::string> args :
         {std::vector<std::string>{"status", "--coordinator", coordinator},
          std::vector<std::string>{"status", "--worker", worker},
          std::vector<std::string>{"dump", "fake", "--coordinator", coordinator},
          std::vector<std::string>{"dump", "fake", "--worker", worker}}) {
      std::ostringstream out, err;
      args.insert(args.end(), flags.begin(), flags.end());
      EXPECT_EQ(cli::RunCli(args, {&out, &err, false}), kExitOk) << err.str();
      shown.push_back(out.str());
    }
    return shown;
  }
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(FakeCollectivesTest, ReductionIsOrderedAndCountedAndGivesZeroes) {
  Start(1);
  FlightOps real;
  for (const bool fake : {false, true}) {
    const std::string job = fake ? "fake" : "real";
    SessionOptions options = OptionsFor(job);
    options.config.fake_reduce_scatter = fake;
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(InitializeToy(session));
      ASSIGN_OR_RETURN(const std::vector<float> before, ReadAll(session));
      for (int step = 1; step <= kSteps; ++step) RETURN_IF_ERROR(ToyStep(session, step));
      EXPECT_EQ(session->next_step(), kSteps + 1);
      ASSIGN_OR_RETURN(const std::vector<float> after, ReadAll(session));
      EXPECT_EQ(before == after, fake) << "a gradient of zero moves nothing in SGD";
      return absl::OkStatus();
    }));
    if (!fake) real = OpsOf(job);
    if (fake) {
      EXPECT_EQ(OpsOf(job), real);
    }
  }
  EXPECT_GT(real.size(), kSteps * 6);
}

TEST_F(FakeCollectivesTest, GatherFromAnotherHostIsOrderedAndCountedAndBringsNothing) {
  Start(2);  // One rank each.
  SessionOptions options = OptionsFor("gather");
  options.config.fake_all_gather = true;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options, {cluster_->worker_address(0),
                                                                     cluster_->worker_address(1)}));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    RETURN_IF_ERROR(ToyStep(session, 1));
    RETURN_IF_ERROR(session->Unshard(1));
    const ElementRange own = session->layout().units[1].shards.RangeOf(Rank(session->rank()));
    const auto* values = reinterpret_cast<const float*>(session->parameters(1));
    const int64_t numel = session->layout().units[1].shards.padded_numel();
    for (int64_t i = 0; i < numel; ++i) {
      if (i >= own.begin && i < own.end) continue;
      EXPECT_EQ(values[i], 0) << "element " << i << " of the other rank's part";
    }
    return session->Reshard(1);
  }));
  EXPECT_EQ(testing_support::CountOps(ReadFlightLog(cluster_->worker_address(), "gather", 0),
                                      "unshard", 1),
            3);
}

TEST_F(FakeCollectivesTest, JobSaysSoWhereverItIsShownAndIsNotSaved) {
  Start(1);
  SessionOptions options = OptionsFor("fake");
  options.config.fake_all_gather = options.config.fake_reduce_scatter = true;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(1));
  const std::string path = absl::StrCat(testing::TempDir(), "/fake.safetensors");
  for (const absl::Status& status : team.Run([&](Session* session) { return session->Save(path); }))
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("fake all-gather, fake reduce-scatter")));
  EXPECT_OK(team.TrainTo(2));
  for (const std::string& shown : Shown({}))
    EXPECT_THAT(shown, HasSubstr("TRAINS NOTHING: fake all-gather, fake reduce-scatter"));
  for (const std::string& shown : Shown({"--json"}))
    EXPECT_THAT(shown, HasSubstr("\"fake_reduce_scatter\": true"));
  SessionOptions other = OptionsFor("fake");
  EXPECT_THAT(Session::Open(other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fake_all_gather differs")));
}

}  // namespace
}  // namespace tessera
