#include "coordinator/core/job.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

constexpr JobState kW = JobState::kWaiting;
constexpr JobState kS = JobState::kStarting;
constexpr JobState kR = JobState::kRunning;
constexpr JobState kD = JobState::kDeleted;
constexpr JobState kL = JobState::kLost;
constexpr JobState kH = JobState::kHandedOver;

TEST(JobTest, TransitionTableIsAsDrawn) {
  struct Row {
    JobState from;
    JobEvent event;
    std::optional<JobState> to;
  };
  const Row table[] = {
      {kW, JobEvent::kPlaced, kS},
      {kS, JobEvent::kPlaced, kS},
      {kR, JobEvent::kPlaced, kS},
      {kD, JobEvent::kPlaced, std::nullopt},
      {kW, JobEvent::kUnplaceable, kW},
      {kS, JobEvent::kUnplaceable, kW},
      {kR, JobEvent::kUnplaceable, kW},
      {kD, JobEvent::kUnplaceable, std::nullopt},
      {kW, JobEvent::kAllPrepared, std::nullopt},
      {kS, JobEvent::kAllPrepared, kR},
      {kR, JobEvent::kAllPrepared, std::nullopt},
      {kD, JobEvent::kAllPrepared, std::nullopt},
      {kW, JobEvent::kShardsLost, kL},
      {kS, JobEvent::kShardsLost, kL},
      {kR, JobEvent::kShardsLost, kL},
      {kD, JobEvent::kShardsLost, std::nullopt},
      {kL, JobEvent::kPlaced, std::nullopt},
      {kL, JobEvent::kUnplaceable, std::nullopt},
      {kL, JobEvent::kAllPrepared, std::nullopt},
      {kL, JobEvent::kShardsLost, std::nullopt},
      {kL, JobEvent::kDeleted, kD},
      {kW, JobEvent::kHandedOver, kH},
      {kS, JobEvent::kHandedOver, kH},
      {kR, JobEvent::kHandedOver, kH},
      {kD, JobEvent::kHandedOver, std::nullopt},
      {kL, JobEvent::kHandedOver, std::nullopt},
      {kH, JobEvent::kHandedOver, std::nullopt},
      {kH, JobEvent::kPlaced, std::nullopt},
      {kH, JobEvent::kUnplaceable, std::nullopt},
      {kH, JobEvent::kAllPrepared, std::nullopt},
      {kH, JobEvent::kShardsLost, std::nullopt},
      {kH, JobEvent::kDeleted, kD},
      {kW, JobEvent::kDeleted, kD},
      {kS, JobEvent::kDeleted, kD},
      {kR, JobEvent::kDeleted, kD},
      {kD, JobEvent::kDeleted, std::nullopt},
  };
  for (const Row& row : table) {
    EXPECT_EQ(NextState(row.from, row.event), row.to)
        << Name(row.from) << " on event " << static_cast<int>(row.event);
  }
}

}  // namespace
}  // namespace tessera::coordinator
