#include "worker/comm/shm/shm_region.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kStagingBytes = 4096;

TEST(ShmRegionTest, AbortWakesSleepersOfEveryWord) {
  struct alignas(kShmLineBytes) Line {
    char bytes[kShmLineBytes];
  };
  const int64_t bytes = ShmRegion(nullptr, 2, 2, kStagingBytes).TotalBytes();
  std::vector<Line> memory(bytes / kShmLineBytes + 1);  // Zero.
  const ShmRegion region(memory.data(), 2, 2, kStagingBytes);
  for (WaitWord RankSlot::*word : {&RankSlot::arrived, &RankSlot::joined, &RankSlot::probed}) {
    // A word of a peer, in another channel.
    const std::atomic<uint32_t>& value = (region.slot(1, 1)->*word).value;
    std::atomic<bool> is_woken{false}, is_over{false};
    std::thread sleeper([&] {
      while (!is_over.load()) {
        // Not the 20 milliseconds of a wait, so that nothing else ends the sleep.
        const timespec long_time = {60, 0};
        if (syscall(SYS_futex, &value, FUTEX_WAIT, 0, &long_time, nullptr, 0) == 0) break;
      }
      is_woken.store(true);
    });
    const absl::Time deadline = SteadyNow() + absl::Seconds(5);
    // It may not sleep yet.
    for (uint32_t epoch = 1; !is_woken.load() && SteadyNow() < deadline; ++epoch) {
      region.Abort(epoch, "a rank died");
      sched_yield();
    }
    EXPECT_TRUE(is_woken.load());
    is_over.store(true);
    while (!is_woken.load()) {
      WakeAll(value);
      sched_yield();
    }
    sleeper.join();
  }
}

}  // namespace
}  // namespace tessera
