#include "worker/engine/gradient_events.h"

#include <memory>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// Reached after so many questions; never, if that is negative.
class CountedEvent : public SharedEvent {
 public:
  CountedEvent(const SharedEventName& name, int questions) : name_(name), left_(questions) {}
  absl::StatusOr<bool> Query() override { return left_-- == 0; }
  const SharedEventName& name() const override { return name_; }

 private:
  const SharedEventName name_;
  int left_;
};

class EventsDevice : public RankDevice {
 public:
  absl::string_view name() const override { return "events"; }
  bool is_separate() const override { return true; }
  absl::StatusOr<Buffer> MapRegion(int, int64_t, bool) override { return Buffer(); }
  absl::StatusOr<Buffer> Allocate(int64_t) override { return Buffer(); }
  absl::StatusOr<std::unique_ptr<RankKernels>> CreateKernels(const KernelOptions&) override {
    return absl::UnimplementedError("kernels");
  }
  absl::StatusOr<std::unique_ptr<SharedEvent>> OpenSharedEvent(
      const SharedEventName& name) override {
    if (!open_status.ok()) return open_status;
    ++opened;
    return std::make_unique<CountedEvent>(name, questions);
  }
  absl::Status open_status;
  int opened = 0;
  int questions = 0;
};

class GradientEventsTest : public testing::Test {
 protected:
  absl::Status Await(uint32_t index, absl::Time deadline = absl::InfiniteFuture(),
                     bool stop = false) {
    return events_.Await(index, deadline, [stop] { return stop; });
  }
  EventsDevice device_;
  std::unique_ptr<ControlPage> page_ = std::make_unique<ControlPage>();
  GradientEvents events_{&device_, page_.get()};
};

TEST_F(GradientEventsTest, AsksUntilTheEventIsReached) {
  device_.questions = 100;
  EXPECT_OK(Await(3));
  EXPECT_EQ(device_.opened, 1);
}

TEST_F(GradientEventsTest, EndsAtTheDeadlineAndWhereTheEpochDoes) {
  device_.questions = -1;
  EXPECT_THAT(Await(0, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("GPU")));
  EXPECT_THAT(Await(0, absl::InfiniteFuture(), /*stop=*/true),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch")));
}

TEST_F(GradientEventsTest, OpensTheEventOfAnotherTrainerAnew) {
  device_.questions = -1;
  EXPECT_THAT(Await(5, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("GPU")));
  EXPECT_THAT(Await(5, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("GPU")));
  EXPECT_EQ(device_.opened, 1) << "it is the same";
  page_->gradient_events[5].bytes[0] = 1;
  device_.questions = 0;
  EXPECT_OK(Await(5));
  EXPECT_EQ(device_.opened, 2);
}

// The trainer looks at its names: it waits for its GPU by itself then.
TEST_F(GradientEventsTest, WhereNoEventCanBeOpenedNoNameIsLeftAndTheStepIsToBeTriedAgain) {
  for (SharedEventName& name : page_->gradient_events) name.bytes[3] = 7;
  device_.open_status = absl::UnavailableError("its maker is gone");
  EXPECT_THAT(Await(5), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("its maker is gone")));
  EXPECT_EQ(page_->gradient_events[5].bytes[3], 7);
  device_.open_status = absl::FailedPreconditionError("refused here");
  EXPECT_THAT(Await(5), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("refused here")));
  for (const SharedEventName& name : page_->gradient_events) EXPECT_TRUE(name == SharedEventName());
}

TEST_F(GradientEventsTest, IndexThatIsNoneIsRefused) {
  EXPECT_THAT(Await(kGradientEvents),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("event 64")));
  EXPECT_EQ(device_.opened, 0);
}

}  // namespace
}  // namespace tessera
