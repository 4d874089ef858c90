#include "coordinator/service/handler_pool.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

TEST(HandlerPoolTest, TasksRunAtTheSameTimeUpToTheLimitAndOthersAfterThem) {
  absl::Notification go_on;
  absl::BlockingCounter begun(2);
  absl::Mutex mu;
  std::vector<int> done;
  {
    HandlerPool pool(2);
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(pool.Run([&] {
        begun.DecrementCount();
        go_on.WaitForNotification();
      }));
    }
    begun.Wait();
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK(pool.Run([&mu, &done, i] {
        absl::MutexLock lock(&mu);
        done.push_back(i);
      }));
    }
    absl::MutexLock lock(&mu);
    EXPECT_TRUE(done.empty());
    go_on.Notify();
  }
  EXPECT_EQ(done.size(), 20);
}

TEST(HandlerPoolTest, ThreadsComeAndGoAndEachTaskRunsOnce) {
  std::atomic<int> num_run{0};
  HandlerPool pool(1000);
  for (int round = 0; round < 20; ++round) {
    constexpr int kTasks = 40;
    absl::BlockingCounter all_run_at_once(kTasks);
    absl::BlockingCounter ended(kTasks);
    for (int i = 0; i < kTasks; ++i) {
      ASSERT_OK(pool.Run([&] {
        all_run_at_once.DecrementCount();
        ++num_run;
        ended.DecrementCount();
      }));
    }
    all_run_at_once.Wait();
    ended.Wait();
  }
  EXPECT_EQ(num_run, 800);
}

}  // namespace
}  // namespace tessera::coordinator
