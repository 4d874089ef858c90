// What clients and workers tell the coordinator, and what it answers, is lost, repeated and
// delayed: the job continues, and the final model is the same bytes as that of an undisturbed run.
// Real processes.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ReadFile;

class LossyTest : public ProcessCluster, public testing::WithParamInterface<int> {
 protected:
  void TearDown() override {
    proxy_.reset();
    ProcessCluster::TearDown();
  }
  // In front of the coordinator, which runs.
  void StartProxy(int per_mille) {
    const std::string port_file = folder_ + "/proxy.port";
    auto started =
        demo::ChildProcess::Start({"tests/fault/lossy/lossy_proxy", coordinator_address(),
                                   port_file, absl::StrCat(GetParam()), absl::StrCat(per_mille)},
                                  folder_ + "/proxy.log");
    ASSERT_OK(started);
    proxy_ = *std::move(started);
    int port = 0;
    ASSERT_TRUE(Eventually([&] { return absl::SimpleAtoi(ReadFile(port_file), &port); }));
    proxy_address_ = absl::StrCat("127.0.0.1:", port);
  }
  // Ends it; what it did to how many calls.
  std::string FatesOfCalls() {
    proxy_->Kill(SIGTERM);
    proxy_->Wait();
    return ReadFile(folder_ + "/proxy.log");
  }

  std::unique_ptr<demo::ChildProcess> proxy_;
};

TEST_P(LossyTest, TrainingGoesOnToTheSameBits) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartProxy(/*per_mille=*/150));
  StartWorker();
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  AwaitStep(0, kSteps / 3);
  trainers_[1]->Kill(SIGKILL);  // So that there is more to say than at the beginning.
  trainers_[1]->Wait();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
  const std::string fates = FatesOfCalls();
  EXPECT_FALSE(absl::StrContains(fates, ", 0 cut")) << fates;
}

TEST_P(LossyTest, JobsAreMadeAndDeletedOnceHoweverOftenItIsSaid) {
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartProxy(/*per_mille=*/150));
  v1::CreateJobRequest create;
  create.mutable_config()->CopyFrom(EncodeJobConfig(JobConfig()));
  ModelSpec model;
  model.units.push_back({"unit", {{"w", {4}}}});
  *create.mutable_model() = EncodeModel(model);
  create.set_submitting_rank(-1);
  int64_t last_generation = 0;
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    create.set_job_id("gpt");
    create.set_request_id(NewRequestId());
    ASSERT_OK_AND_ASSIGN(const v1::Job made, CreateJob({dialled_address()}, create, deadline));
    EXPECT_GT(made.generation(), last_generation);
    last_generation = made.generation();
    ASSERT_OK_AND_ASSIGN(const v1::Job seen, GetJob({coordinator_address()}, "gpt", deadline));
    EXPECT_EQ(seen.generation(), made.generation());
    v1::DeleteJobRequest erase;
    erase.set_job_id("gpt");
    erase.set_request_id(NewRequestId());
    ASSERT_OK(DeleteJob({dialled_address()}, erase, deadline));
    EXPECT_TRUE(absl::IsNotFound(GetJob({coordinator_address()}, "gpt", deadline).status()));
  }
  const std::string fates = FatesOfCalls();
  for (const char* fate : {"requests lost", "replies lost", "repeated", "delayed"}) {
    EXPECT_TRUE(absl::StrContains(fates, fate)) << fates;
    EXPECT_FALSE(absl::StrContains(fates, absl::StrCat(" 0 ", fate))) << fates;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LossyTest, testing::Range(1, 4));

}  // namespace
}  // namespace tessera
