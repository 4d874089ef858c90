// Reads whose pieces come through the coordinator.
#include <thread>

#include "coordinator/service/live/live_service_fixture.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Command = v1::CoordinatorCommand;

TEST_F(LiveServiceTest, NewestStepThatAnyHoldsIsCopiedByAllAndPiecesComeInOrder) {
  Start(6);
  auto get = Get();
  OpenBoth();
  EXPECT_TRUE(rb_->Piece(3, "444455556666"));
  EXPECT_TRUE(ra_->Piece(0, "1111"));
  EXPECT_TRUE(ra_->Piece(1, "22223333"));
  const Got got = get.get();
  EXPECT_OK(got.status);
  EXPECT_EQ(got.begin.step(), 5);
  EXPECT_EQ(got.begin.trained_step(), 105);
  EXPECT_EQ(got.begin.num_tensors(), 1);
  EXPECT_EQ(got.begin.size_bytes(), 24);
  ASSERT_EQ(got.tensors.size(), 1u);
  EXPECT_EQ(got.tensors[0].name(), "root.w");
  EXPECT_EQ(got.tensors[0].update_count(), 7);
  EXPECT_EQ(got.data, "111122223333444455556666");
}

TEST_F(LiveServiceTest, GroupsOfTheStepComeWithMoments) {
  Start(6);
  v1::LiveStateQuery query = Query();
  query.set_moments(true);
  auto get = Get(query);
  ra_ = RelayOf(a_.get());
  rb_ = RelayOf(b_.get());
  for (Relay* relay : {ra_.get(), rb_.get()}) {
    EXPECT_TRUE(relay->Read().hold().moments());
    relay->Holds(5);
  }
  for (Relay* relay : {ra_.get(), rb_.get()}) {
    EXPECT_EQ(relay->Read().copy().step(), 5);
    v1::LiveEvent event;
    event.mutable_copied()->set_trained_step(105);
    event.mutable_copied()->add_update_counts(7);
    event.mutable_copied()->add_groups()->set_learning_rate(0.25);
    relay->Send(event);
  }
  const size_t num_tensors = 3;
  for (size_t tensor = 0; tensor < num_tensors; ++tensor) {
    EXPECT_TRUE(ra_->Piece(0, "111122223333"));
    EXPECT_TRUE(rb_->Piece(3, "444455556666"));
  }
  const Got got = get.get();
  ASSERT_OK(got.status);
  EXPECT_EQ(got.begin.size_bytes(), 72);
  ASSERT_EQ(got.begin.groups_size(), 1);
  EXPECT_EQ(got.begin.groups(0).learning_rate(), 0.25);
  ASSERT_EQ(got.tensors.size(), num_tensors);
}

TEST_F(LiveServiceTest, BuffersAreAskedOfRank0AloneAndComeLastInTheirOwnDType) {
  Start(2);
  v1::LiveStateQuery query = Query();
  query.set_buffers(true);
  query.set_dtype(v1::DTYPE_BF16);
  auto get = Get(query);
  ra_ = RelayOf(a_.get());
  rb_ = RelayOf(b_.get());
  for (Relay* relay : {ra_.get(), rb_.get()}) {
    const v1::LiveCommand hold = relay->Read();
    EXPECT_THAT(hold.hold().buffers(), testing::ElementsAre(0));
    EXPECT_FALSE(hold.hold().moments());
    relay->Holds(5);
  }
  ra_->Copied(5);
  rb_->Copied(5);
  EXPECT_TRUE(ra_->Piece(0, "11"));
  EXPECT_TRUE(rb_->Piece(1, "22"));
  EXPECT_TRUE(ra_->Piece(0, "mas"));
  EXPECT_TRUE(ra_->Piece(3, "ked"));
  const Got got = get.get();
  EXPECT_OK(got.status);
  EXPECT_EQ(got.begin.size_bytes(), 10);
  ASSERT_EQ(got.tensors.size(), 2u);
  EXPECT_EQ(got.tensors[0].stored_dtype(), "");
  EXPECT_EQ(got.tensors[1].name(), "root.mask");
  EXPECT_EQ(got.tensors[1].array(), v1::LIVE_STATE_ARRAY_BUFFER);
  EXPECT_EQ(got.tensors[1].stored_dtype(), "BOOL");
  EXPECT_EQ(got.tensors[1].dtype(), v1::DTYPE_UNSPECIFIED);
  EXPECT_THAT(got.tensors[1].shape(), testing::ElementsAre(2, 3));
  EXPECT_EQ(got.data, "1122masked");
}

TEST_F(LiveServiceTest, BuffersAloneAreReadWhereNoParameterMatches) {
  Start(2);
  v1::LiveStateQuery query = Query();
  query.add_include("*.mask");
  EXPECT_THAT(Get(query).get().status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("matches")));
  query.set_buffers(true);
  auto get = Get(query);
  ra_ = RelayOf(a_.get());
  EXPECT_THAT(ra_->Read().hold().parameters(), testing::IsEmpty());
  ra_->Holds(5);
  ra_->Copied(5, /*num_parameters=*/0);
  EXPECT_TRUE(ra_->Piece(0, "masked"));
  const Got got = get.get();
  EXPECT_OK(got.status);
  EXPECT_EQ(got.data, "masked");
}

TEST_F(LiveServiceTest, TryThatFailsIsMadeAgainWithNewStreams) {
  Start(2);
  auto get = Get();
  ra_ = RelayOf(a_.get());
  rb_ = RelayOf(b_.get());
  ra_->Held(4);
  rb_->Read();
  rb_->Fail(absl::StatusCode::kAborted, "held for too long");
  ra_->AwaitEnd();
  OpenBoth();
  EXPECT_TRUE(ra_->Piece(0, "1111"));
  EXPECT_TRUE(rb_->Piece(1, "2222"));
  const Got got = get.get();
  EXPECT_OK(got.status);
  EXPECT_EQ(got.data, "11112222");
}

TEST_F(LiveServiceTest, WorkerThatIsGoneIsUnavailableByNameAfterAFewTries) {
  Start(2);
  b_->Disconnect();
  EXPECT_THAT(Get().get().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("in 3 tries"), HasSubstr("worker 'b' is not connected"))));
}

TEST_F(LiveServiceTest, FullDiskOfAWorkerIsSaidAtOnce) {
  Start(2);
  auto get = Get();
  ra_ = RelayOf(a_.get());
  ra_->Read();
  ra_->Fail(absl::StatusCode::kResourceExhausted, "spool folder '/x': No space left on device");
  EXPECT_THAT(get.get().status, StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("worker 'a': spool folder '/x'")));
}

TEST_F(LiveServiceTest, WorkerThatEndsOrSendsOtherThingsWhileItServesIsNamed) {
  Start(4);
  auto get = Get();
  OpenBoth();
  EXPECT_TRUE(ra_->Piece(0, "1111"));
  EXPECT_OK(ra_->Finish());
  EXPECT_THAT(get.get().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'a' ended its stream")));
  for (const auto& [offset, data] : std::vector<std::pair<int64_t, std::string>>{
           {1, "2222"}, {0, "111"}, {0, "111122223333"}, {0, ""}}) {
    get = Get();
    OpenBoth();
    EXPECT_TRUE(ra_->Piece(offset, data));
    EXPECT_THAT(get.get().status,
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("worker 'a' sent data that was not requested")));
  }
}

class HangingClientTest : public LiveServiceTest, public ::testing::WithParamInterface<bool> {};

TEST_P(HangingClientTest, IsCutOffAndTheWorkersStreamsEndAlsoWhereTheJobIsDeleted) {
  Start(int64_t{1} << 26, absl::Milliseconds(300));
  grpc::ClientContext context;
  const auto stub = v1::LiveState::NewStub(NewChannel());
  const auto reader = stub->GetLiveState(&context, Query());
  OpenBoth();
  // Far more than all buffers on the way can hold.
  const std::string piece(256 << 10, 'x');
  int64_t offset_elements = 0;
  while (offset_elements < int64_t{1} << 25 && ra_->Piece(offset_elements, piece)) {
    if (GetParam() && offset_elements == 0) DeleteJob();
    offset_elements += 64 << 10;
  }
  EXPECT_LT(offset_elements, int64_t{1} << 25);
  ra_->AwaitEnd();
  rb_->AwaitEnd();
  v1::LiveStateReply reply;
  while (reader->Read(&reply)) {  // What was already sent.
  }
  const grpc::StatusCode code = reader->Finish().error_code();
  // A write that waits for its client can end in no other way.
  EXPECT_TRUE(code == grpc::StatusCode::CANCELLED ||
              (GetParam() && code == grpc::StatusCode::ABORTED))
      << code;
}

INSTANTIATE_TEST_SUITE_P(Deleted, HangingClientTest, ::testing::Bool());

TEST_F(LiveServiceTest, ClientThatGoesAwayEndsTheWorkersStreams) {
  Start(4);
  grpc::ClientContext context;
  const auto stub = v1::LiveState::NewStub(channel_);
  const auto reader = stub->GetLiveState(&context, Query());
  OpenBoth();
  v1::LiveStateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  context.TryCancel();
  ra_->AwaitEnd();
  rb_->AwaitEnd();
  reader->Finish();
}

TEST_F(LiveServiceTest, DeletionOfTheJobEndsIt) {
  Start(4);
  auto get = Get();
  OpenBoth();
  DeleteJob();
  EXPECT_THAT(get.get().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("'gpt' was deleted")));
  ra_->AwaitEnd();
  rb_->AwaitEnd();
}

TEST_F(LiveServiceTest, EndOfTheCoordinatorEndsIt) {
  Start(4);
  auto get = Get();
  OpenBoth();
  server_->Stop();
  EXPECT_FALSE(get.get().status.ok());
  ra_->AwaitEnd();
  rb_->AwaitEnd();
}

TEST_F(LiveServiceTest, StreamThatNobodyWaitsForIsRefused) {
  Start(4);
  EXPECT_THAT(Relay(channel_, "a", "0123").Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody waits")));
  auto get = Get();
  const std::string session = a_->Await(Command::kServeState).serve_state().session();
  EXPECT_THAT(Relay(channel_, "c", session).Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody waits")));
  DeleteJob();
  EXPECT_FALSE(get.get().status.ok());
}

}  // namespace
}  // namespace tessera::coordinator
