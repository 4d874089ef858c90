#include "coordinator/service/live/job_places.h"

#include <thread>

#include "base/status_matchers.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

const JobId kJob("toy");
bool Never() { return false; }
absl::Time Soon() { return SteadyNow() + absl::Milliseconds(5); }
absl::Time Late() { return SteadyNow() + absl::Minutes(1); }

TEST(JobPlacesTest, AJobHasSoManyAndAnotherOneItsOwn) {
  JobPlaces places(4);
  for (int i = 0; i < places.max_of_a_job(); ++i) ASSERT_TRUE(places.TryEnter(kJob));
  EXPECT_FALSE(places.TryEnter(kJob));
  EXPECT_TRUE(places.TryEnter(JobId("other")));
  places.Leave(kJob);
  EXPECT_TRUE(places.TryEnter(kJob));
}

TEST(JobPlacesTest, OneOfAJobHasTheTurn) {
  JobPlaces turns(1);
  ASSERT_OK(turns.Enter(kJob, Late(), Never));
  EXPECT_THAT(turns.Enter(kJob, Soon(), Never),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'toy'")));
  EXPECT_THAT(turns.Enter(kJob, Late(), [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  std::thread second([&] { EXPECT_OK(turns.Enter(kJob, Late(), Never)); });
  turns.Leave(kJob);
  second.join();
}

}  // namespace
}  // namespace tessera::coordinator
