// The process of a client is killed in the middle of a read or put: training continues, the
// coordinator and the worker have nothing left of it, and the next client is served.
#include <signal.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/fault/live_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/stalling_proxy.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ReadFile;
using testing_support::StallingProxy;

constexpr int64_t kSomeBytes = 1 << 20;

class LiveClientKillTest : public LiveCluster {
 protected:
  // What goes before is read or put once, undisturbed.
  void Start(int64_t big_numel, const std::function<void()>& undisturbed) {
    ASSERT_NO_FATAL_FAILURE(StartJob(big_numel));
    spool_files_ = CountSpoolFiles(worker_->pid());
    worker_sockets_ = CountSockets(worker_->pid());
    coordinator_sockets_ = CountSockets(coordinator_->pid());
    ASSERT_NO_FATAL_FAILURE(undisturbed());
    ExpectNothingIsLeft();
  }
  void StartWithPut(int64_t big_numel) {
    path_ = Path("put.safetensors");
    Start(big_numel, [this] { PutBig(path_, WriteBig(path_, "before")); });
  }
  void StallClient(std::vector<std::string> args, StallingProxy::Direction direction) {
    ASSERT_OK_AND_ASSIGN(proxy_, StallingProxy::Start(port_, direction, kSomeBytes));
    client_ = StartClient(std::move(args), proxy_->address());
    ASSERT_NE(client_.process, nullptr);
    ASSERT_TRUE(Eventually([this] { return proxy_->has_stalled(); }));
    ASSERT_TRUE(Eventually([this] { return CountSpoolFiles(worker_->pid()) == spool_files_ + 1; }));
  }
  void Kill() {
    ASSERT_TRUE(client_.process->running());
    client_.process->Kill(SIGKILL);
    EXPECT_EQ(client_.process->Wait(), 128 + SIGKILL);
  }
  void ExpectNothingIsLeft() {
    EXPECT_TRUE(Eventually([this] { return CountSpoolFiles(worker_->pid()) == spool_files_; }));
    EXPECT_TRUE(Eventually([this] { return CountHolders() == 0; }));
    EXPECT_TRUE(Eventually([this] { return CountSockets(worker_->pid()) <= worker_sockets_; }));
    EXPECT_TRUE(
        Eventually([this] { return CountSockets(coordinator_->pid()) <= coordinator_sockets_; }));
  }
  void ExpectTrainingWentOn() {
    Step();
    ExpectTrainersSee();
    EXPECT_FALSE(absl::StrContains(ReadFile(Path("worker.log")), " failed: ")) << "an epoch ended";
  }

  int spool_files_ = 0, worker_sockets_ = 0, coordinator_sockets_ = 0;
  std::string path_;
  std::unique_ptr<StallingProxy> proxy_;
  Client client_;
};

// More of them than are served at once, so that one that was not let go would show.
TEST_F(LiveClientKillTest, ThatOfAReadingLeavesNothingAndTheNextOneReadsTheRightBits) {
  ASSERT_NO_FATAL_FAILURE(Start(kManyElements, [this] { ExpectRead(); }));
  const std::string path = Path("killed.safetensors");
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(StallClient({"get", "toy", "--out", path, "--through-coordinator"},
                                        StallingProxy::Direction::kToClient));
    ASSERT_NO_FATAL_FAILURE(Step());
    ASSERT_NO_FATAL_FAILURE(Step());
    ASSERT_NO_FATAL_FAILURE(Kill());
    ExpectNothingIsLeft();
    EXPECT_FALSE(std::filesystem::exists(path)) << "it has a part of the state";
  }
  EXPECT_EQ(RunClient({"get", "toy", "--out", path}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(path + ".partial")) << "of the ones that were killed";
  ExpectRead();
  ExpectTrainingWentOn();
}

// From the worker itself; whenever it is killed, though its end may come first.
TEST_F(LiveClientKillTest, ThatFetchesFromTheWorkerLeavesNothingAndTheNextOneReadsTheRightBits) {
  const std::string path = Path("killed.safetensors");
  ASSERT_NO_FATAL_FAILURE(Start(kManyElements, [this] { ExpectRead(); }));
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    client_ = StartClient({"get", "toy", "--out", path});
    ASSERT_NE(client_.process, nullptr);
    ASSERT_TRUE(Eventually([this] {
      return CountSpoolFiles(worker_->pid()) > spool_files_ || !client_.process->running();
    }));
    client_.process->Kill(SIGKILL);
    const int exit_code = client_.process->Wait();
    EXPECT_TRUE(exit_code == 128 + SIGKILL || exit_code == 0) << exit_code;
    EXPECT_EQ(std::filesystem::remove(path), exit_code == 0) << "a part, or a whole one too few";
    ASSERT_NO_FATAL_FAILURE(Step());
    ASSERT_NO_FATAL_FAILURE(Step());
    ExpectNothingIsLeft();
  }
  ExpectRead();
  ExpectTrainingWentOn();
}

TEST_F(LiveClientKillTest, ThatOfAPutThatSendsLeavesNothingAndTheNextOneIsSet) {
  ASSERT_NO_FATAL_FAILURE(StartWithPut(kManyElements));
  const std::vector<float> values = WriteBig(path_, "after");
  for (int i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(StallClient({"put", "--job", "toy", "--from", path_, "--wait", "24h"},
                                        StallingProxy::Direction::kToServer));
    ASSERT_NO_FATAL_FAILURE(Step());
    ASSERT_NO_FATAL_FAILURE(Kill());
    ExpectNothingIsLeft();
    ASSERT_NO_FATAL_FAILURE(Step());
    ExpectTrainersSee();
  }
  ASSERT_NO_FATAL_FAILURE(PutBig(path_, values));
  ExpectRead();
  ExpectTrainingWentOn();
}

// All ranks have been told of it, and a step would set it.
TEST_F(LiveClientKillTest, ThatOfAPutThatWaitsForAStepHasItTakenBackFromAllRanks) {
  ASSERT_NO_FATAL_FAILURE(StartWithPut(kFewElements));
  const std::vector<float> values = WriteBig(path_, "after");
  client_ = StartClient({"put", "--job", "toy", "--from", path_, "--wait", "24h"});
  ASSERT_TRUE(Eventually([this] { return CountHolders() == world_size_; }));
  ASSERT_NO_FATAL_FAILURE(Kill());
  ExpectNothingIsLeft();
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  ExpectTrainersSee();
  ASSERT_NO_FATAL_FAILURE(PutBig(path_, values));
  ExpectRead();
  ExpectTrainingWentOn();
}

}  // namespace
}  // namespace tessera
