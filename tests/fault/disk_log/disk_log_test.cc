// The library in a real process: what it logs is what the folder becomes, and every call can fail.
#include "tests/fault/disk_log/disk_log.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/fault/disk_log/crash_disk.h"

namespace tessera::disk_log {
namespace {

using testing::HasSubstr;

class DiskLogTest : public testing::Test {
 protected:
  void SetUp() override { Begin(); }
  void TearDown() override {
    log_.reset();
    std::filesystem::remove_all(folder_);
  }
  // A folder and a log, both empty.
  void Begin() {
    if (log_ != nullptr) TearDown();
    folder_ = "/tmp/tessera-calls-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    auto log = DiskLog::Start(folder_);
    ASSERT_OK(log);
    log_ = *std::move(log);
  }
  // What the program ends with, -1: a signal. It is told that it is rank 3.
  int Run() const {
    const pid_t pid = fork();
    if (pid == 0) {
      execl("tests/fault/disk_log/file_calls", "file_calls", folder_.c_str(), "--label=toy/3",
            nullptr);
      _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void ExpectLogIsTheFolder() const {
    ASSERT_OK_AND_ASSIGN(const std::vector<DiskRecord> records, log_->Read());
    CrashDisk disk;
    for (const DiskRecord& record : records) ASSERT_OK(disk.Apply(record));
    EXPECT_EQ(ReadTree(folder_).value(), disk.Kept());
  }

  std::string folder_;
  std::unique_ptr<DiskLog> log_;
};

TEST_F(DiskLogTest, ReplayedLogIsTheFolderAndMarksStandBetweenOperations) {
  ASSERT_OK(log_->Mark("before"));
  ASSERT_EQ(Run(), 0);
  ASSERT_OK(log_->Mark("after"));
  ExpectLogIsTheFolder();
  ASSERT_OK_AND_ASSIGN(const std::vector<DiskRecord> records, log_->Read());
  ASSERT_GT(records.size(), 40);
  EXPECT_EQ(records[1].path, "before");
  EXPECT_EQ(records[2].event, DiskEvent::kMakeFolder);
  EXPECT_EQ(records[2].rank, 3);
  EXPECT_EQ(records.back().path, "after");
  EXPECT_EQ(log_->ReadBytes(3), 4 * 16);
  EXPECT_EQ(log_->ReadBytes(0), 0);
}

TEST_F(DiskLogTest, EveryCallCanFailAndTheLogIsStillTheFolder) {
  int64_t calls = 0;
  for (int64_t call = 1;; ++call) {
    SCOPED_TRACE(call);
    Begin();
    log_->Arm({3, kCallsOfASave | kReadCall, call, EIO});
    const int error = Run();
    const std::string failed = log_->Disarm();
    if (failed.empty()) break;
    EXPECT_EQ(error, EIO) << failed;
    ExpectLogIsTheFolder();
    calls = call;
  }
  EXPECT_GT(calls, 50);
}

TEST_F(DiskLogTest, ShortWriteWritesHalfAndSaysSo) {
  log_->Arm({3, kWriteCall, 3, 0});
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(log_->Disarm(), "pwrite f/a");
  ExpectLogIsTheFolder();
  ASSERT_OK_AND_ASSIGN(const std::vector<DiskRecord> records, log_->Read());
  int writes_of_half = 0;
  for (const DiskRecord& record : records) writes_of_half += record.data.size() == 2500;
  EXPECT_EQ(writes_of_half, 2);
}

TEST_F(DiskLogTest, ProcessThatIsKilledAtACallHasDoneAllBeforeItAndOfAWriteNothingOrHalf) {
  const DiskTree whole = [&] {
    EXPECT_EQ(Run(), 0);
    return ReadTree(folder_).value();
  }();
  for (const int32_t death : {kKilled, kKilledHalfway}) {
    const uint32_t calls = death == kKilled ? kCallsOfASave : kWriteCall;
    int deaths = 0;
    for (int64_t call = 1;; ++call) {
      SCOPED_TRACE(call);
      Begin();
      log_->Arm({3, calls, call, death});
      const int status = Run();
      if (log_->Disarm().empty()) {
        EXPECT_EQ(status, 0);
        break;
      }
      EXPECT_EQ(status, -1);
      ExpectLogIsTheFolder();
      ASSERT_OK_AND_ASSIGN(const std::vector<DiskRecord> records, log_->Read());
      if (death == kKilledHalfway) {
        EXPECT_EQ(records.back().event, DiskEvent::kWrite);
        EXPECT_THAT(records.back().data.size(), testing::AnyOf(2, 3, 2500));
      }
      ++deaths;
    }
    EXPECT_GT(deaths, death == kKilled ? 40 : 10);
    EXPECT_EQ(ReadTree(folder_).value(), whole);
  }
}

TEST_F(DiskLogTest, FaultOfAnotherRankHitsNobody) {
  log_->Arm({0, kCallsOfASave, 1, EIO});
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(log_->Disarm(), "");
}

}  // namespace
}  // namespace tessera::disk_log
