// An executor's waits for releases, over a real packet socket.
#include "worker/executor/keeper_link.h"

#include <thread>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/field_limits.h"
#include "shm/fd_passing.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const OrderEntry kReduce = {OpKind::kReduce, /*unit=*/1, DType::kFp32, 24};

class KeeperLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ModelSpec model;
    model.units.push_back({"root", {{"a", {4}, DType::kFp32}}});
    model.units.push_back({"blocks.0", {{"b", {24}, DType::kFp32}}});
    auto layout = ModelLayout::Create(model, LayoutOptions(), 2);
    ASSERT_OK(layout);
    layout_ = *std::move(layout);
    auto sockets = CreatePacketSocketPair();
    ASSERT_OK(sockets);
    sockets_ = *std::move(sockets);
  }
  std::unique_ptr<KeeperLink> MakeLink(absl::Duration release_timeout) {
    KeeperLink::Options options = {sockets_.first.get(), "job", Rank(1), release_timeout, &layout_};
    options.report_interval = report_interval_;
    auto link = std::make_unique<KeeperLink>(std::move(options));
    link->BeginEpoch(Epoch(7));
    return link;
  }
  // The next announcement at the worker's end.
  v1::OrderAnnouncement Announced() {
    absl::StatusOr<Packet> packet = ReceivePacket(sockets_.second.get());
    v1::ExecutorEvent event;
    EXPECT_TRUE(packet.ok() && event.ParseFromString(packet->bytes) && event.has_order());
    return event.order();
  }
  // The next event, which must be a report, as "step: hash, hash" with that of the step last.
  std::string Reported() {
    absl::StatusOr<Packet> packet = ReceivePacket(sockets_.second.get());
    v1::ExecutorEvent event;
    if (!packet.ok() || !event.ParseFromString(packet->bytes) || !event.has_step()) return "none";
    EXPECT_EQ(event.step().epoch(), 7);
    std::string text = absl::StrCat(event.step().step(), ":");
    for (const uint64_t hash : event.step().earlier_order_hashes())
      absl::StrAppend(&text, " ", hash);
    return absl::StrCat(text, " ", event.step().order_hash());
  }
  static v1::OrderRelease ReleaseOf(const v1::OrderAnnouncement& order) {
    v1::OrderRelease release;
    release.set_epoch(order.epoch());
    release.set_step(order.step());
    release.set_sequence(order.sequence());
    return release;
  }

  absl::Duration report_interval_ = absl::ZeroDuration();
  ModelLayout layout_;
  std::pair<UniqueFd, UniqueFd> sockets_;
};

TEST_F(KeeperLinkTest, WaitForAReleaseThatNeverComesNamesTheEntry) {
  const auto link = MakeLink(absl::Milliseconds(20));
  EXPECT_THAT(link->AwaitRelease(kReduce, {3, 0, 4}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("step 3, position 4: reduce of unit 'blocks.0'"),
                             HasSubstr("the coordinator did not answer within 20ms"))));
  EXPECT_THAT(link->AwaitRelease({OpKind::kStep}, {3, 0, 5}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("position 5: step: the")));
}

TEST_F(KeeperLinkTest, OnlyTheReleaseOfItsOwnPositionAndEpochEndsAWait) {
  const auto link = MakeLink(absl::Minutes(1));
  std::thread coordinator([&] {
    const v1::OrderAnnouncement order = Announced();
    EXPECT_EQ(order.rank(), 1);
    EXPECT_EQ(order.entry().unit(), 1);
    v1::OrderRelease release = ReleaseOf(order);
    release.set_epoch(6);
    link->OnRelease(release);
    release = ReleaseOf(order);
    release.set_sequence(3);
    link->OnRelease(release);
    link->OnRelease(ReleaseOf(order));
    // Before the thread that waits has looked: it has been released, whatever is repeated.
    release.set_sequence(3);
    link->OnRelease(release);
  });
  EXPECT_OK(link->AwaitRelease(kReduce, {3, 0, 4}));
  coordinator.join();
  const auto impatient = MakeLink(absl::Milliseconds(20));
  v1::OrderRelease older;
  older.set_epoch(6);
  older.set_step(3);
  older.set_sequence(4);
  impatient->OnRelease(older);
  older.set_epoch(7);
  older.set_sequence(3);
  impatient->OnRelease(older);
  EXPECT_THAT(impatient->AwaitRelease(kReduce, {3, 0, 4}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("position 4")));
}

TEST_F(KeeperLinkTest, EndOfTheEpochEndsAWaitWithItsReason) {
  const auto link = MakeLink(absl::Minutes(1));
  std::thread worker([&] {
    Announced();
    link->AbortEpoch(absl::AbortedError("rank 0 died"));
  });
  EXPECT_THAT(link->AwaitRelease(kReduce, {3, 0, 4}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 died")));
  worker.join();
}

TEST_F(KeeperLinkTest, ReportsOfStepsThatAreFarApartAreSentAtOnce) {
  const auto link = MakeLink(absl::Minutes(1));
  link->ReportStep(Step(3), 30);
  EXPECT_FALSE(link->keeps_reports_back());
  link->ReportStep(Step(4), 40);
  EXPECT_EQ(Reported(), "3: 30");
  EXPECT_EQ(Reported(), "4: 40");
}

TEST_F(KeeperLinkTest, ReportsOfStepsInQuickSuccessionTravelTogetherAndNoneIsLost) {
  report_interval_ = absl::Hours(1);
  const auto link = MakeLink(absl::Minutes(1));
  link->ReportStep(Step(3), 30);  // The first: nothing was sent before it.
  EXPECT_FALSE(link->keeps_reports_back());
  for (int step = 4; step <= 6; ++step) link->ReportStep(Step(step), 10 * step);
  EXPECT_TRUE(link->keeps_reports_back());
  link->SendReports();
  EXPECT_FALSE(link->keeps_reports_back());
  link->ReportStep(Step(7), 70);
  link->ReportStep(Step(9), 90);  // Not the next one: they cannot be in one report.
  link->SendReports();
  for (const char* report : {"3: 30", "6: 40 50 60", "7: 70", "9: 90"})
    EXPECT_EQ(Reported(), report);
}

TEST_F(KeeperLinkTest, NoMoreReportsAreKeptBackThanTheCoordinatorTakesAtOnce) {
  report_interval_ = absl::Hours(1);
  const auto link = MakeLink(absl::Minutes(1));
  for (int step = 1; step <= kMaxEarlierReports + 1; ++step) link->ReportStep(Step(step), 1);
  EXPECT_TRUE(link->keeps_reports_back());
  link->ReportStep(Step(kMaxEarlierReports + 2), 1);
  EXPECT_FALSE(link->keeps_reports_back());
}

TEST_F(KeeperLinkTest, ReportsTravelBeforeTheQuestionOfALaterStepAndNotIntoALaterEpoch) {
  report_interval_ = absl::Hours(1);
  const auto link = MakeLink(absl::Milliseconds(1));
  link->ReportStep(Step(3), 30);
  link->ReportStep(Step(4), 40);
  EXPECT_THAT(link->AwaitRelease(kReduce, {5, 0, 0}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("step 5")));
  EXPECT_EQ(Reported(), "3: 30");
  EXPECT_EQ(Reported(), "4: 40");
  EXPECT_EQ(Announced().step(), 5);
  link->ReportStep(Step(5), 50);
  link->BeginEpoch(Epoch(8));
  EXPECT_FALSE(link->keeps_reports_back());
}

}  // namespace
}  // namespace tessera
