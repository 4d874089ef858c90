#include "worker/executor/save/save_tracker.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/agreed_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class SaveTrackerTest : public testing::Test {
 protected:
  void Want(int64_t number, bool cancelled = false) {
    v1::RequestedSave requested;
    requested.set_number(number);
    requested.set_cancelled(cancelled);
    requested.mutable_spec()->set_path("/wanted");
    requested.mutable_spec()->set_keep_newest(2);
    tracker_.SetRequest(requested);
  }
  static v1::SaveRequest RequestFor(int64_t number) {
    v1::SaveRequest request;
    request.set_request_number(number);
    return request;
  }
  // A save of this request, or of the trainers, that ends so.
  void Save(int64_t number, const absl::Status& outcome) {
    v1::SaveRequest request = RequestFor(number);
    tracker_.Next();
    ASSERT_OK(tracker_.Fill(&request));
    tracker_.Begin(request, 5, 100);
    tracker_.End(request, 5, outcome, v1::SaveReply());
  }

  std::vector<v1::SaveReport> told_;
  SaveTracker tracker_{[this](const v1::SaveReport& report) { told_.push_back(report); }};
};

TEST_F(SaveTrackerTest, RequestIsWantedUntilItHasEndedAndNotWhileAnotherIsUnderWay) {
  EXPECT_EQ(tracker_.wanted(), 0);
  Want(3);
  EXPECT_EQ(tracker_.wanted(), 3);
  v1::SaveRequest own = RequestFor(0);
  tracker_.Next();
  ASSERT_OK(tracker_.Fill(&own));
  EXPECT_EQ(tracker_.wanted(), 0);
  tracker_.End(own, 4, absl::OkStatus(), v1::SaveReply());
  EXPECT_EQ(tracker_.wanted(), 3);
  Save(3, AsAgreed(absl::NotFoundError("no such folder")));
  EXPECT_EQ(tracker_.wanted(), 0);
  Want(3);
  EXPECT_EQ(tracker_.wanted(), 0) << "the coordinator has not heard yet";
  Want(4);
  EXPECT_EQ(tracker_.wanted(), 4);
}

TEST_F(SaveTrackerTest, OfWhatIsNoCheckpointNothingIsToldAndTheRequestIsWantedAfterIt) {
  Want(3);
  v1::SaveRequest model;
  model.mutable_spec()->set_is_model(true);
  tracker_.Next();
  ASSERT_OK(tracker_.Fill(&model));
  EXPECT_EQ(tracker_.wanted(), 0);
  tracker_.End(model, 4, absl::OkStatus(), v1::SaveReply());
  EXPECT_EQ(tracker_.wanted(), 3);
  EXPECT_TRUE(told_.empty());
}

TEST_F(SaveTrackerTest, RequestOfAnEpochThatEndedIsWantedAgain) {
  Want(3);
  Save(3, absl::UnavailableError("a peer is gone"));
  EXPECT_EQ(told_.back().code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(tracker_.wanted(), 3);
}

TEST_F(SaveTrackerTest, FillsInWhatIsWantedAndRefusesWhatIsNotAnyMore) {
  Want(3);
  v1::SaveRequest request = RequestFor(3);
  tracker_.Next();
  ASSERT_OK(tracker_.Fill(&request));
  EXPECT_EQ(request.spec().path(), "/wanted");
  EXPECT_EQ(request.spec().keep_newest(), 2);
  EXPECT_FALSE(request.spec().in_foreground());
  tracker_.End(request, 5, absl::OkStatus(), v1::SaveReply());
  Want(4, /*cancelled=*/true);
  EXPECT_EQ(tracker_.wanted(), 0);
  for (const int64_t gone : {2, 4, 5}) {
    request = RequestFor(gone);
    tracker_.Next();
    EXPECT_THAT(tracker_.Fill(&request), StatusIs(absl::StatusCode::kCancelled, testing::_));
  }
}

TEST_F(SaveTrackerTest, OneUnderWayIsCancelledByItsRequestAloneAndTheNextOneIsNot) {
  Want(3);
  v1::SaveRequest request = RequestFor(3);
  tracker_.Next();
  ASSERT_OK(tracker_.Fill(&request));
  Want(3);
  EXPECT_FALSE(tracker_.cancelled().load());
  Want(0);
  EXPECT_TRUE(tracker_.cancelled().load());
  tracker_.End(request, 5, AsAgreed(absl::CancelledError("")), v1::SaveReply());
  v1::SaveRequest own = RequestFor(0);
  tracker_.Next();
  ASSERT_OK(tracker_.Fill(&own));
  EXPECT_FALSE(tracker_.cancelled().load());
  Want(4);
  EXPECT_FALSE(tracker_.cancelled().load()) << "it is the trainers'";
}

TEST_F(SaveTrackerTest, TellsNowAndThenHowFarItIsAndHowItEnded) {
  tracker_.BeginEpoch();
  v1::SaveRequest request = RequestFor(0);
  request.mutable_spec()->set_path("/own");
  tracker_.Next();
  ASSERT_OK(tracker_.Fill(&request));
  tracker_.Begin(request, 5, 1600);
  for (int i = 0; i < 1600; ++i) tracker_.Wrote(1);
  EXPECT_EQ(told_.size(), 1 + 16);
  EXPECT_EQ(told_.back().written_bytes(), 1600);
  v1::SaveReply reply;
  reply.set_written_bytes(2000);
  for (int i = 0; i < 20; ++i) reply.add_removed(absl::StrCat("/old-", i));
  told_.clear();
  tracker_.End(request, 5, absl::OkStatus(), reply);
  ASSERT_EQ(told_.size(), 3) << "eight paths at once";
  EXPECT_EQ(told_[2].removed_size(), 4);
  EXPECT_EQ(told_[0].spec().path(), "/own");
  EXPECT_EQ(told_[2].removed(3), "/old-19");
  EXPECT_EQ(told_[0].ordinal(), 1);
  EXPECT_EQ(told_[0].step(), 5);
  EXPECT_EQ(told_[0].size_bytes(), 2000);
  EXPECT_EQ(told_[0].phase(), v1::SaveReport::ENDED);
}

}  // namespace
}  // namespace tessera
