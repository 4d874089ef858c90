// Clients that take all they can get, alongside a worker and a trainer.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/beset_coordinator.h"
#include "tests/testing/freed_memory.h"

namespace tessera::testing_support {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class HostileClientsTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags) {
    folder_ = "/tmp/tessera-hostile-XXXXXX";  // A socket's path is short.
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    auto made = BesetCoordinator::Start(folder_, flags);
    if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
    ASSERT_OK(made);
    coordinator_ = *std::move(made);
  }
  void TearDown() override {
    coordinator_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  bool HaveAllCalled(int64_t times) const {
    for (size_t kind = 0; kind < kNumHostilities; ++kind) {
      const auto hostility = static_cast<Hostility>(kind);
      // Each call of these is for long.
      if (hostility == Hostility::kReadsNothing || hostility == Hostility::kResets) continue;
      if (coordinator_->hostile().NumCalls(hostility) < times) return false;
    }
    return true;
  }

  std::string folder_;
  std::unique_ptr<BesetCoordinator> coordinator_;
};

TEST_F(HostileClientsTest, TrainingGoesOnBesideThemAndTheCoordinatorStaysSmall) {
  constexpr int kOfEach = 8;
  constexpr int kMaxCalls = 16;
  Start({absl::StrCat("--max-calls=", kMaxCalls), "--request-timeout=1s",
         "--live-client-timeout=1s",
         absl::StrCat("--max-memory-bytes=", kKeepsFreedMemory ? 0 : 512 << 20)});
  if (IsSkipped() || HasFatalFailure()) return;
  const int threads_before = coordinator_->NumThreads();
  std::array<int, kNumHostilities> clients;
  clients.fill(kOfEach);
  ASSERT_OK(coordinator_->Beset(clients));
  int max_threads = 0;
  while (!HaveAllCalled(2 * kOfEach)) {
    ASSERT_OK(coordinator_->Train());
    max_threads = std::max(max_threads, coordinator_->NumThreads());
  }
  if (!kKeepsFreedMemory) {
    EXPECT_LE(coordinator_->PeakResidentBytes(), int64_t{512} << 20);
  }
  // A call that waits has a thread, for which there are kMaxCalls places. Of short ones a few of
  // each client have one, and what is refused, slow or not taken has none. Some threads are idle.
  EXPECT_LE(max_threads, threads_before + kMaxCalls + 40);

  EXPECT_THAT(coordinator_->hostile().Answers(Hostility::kWatches),
              Contains(HasSubstr("'certificate:other-client' has  calls that wait")));
  EXPECT_THAT(coordinator_->Log(), HasSubstr("further refusals of this client"));
}

TEST_F(HostileClientsTest, ThoseThatReadNothingHoldNoThreads) {
  constexpr int kClients = 100;
  Start({absl::StrCat("--max-memory-bytes=", kKeepsFreedMemory ? 0 : 512 << 20)});
  if (IsSkipped() || HasFatalFailure()) return;
  const int threads_before = coordinator_->NumThreads();
  std::array<int, kNumHostilities> clients = {};
  clients[static_cast<size_t>(Hostility::kReadsNothing)] = kClients;
  ASSERT_OK(coordinator_->Beset(clients));
  int max_threads = 0;
  for (int step = 0; step < 100; ++step) {
    ASSERT_OK(coordinator_->Train());
    max_threads = std::max(max_threads, coordinator_->NumThreads());
  }
  // Where each call had a thread, these were thousands.
  EXPECT_LE(max_threads, threads_before + 40);
  if (!kKeepsFreedMemory) {
    EXPECT_LE(coordinator_->PeakResidentBytes(), int64_t{512} << 20);
  }
}

// Each of these calls takes 11 KiB until the coordinator has looked at it.
TEST_F(HostileClientsTest, ThoseThatResetTheirCallsTakeNoMemoryAndAreEnded) {
  Start({});
  if (IsSkipped() || HasFatalFailure()) return;
  std::array<int, kNumHostilities> clients = {};
  clients[static_cast<size_t>(Hostility::kResets)] = 4;
  ASSERT_OK(coordinator_->Beset(clients));
  const absl::Time deadline = SteadyNow() + absl::Minutes(2);
  while (coordinator_->hostile().NumCalls(Hostility::kResets) < 100) {
    ASSERT_LT(SteadyNow(), deadline) << "the connections do not end";
    ASSERT_OK(coordinator_->Train());
    if (!kKeepsFreedMemory) {
      ASSERT_LE(coordinator_->PeakResidentBytes(), int64_t{256} << 20);
    }
  }
}

}  // namespace
}  // namespace tessera::testing_support
