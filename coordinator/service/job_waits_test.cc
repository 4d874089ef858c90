#include "coordinator/service/job_waits.h"

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

const JobId kA("a"), kB("b");

TEST(JobWaitsTest, ChangeWakesThoseOfItsJobAlone) {
  JobWaits waits;
  JobWaits::Wait of_a(&waits, {kA}), of_b(&waits, {kB}), of_both(&waits, {kA, kB});
  waits.WakeThoseOf(kA);
  EXPECT_TRUE(of_a.Await(absl::ZeroDuration()));
  EXPECT_FALSE(of_b.Await(absl::ZeroDuration()));
  EXPECT_TRUE(of_both.Await(absl::ZeroDuration()));
  EXPECT_FALSE(of_a.Await(absl::ZeroDuration())) << "it was told";
}

TEST(JobWaitsTest, ChangeBetweenTheLookAndTheWaitIsNotMissed) {
  JobWaits waits;
  JobWaits::Wait wait(&waits, {kA});
  waits.WakeThoseOf(kA);
  waits.WakeThoseOf(kA);
  EXPECT_TRUE(wait.Await(absl::Hours(1)));
  std::thread other([&] { waits.WakeAll(); });
  EXPECT_TRUE(wait.Await(absl::Hours(1)));
  other.join();
}

TEST(JobWaitsTest, OneThatIsGoneIsNotWoken) {
  JobWaits waits;
  auto gone = std::make_unique<JobWaits::Wait>(&waits, std::vector<JobId>{kA, kA, kB});
  gone.reset();
  waits.WakeThoseOf(kA);
  waits.WakeAll();
}

TEST(JobWaitsTest, ThousandsComeAndGoWhileJobsChange) {
  JobWaits waits;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&waits, i] {
      for (int k = 0; k < 1'000; ++k) {
        JobWaits::Wait wait(&waits, {i % 2 == 0 ? kA : kB});
        waits.WakeThoseOf(i % 2 == 0 ? kA : kB);
        EXPECT_TRUE(wait.Await(absl::Hours(1)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera::coordinator
