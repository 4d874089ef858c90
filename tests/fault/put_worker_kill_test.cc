// One of a job's two workers dies as a whole in the middle of a put, with the shards of its ranks.
// What the client is told is true, and no mixture of old and new values can be read of the others:
// rank 0 is on "w", rank 1 on "x", which dies.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/live_cluster.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/process_view.h"
#include "tests/testing/region_view.h"
#include "tests/testing/stalling_proxy.h"
#include "tests/testing/toy_training.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::Eventually;
using testing_support::StallingProxy;

class PutWorkerKillTest : public LiveCluster {
 protected:
  PutWorkerKillTest() { split_ = true; }
  void TearDown() override {
    if (stepping_.joinable()) stepping_.join();
    LiveCluster::TearDown();
  }

  std::string PutPath() const { return Path("put.safetensors"); }
  std::vector<std::string> PutArgs() const {
    return {"put", "--job", "toy", "--from", PutPath(), "--wait", "24h"};
  }
  // Executors of x stop at `point` of the put; the trainers' step stands there.
  void StepUpTo(const std::string& point) {
    ASSERT_NO_FATAL_FAILURE(StartJob(kFewElements, point + "=hold@1"));
    (void)WriteBig(PutPath(), "put");
    client_ = StartClient(PutArgs());
    ASSERT_TRUE(Eventually([this] { return CountHolders() == world_size_; }));
    stepping_ = std::thread([this] { stepped_ = TryStep(); });
  }
  void KillX() {
    KillWhole(second_worker_.get());
    if (stepping_.joinable()) stepping_.join();
  }
  // x comes back without its memory; nobody reads anything of the job, before or after.
  void ExpectNothingCanBeRead() {
    const std::vector<std::string> get = {"get", "toy", "--out", Path("get.safetensors")};
    EXPECT_THAT(RunClient(get).err, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("worker 'x'")));
    for (const absl::Status& read :
         team_->Run([](Session* session) { return testing_support::ReadAll(session).status(); })) {
      EXPECT_FALSE(read.ok());
    }
    EXPECT_TRUE(Eventually([this] { return CountSpoolFiles(worker_->pid()) == 0; }));
    StartSecondWorker();
    AwaitState(v1::JOB_STATE_LOST);
    EXPECT_THAT(RunClient(get).err,
                AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("job 'toy' is lost: "),
                      HasSubstr("worker 'x' started again")));
    EXPECT_TRUE(Eventually([this] {
      return testing_support::RegionsOf(worker_->pid(), "toy").empty();
    })) << "the other worker keeps its part";
  }

  Client client_;
  std::thread stepping_;
  std::vector<absl::Status> stepped_;
};

TEST_F(PutWorkerKillTest, WhileItIsSentNothingIsChanged) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kManyElements));
  (void)WriteBig(PutPath(), "put");
  ASSERT_OK_AND_ASSIGN(const auto proxy,
                       StallingProxy::Start(port_, StallingProxy::Direction::kToServer, 1 << 20));
  client_ = StartClient(PutArgs(), proxy->address());
  ASSERT_TRUE(Eventually([&] { return proxy->has_stalled(); }));
  ASSERT_TRUE(Eventually([this] { return CountSpoolFiles(worker_->pid()) == 1; }));
  ASSERT_TRUE(Eventually([this] { return CountSpoolFiles(second_worker_->pid()) == 1; }));
  KillX();
  proxy->Release();
  const CliResult put = Await(std::move(client_));
  EXPECT_EQ(put.exit_code, 1);
  EXPECT_THAT(put.err, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("worker 'x'"),
                             HasSubstr("nothing was changed")));
  for (const absl::Status& step : TryStep()) EXPECT_FALSE(step.ok());
  ExpectNothingCanBeRead();
}

// All ranks want it and x has read its part, but has not said so.
TEST_F(PutWorkerKillTest, BeforeItsVoteNobodyHasItAndTheClientIsToldWhatCanBeKnown) {
  ASSERT_NO_FATAL_FAILURE(StepUpTo("put.before-vote"));
  ASSERT_TRUE(Eventually([this] {
    const auto log = testing_support::ReadFlightLog("unix:" + folder_ + "/x/worker.sock", "toy", 1);
    return CountOps(log, "put", /*step=*/3) == 1;
  }));
  const Mapping group = testing_support::MapRegionOf(worker_->pid(), "toy/group");
  ASSERT_TRUE(group.valid());
  const auto* page = reinterpret_cast<const GroupPage*>(group.data());
  KillX();
  const CliResult put = Await(std::move(client_));
  EXPECT_EQ(put.exit_code, 1);
  EXPECT_THAT(put.err, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("worker 'x'"),
                             HasSubstr("not known: all ranks have them, or none")));
  EXPECT_EQ(page->decided_step.load(), 2) << "the step alone";
  EXPECT_EQ(page->put.load(), 0);
  for (const absl::Status& step : stepped_) EXPECT_FALSE(step.ok());
  ExpectNothingCanBeRead();
}

// All have voted for it and w has it: so it was set, until it was lost with all else.
TEST_F(PutWorkerKillTest, AfterAllVotesItIsSetAndLostWithTheJob) {
  ASSERT_NO_FATAL_FAILURE(StepUpTo("put.after-vote"));
  const Mapping group = testing_support::MapRegionOf(worker_->pid(), "toy/group");
  ASSERT_TRUE(group.valid());
  const auto* page = reinterpret_cast<const GroupPage*>(group.data());
  ASSERT_TRUE(Eventually([&] { return page->put.load() != 0; }));
  KillX();
  const CliResult put = Await(std::move(client_));
  EXPECT_EQ(put.exit_code, 0) << put.err;
  EXPECT_THAT(put.out, HasSubstr("since the end of step 2"));
  EXPECT_EQ(page->decided_step.load(), 3);
  EXPECT_FALSE(stepped_[1].ok());
  ExpectNothingCanBeRead();
}

}  // namespace
}  // namespace tessera
