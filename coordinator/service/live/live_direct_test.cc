// Reads whose pieces the client fetches from the workers.
#include "coordinator/service/live/live_service_fixture.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LiveDirectTest : public LiveServiceTest {
 protected:
  static v1::LiveStateQuery DirectQuery() {
    v1::LiveStateQuery query = Query();
    query.set_direct(true);
    return query;
  }
  // Brings both workers to where the client is told.
  void ServeBoth() {
    ra_ = RelayOf(a_.get());
    rb_ = RelayOf(b_.get());
    ra_->Held(4);
    rb_->Held(5);
    ra_->Serving(5, {"unix:/a", "a:1"});
    rb_->Serving(5, {"unix:/b"});
  }
};

TEST_F(LiveDirectTest, ClientIsToldWhoHasWhatAndTheCallEndsOnceAllIsFetched) {
  Start(4);
  auto get = Get(DirectQuery());
  ServeBoth();
  ra_->Released();
  rb_->Released();
  rb_->Sent();
  ra_->Sent();
  const Got got = get.get();
  EXPECT_OK(got.status);
  EXPECT_EQ(got.begin.step(), 5);
  EXPECT_EQ(got.begin.trained_step(), 105);
  EXPECT_EQ(got.begin.num_tensors(), 1);
  ASSERT_EQ(got.sources.sources_size(), 2);
  const v1::LiveSource& a = got.sources.sources(0);
  EXPECT_EQ(a.worker_id(), "a");
  EXPECT_THAT(a.addresses(), ElementsAre("unix:/a", "a:1"));
  EXPECT_EQ(a.session().size(), 32u);
  EXPECT_EQ(got.sources.sources(1).worker_id(), "b");
  ASSERT_EQ(got.tensors.size(), 1u);
  EXPECT_EQ(got.tensors[0].update_count(), 7);
  ASSERT_EQ(got.tensors[0].extents_size(), 2);
  for (int source = 0; source < 2; ++source) {
    EXPECT_EQ(got.tensors[0].extents(source).source(), source);
    EXPECT_EQ(got.tensors[0].extents(source).numel(), 2);
  }
  EXPECT_EQ(got.data, "");
}

TEST_F(LiveDirectTest, NextReadingHoldsOnceTheFirstHasLetGoThoughItIsNotFetchedYet) {
  Start(4);
  auto first = Get(DirectQuery());
  ServeBoth();
  const auto first_a = std::move(ra_), first_b = std::move(rb_);
  auto second = Get();
  first_a->Released();
  first_b->Released();
  OpenBoth();  // Otherwise it would wait here.
  EXPECT_TRUE(ra_->Piece(0, "11112222"));
  EXPECT_TRUE(rb_->Piece(2, "33334444"));
  EXPECT_OK(second.get().status);
  first_a->Sent();
  first_b->Sent();
  EXPECT_OK(first.get().status);
}

TEST_F(LiveDirectTest, WorkerThatCannotServeIsAskedAgainAndOneThatFailsLaterIsNamed) {
  Start(4);
  auto get = Get(DirectQuery());
  ra_ = RelayOf(a_.get());
  rb_ = RelayOf(b_.get());
  ra_->Held(4);
  rb_->Held(4);
  ra_->Fail(absl::StatusCode::kAborted, "training went on");
  ServeBoth();  // Again.
  ra_->Fail(absl::StatusCode::kAborted, "training went on again");
  EXPECT_THAT(get.get().status, StatusIs(absl::StatusCode::kUnavailable,
                                         HasSubstr("worker 'a': training went on again")));
  rb_->AwaitEnd();
  get = Get(DirectQuery());
  ServeBoth();
  ra_->Released();
  rb_->Released();
  rb_->Fail(absl::StatusCode::kCancelled, "the client took nothing for 1m");
  EXPECT_THAT(get.get().status, StatusIs(absl::StatusCode::kCancelled,
                                         HasSubstr("worker 'b': the client took nothing")));
  get = Get(DirectQuery());
  ServeBoth();
  EXPECT_OK(ra_->Finish());
  EXPECT_THAT(get.get().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'a' ended its stream")));
}

TEST_F(LiveDirectTest, ClientThatGoesAwayAndTheEndOfTheJobEndTheWorkersStreams) {
  Start(4);
  {
    grpc::ClientContext context;
    const auto stub = v1::LiveState::NewStub(channel_);
    const auto reader = stub->GetLiveState(&context, DirectQuery());
    ServeBoth();
    v1::LiveStateReply reply;
    ASSERT_TRUE(reader->Read(&reply));
    context.TryCancel();
    ra_->AwaitEnd();
    rb_->AwaitEnd();
    reader->Finish();
  }
  auto get = Get(DirectQuery());
  ServeBoth();
  ra_->Released();
  rb_->Released();
  DeleteJob();
  EXPECT_THAT(get.get().status, StatusIs(absl::StatusCode::kAborted, HasSubstr("was deleted")));
  ra_->AwaitEnd();
  rb_->AwaitEnd();
}

}  // namespace
}  // namespace tessera::coordinator
