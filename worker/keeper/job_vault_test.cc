// What a daemon takes over of what an earlier one left, and what it refuses or drops. Over a real
// vault, in a thread.
#include "worker/keeper/job_vault.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"
#include "shm/region.h"
#include "worker/engine/group_page.h"
#include "worker/vault/memory_vault.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class JobVaultTest : public ::testing::Test {
 protected:
  JobVaultTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    auto listener = ListenPacketSocket(folder_ + "/vault.sock");
    EXPECT_OK(listener);
    vault_ = std::thread([listener = *std::move(listener)]() mutable {
      RunVault(std::move(listener), absl::Seconds(60));
    });
  }
  ~JobVaultTest() override {
    EXPECT_OK(EndVault(folder_, "w"));
    vault_.join();
    std::filesystem::remove_all(folder_);
  }
  std::shared_ptr<VaultClient> Connect() {
    auto socket = ConnectPacketSocket(folder_ + "/vault.sock");
    EXPECT_OK(socket);
    return std::make_shared<VaultClient>(*std::move(socket));
  }
  // Of worker "w" with two devices, in this version.
  static v1::VaultedWorker Worker() {
    v1::VaultedWorker worker;
    worker.set_protocol(kProtocol);
    worker.set_version(kVersion);
    worker.set_worker_id("w");
    worker.set_num_devices(2);
    worker.set_incarnation(7);
    return worker;
  }
  // A job of which `noted_epoch` is known, in memory whose last one was `prepared_epoch`.
  static void Put(VaultClient* vault, const std::string& owner, int64_t noted_epoch,
                  int64_t prepared_epoch, bool has_begun = true) {
    const SharedRegion parameters = *SharedRegion::Create("parameters", 4096);
    const SharedRegion group = *SharedRegion::Create("group", sizeof(GroupPage));
    const Mapping mapping = *Mapping::CreateWhole(group.fd(), Access::kReadWrite);
    auto* page = reinterpret_cast<GroupPage*>(mapping.data());
    page->has_begun.store(has_begun ? 1 : 0);
    page->prepared_epoch.store(prepared_epoch);
    ASSERT_OK(vault->Put(owner, "", {parameters.fd(), group.fd()}));
    v1::VaultedJob job;
    job.mutable_job()->set_job_id(owner);
    job.mutable_job()->set_epoch(noted_epoch);
    ASSERT_OK(vault->PutMessage(owner, "job", job));
  }
  // What the next daemon of "w" finds.
  absl::StatusOr<JobVault::Held> TakeOver(const std::string& worker_id = "w", int num_devices = 2) {
    return JobVault(Connect()).TakeOver(worker_id, num_devices);
  }

  std::string folder_ = "/tmp/tessera-jobs-XXXXXX";
  std::thread vault_;
};

TEST_F(JobVaultTest, WithoutJobsAnyDaemonMayStart) {
  auto first = Connect();
  v1::VaultedWorker worker = Worker();
  worker.set_protocol(kProtocol + 1);
  JobVault(first).PutWorker(worker);
  Put(first.get(), "job", 1, 1);  // So that the vault stays until the next look.
  ASSERT_OK(first->Drop("job"));
  auto held = JobVault(first).TakeOver("another", 5);
  ASSERT_OK(held);
  EXPECT_THAT(held->jobs, IsEmpty());
}

TEST_F(JobVaultTest, MemoryOfAnotherVersionWorkerOrNumberOfDevicesIsRefusedByNameAndStays) {
  {
    auto first = Connect();
    JobVault(first).PutWorker(Worker());
    Put(first.get(), "job", 3, 3);
  }
  EXPECT_THAT(TakeOver("v").status(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               AllOf(HasSubstr("worker 'w'"), HasSubstr("'v'"))));
  EXPECT_THAT(TakeOver("w", 3).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--devices 2")));
  EXPECT_THAT(EndVault(folder_, "v"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("worker 'w'")));
  {
    auto later = Connect();
    v1::VaultedWorker worker = Worker();
    worker.set_protocol(kProtocol + 1);
    worker.set_version("9.9.9");
    JobVault(later).PutWorker(worker);
  }
  EXPECT_THAT(TakeOver().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("9.9.9, protocol ", kProtocol + 1))));
  JobVault(Connect()).PutWorker(Worker());
  const auto held = TakeOver();
  ASSERT_OK(held);
  ASSERT_THAT(held->jobs, SizeIs(1));
  EXPECT_EQ(held->jobs[0].job.epoch(), 3);
  EXPECT_EQ(held->worker->incarnation(), 7);
}

TEST_F(JobVaultTest, WhatIsNotedOfAnEarlierEpochOrHadNoneIsDroppedAndTheRestIsTaken) {
  {
    auto first = Connect();
    JobVault(first).PutWorker(Worker());
    Put(first.get(), "whole", 3, 3);
    Put(first.get(), "noted first", 4, 3);  // Its daemon died before the page said so.
    Put(first.get(), "stale", 3, 4);
    Put(first.get(), "new", 1, 1, /*has_begun=*/false);
    ASSERT_OK(first->Put("torn", "", {}));
  }
  {
    const auto held = TakeOver();
    ASSERT_OK(held);
    std::set<std::string> jobs;
    for (const JobVault::HeldJob& job : held->jobs) jobs.insert(job.owner);
    EXPECT_THAT(jobs, testing::ElementsAre("noted first", "whole"));
  }
  EXPECT_THAT(*Connect()->List(), SizeIs(3));  // The daemon, and these two.
}

TEST_F(JobVaultTest, ExecutorsOfTheDaemonBeforeHaveEndedAndThoseInTrainersCannotBe) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  {
    auto first = Connect();
    JobVault vault(first);
    vault.PutWorker(Worker());
    Put(first.get(), "own", 3, 3);
    vault.NoteExecutor("own", Rank(0), child);
    Put(first.get(), "hosted", 3, 3);
    vault.NoteExecutor("hosted", Rank(0), 0);
  }
  const auto held = TakeOver();
  ASSERT_OK(held);
  ASSERT_THAT(held->jobs, SizeIs(1));
  EXPECT_EQ(held->jobs[0].owner, "own");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WNOHANG), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

}  // namespace
}  // namespace tessera
