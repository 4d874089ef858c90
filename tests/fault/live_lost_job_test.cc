// Workers that die with a job's shards while clients read it, set it or have it saved: each client
// is told soon which worker or job it was, and later clients that the job is lost.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/live_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/stalling_proxy.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::Eventually;
using testing_support::StallingProxy;

using LiveLostJobTest = LiveCluster;

// None of them has to wait: those that do would for a day.
TEST_F(LiveLostJobTest, EndsPutsAndSavesThatWaitAndIsNamedToLaterCallers) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kFewElements));
  const std::string path = Path("put.safetensors"), checkpoint = Path("checkpoint");
  (void)WriteBig(path, "put");
  Client put = StartClient({"put", "--job", "toy", "--from", path, "--wait", "24h"});
  ASSERT_TRUE(Eventually([this] { return CountHolders() == world_size_; }));
  Client save = StartClient({"save", "--job", "toy", "--to", checkpoint});
  ASSERT_TRUE(Eventually([&] {
    return RunClient({"saves", "--job", "toy"}).out.find("the next step") != std::string::npos;
  }));

  KillWhole(worker_.get());
  const CliResult of_put = Await(std::move(put));
  EXPECT_EQ(of_put.exit_code, 1);
  EXPECT_THAT(of_put.err, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("worker 'w'"),
                                HasSubstr("all ranks have them, or none")));
  // Nobody knows yet that it does not come back with the job's memory.
  EXPECT_THAT(RunClient({"get", "toy", "--out", Path("get.safetensors")}).err,
              AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("worker 'w'")));
  EXPECT_THAT(
      RunClient({"put", "--job", "toy", "--from", path}).err,
      AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("worker 'w'"), HasSubstr("nothing was changed")));
  EXPECT_TRUE(save.process->running());

  StartWorker();
  AwaitState(v1::JOB_STATE_LOST);
  const auto is_lost = AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("job 'toy' is lost: "),
                             HasSubstr("gone with the memory of worker 'w'"));
  const CliResult of_save = Await(std::move(save));
  EXPECT_EQ(of_save.exit_code, 1);
  EXPECT_THAT(of_save.err, is_lost);
  EXPECT_THAT(RunClient({"get", "toy", "--out", Path("get.safetensors")}).err, is_lost);
  EXPECT_THAT(RunClient({"put", "--job", "toy", "--from", path}).err, is_lost);
  EXPECT_THAT(RunClient({"save", "--job", "toy", "--to", checkpoint}).err, is_lost);
  EXPECT_FALSE(std::filesystem::exists(checkpoint));
  EXPECT_FALSE(std::filesystem::exists(Path("get.safetensors")));
}

// The one that serves or the one that comes after it.
class LiveReadingWorkerKillTest : public LiveCluster, public testing::WithParamInterface<bool> {};

TEST_P(LiveReadingWorkerKillTest, InTheMiddleOfAReadingIsNamedAndNoFileIsLeft) {
  split_ = true;
  ASSERT_NO_FATAL_FAILURE(StartJob(kManyElements));
  auto& victim = GetParam() ? second_worker_ : worker_;
  auto& other = GetParam() ? worker_ : second_worker_;
  const std::string path = Path("get.safetensors");
  ASSERT_OK_AND_ASSIGN(const auto proxy,
                       StallingProxy::Start(port_, StallingProxy::Direction::kToClient, 1 << 20));
  Client client =
      StartClient({"get", "toy", "--out", path, "--through-coordinator"}, proxy->address());
  ASSERT_TRUE(Eventually([&] { return proxy->has_stalled(); }));
  ASSERT_EQ(CountSpoolFiles(victim->pid()), 1);
  KillWhole(victim.get());
  proxy->Release();
  const CliResult get = Await(std::move(client));
  EXPECT_EQ(get.exit_code, 1);
  EXPECT_THAT(get.err,
              AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(GetParam() ? "worker 'x'" : "worker 'w'")));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_TRUE(Eventually([&] { return CountSpoolFiles(other->pid()) == 0; }));
}

// Whenever: what was read by then is whole, or there is nothing.
TEST_P(LiveReadingWorkerKillTest, OneThatIsFetchedFromIsNamedAndNoFileIsLeft) {
  split_ = true;
  ASSERT_NO_FATAL_FAILURE(StartJob(kManyElements));
  auto& victim = GetParam() ? second_worker_ : worker_;
  auto& other = GetParam() ? worker_ : second_worker_;
  const std::string path = Path("get.safetensors");
  Client client = StartClient({"get", "toy", "--out", path});
  ASSERT_TRUE(Eventually(
      [&] { return CountSpoolFiles(victim->pid()) == 1 || !client.process->running(); }));
  KillWhole(victim.get());
  const CliResult get = Await(std::move(client));
  EXPECT_EQ(std::filesystem::exists(path), get.exit_code == 0);
  if (get.exit_code != 0) {
    EXPECT_THAT(get.err, AllOf(HasSubstr("UNAVAILABLE"),
                               HasSubstr(GetParam() ? "worker 'x'" : "worker 'w'")));
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_TRUE(Eventually([&] { return CountSpoolFiles(other->pid()) == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Worker, LiveReadingWorkerKillTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Second" : "First"; });

}  // namespace
}  // namespace tessera
