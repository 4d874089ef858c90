// Clients that read the state of a large model and hang, die, or are too many; and what memory a
// reading takes. Coordinator, worker and clients are of this process.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/freed_memory.h"
#include "tests/testing/own_memory.h"
#include "tests/testing/stepped_live_reader.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::MemoryPeak;
using testing_support::SteppedLiveReader;

constexpr int64_t kNumel = 4 << 20;  // With moments 48 MiB, far more than fits on the way.
constexpr int64_t kLargeNumel = 8 << 20;
constexpr int64_t kMostBytes = 64 << 20;  // A copy of what is read of that would be 96 MiB.

// Files without a name that this process has open in /tmp: the spool files of readings.
int CountSpoolFiles() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[256];
    const std::string path = absl::StrCat("/proc/self/fd/", entry->d_name);
    const ssize_t size = readlink(path.c_str(), target, sizeof(target));
    const absl::string_view name(target, size > 0 ? size : 0);
    if (absl::StartsWith(name, "/tmp/#") && absl::EndsWith(name, "(deleted)")) ++count;
  }
  closedir(folder);
  return count;
}

// False where it did not come to that.
bool AwaitSpoolFiles(int count) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (CountSpoolFiles() != count && absl::Now() < deadline) std::this_thread::yield();
  return CountSpoolFiles() == count;
}

// Whether they fetch from the worker.
class LiveReadersTest : public testing::TestWithParam<bool> {
 protected:
  void Start(int64_t numel) {
    // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
    static const auto* const last = new grpc::CompletionQueue();
    ASSERT_NE(last, nullptr);
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start({}));
    SessionOptions options;
    options.coordinator_address = cluster_->coordinator_address();
    options.worker_address = cluster_->worker_address();
    options.job_id = "big";
    options.config.world_size = 1;
    options.model = {{{"root", {{"w", {numel}, DType::kFp32}}}}};
    ASSERT_OK_AND_ASSIGN(session_, Session::Open(options));
    ASSERT_OK(session_->Initialize(
        [](int, int, absl::Span<float> values) { std::fill(values.begin(), values.end(), 1.0f); }));
    gradient_.assign(numel, 0.5f);
    before_ = CountSpoolFiles();
  }
  absl::Status Step() {
    return session_->RunStep([&]() -> absl::Status {
      RETURN_IF_ERROR(session_->Unshard(0));
      RETURN_IF_ERROR(session_->Reshard(0));
      RETURN_IF_ERROR(session_->AddGradient(0, 0, gradient_));
      RETURN_IF_ERROR(session_->Reduce(0));
      return session_->Step().status();
    });
  }

  std::unique_ptr<SteppedLiveReader> NewReader() const {
    return std::make_unique<SteppedLiveReader>(cluster_->coordinator_address(), "big", GetParam());
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Session> session_;
  std::vector<float> gradient_;
  int before_ = 0;  // Of others.
};

TEST_P(LiveReadersTest, ThoseThatHangHoldNothingUpAndLeaveNothingBehind) {
  Start(kNumel);
  ASSERT_OK(Step());
  std::vector<std::unique_ptr<SteppedLiveReader>> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(NewReader());
    ASSERT_TRUE(readers.back()->Read());
    EXPECT_EQ(readers.back()->reply().begin().step(), 1);
    if (GetParam()) {
      ASSERT_TRUE(readers.back()->Fetch());
    }
  }
  EXPECT_EQ(CountSpoolFiles(), before_ + 4);
  EXPECT_THAT(NewReader()->Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("job 'big': 4 clients")));
  for (int i = 0; i < 6; ++i) ASSERT_OK(Step());
  EXPECT_EQ(session_->next_step(), 8);
  EXPECT_EQ(CountSpoolFiles(), before_ + 4);
  readers.pop_back();  // It goes away.
  EXPECT_TRUE(AwaitSpoolFiles(before_ + 3));
  ASSERT_OK(Step());
  // The ones that are left get what they asked for, if they only read.
  EXPECT_OK(readers.back()->Finish());
  readers.pop_back();
  EXPECT_TRUE(AwaitSpoolFiles(before_ + 2));
  v1::DeleteJobRequest deletion;
  deletion.set_request_id("d1");
  deletion.set_job_id("big");
  ASSERT_OK(DeleteJob({cluster_->coordinator_address()}, deletion, absl::InfiniteFuture()));
  EXPECT_TRUE(AwaitSpoolFiles(before_));
  EXPECT_THAT(readers.back()->Finish(), StatusIs(absl::StatusCode::kAborted, HasSubstr("deleted")));
}

TEST_P(LiveReadersTest, ReadingTakesLittleMemoryHoweverLargeTheModel) {
  Start(kLargeNumel);
  ASSERT_OK(Step());
  MemoryPeak peak({getpid()});
  const auto reader = NewReader();
  while (GetParam() ? reader->Fetch() : reader->Read()) {
  }
  EXPECT_OK(reader->Finish());
  EXPECT_EQ(reader->read_bytes(), kLargeNumel * 12);
  // Of worker, coordinator and client together, windows of gRPC included.
  const int64_t grown_bytes = peak.Stop();
  RecordProperty("grown_kib", static_cast<int>(grown_bytes >> 10));
  if (!testing_support::kKeepsFreedMemory) {
    EXPECT_LT(grown_bytes, kMostBytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, LiveReadersTest, testing::Bool(), [](const auto& info) {
  return info.param ? "FromTheWorker" : "ThroughTheCoordinator";
});

}  // namespace
}  // namespace tessera
