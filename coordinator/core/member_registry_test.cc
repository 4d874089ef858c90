#include "coordinator/core/member_registry.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const WorkerId kA("a");
const WorkerId kB("b");

Member MakeMember(int64_t incarnation, int32_t num_devices = 2) {
  Member member;
  member.incarnation = Incarnation(incarnation);
  member.num_devices = num_devices;
  return member;
}

TEST(MemberRegistryTest, OlderIncarnationIsStale) {
  MemberRegistry registry;
  EXPECT_OK(registry.CheckRegister(kA, MakeMember(5)));
  registry.Put(kA, MakeMember(5));
  EXPECT_OK(registry.CheckRegister(kA, MakeMember(5)));
  EXPECT_OK(registry.CheckRegister(kA, MakeMember(6)));
  EXPECT_THAT(registry.CheckRegister(kA, MakeMember(4)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("4 is stale; 5")));
  EXPECT_THAT(
      registry.CheckRegister(kA, MakeMember(5, 3)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 devices before, now with 3")));
}

TEST(MemberRegistryTest, OnlyTheRegisteredIncarnationCounts) {
  MemberRegistry registry;
  registry.Put(kA, MakeMember(5));
  EXPECT_OK(registry.CheckCurrent(kA, Incarnation(5)));
  EXPECT_THAT(registry.CheckCurrent(kA, Incarnation(4)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("stale")));
  EXPECT_THAT(registry.CheckCurrent(kA, Incarnation(6)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'a'")));
  EXPECT_THAT(registry.CheckCurrent(kB, Incarnation(5)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'b'")));
}

TEST(LivenessTest, SilentForTheTimeoutIsSilent) {
  Liveness liveness(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  liveness.Heard(kA, start);
  liveness.Heard(kB, start + absl::Seconds(1));
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(10) - absl::Nanoseconds(1)), IsEmpty());
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(10)), ElementsAre(kA));
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(11)), ElementsAre(kA, kB));
  liveness.Heard(kA, start + absl::Seconds(11));
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(11)), ElementsAre(kB));
  liveness.Forget(kB);
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(11)), IsEmpty());
}

TEST(LivenessTest, SilenceIsCountedFromWhatWasHeardLast) {
  Liveness liveness(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(liveness.SilentFor(WorkerId("a"), start), absl::ZeroDuration());
  liveness.Heard(WorkerId("a"), start);
  EXPECT_EQ(liveness.SilentFor(WorkerId("a"), start + absl::Seconds(3)), absl::Seconds(3));
  EXPECT_EQ(liveness.SilentFor(WorkerId("a"), start - absl::Seconds(3)), absl::ZeroDuration());
}

TEST(LivenessTest, OwnPauseIsNotHeldAgainstTheWorkers) {
  Liveness liveness(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  liveness.Observe(start);
  liveness.Heard(kA, start);
  liveness.Observe(start + absl::Seconds(3));
  liveness.Observe(start + absl::Seconds(103));  // A pause of 100 s in which nobody could be heard.
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(103)), IsEmpty());
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(110)), ElementsAre(kA));
}

TEST(LivenessTest, ClockThatWentBackDoesNotKeepTheDeadAlive) {
  Liveness liveness(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  liveness.Heard(kA, start + absl::Hours(1));
  liveness.Observe(start);
  EXPECT_THAT(liveness.Silent(start + absl::Seconds(10)), ElementsAre(kA));
}

}  // namespace
}  // namespace tessera::coordinator
