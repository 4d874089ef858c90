// What a client does with what a worker answers. The worker is the test, which means no good.
#include "client/live/worker_grant.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
#include "shm/region.h"
#include "shm/shared_file.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRegionBytes = 4096;

class WorkerGrantTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-grant-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_OK_AND_ASSIGN(listener_, ListenPacketSocket(folder_ + "/descriptors.sock"));
    auto region = SharedRegion::Create("group", kRegionBytes);
    ASSERT_OK(region.status());
    region_ = std::move(*region).TakeFd();
    query_.set_job_id("toy");
  }
  void TearDown() override {
    unlink((folder_ + "/descriptors.sock").c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0);
  }
  static v1::LiveMapAnswer GoodAnswer() {
    v1::LiveMapAnswer answer;
    answer.set_generation(3);
    answer.set_size_bytes(12);
    answer.add_tensors()->set_name("w");
    v1::LiveMapGiven* given = answer.mutable_given();
    given->mutable_even();
    given->mutable_odd();
    given->add_ranks()->set_writing_offset_bytes(8);
    given->add_slices()->set_size_bytes(12);
    return answer;
  }
  static std::string TextOf(const v1::LiveMapAnswer& answer) {
    v1::LocalReply reply;
    *reply.mutable_map() = answer;
    return EncodeReply(reply);
  }
  std::string address() const { return absl::StrCat("unix:", folder_, "/worker.sock"); }
  // Takes one client, and answers this, with these descriptors; keeps its socket.
  absl::Status Open(const std::string& text, const std::vector<int>& fds) {
    std::string asked;
    std::thread worker([&] {
      server_ = UniqueFd(accept(listener_.get(), nullptr, nullptr));
      const auto packet = ReceivePacket(server_.get());
      if (packet.ok()) asked = packet->bytes;
      if (text.empty()) {
        server_.Reset();
      } else {
        EXPECT_OK(SendPacket(server_.get(), text, fds));
      }
    });
    auto grant = WorkerGrant::Open(address(), query_);
    worker.join();
    const auto request = ParseRequest(asked);
    EXPECT_OK(request.status());
    if (request.ok()) {
      EXPECT_EQ(request->map().SerializeAsString(), query_.SerializeAsString());
    }
    if (!grant.ok()) return grant.status();
    grant_ = *std::move(grant);
    return absl::OkStatus();
  }
  absl::Status OpenGood() { return Open(TextOf(GoodAnswer()), {region_.get()}); }

  std::string folder_;
  UniqueFd listener_, region_, server_;
  v1::LiveStateQuery query_;
  std::unique_ptr<WorkerGrant> grant_;
};

TEST_F(WorkerGrantTest, AnswerIsTakenFromThePacketOrFromAFile) {
  ASSERT_OK(OpenGood());
  const auto expect_good = [&] {
    ASSERT_EQ(grant_->answer().tensors_size(), 1);
    EXPECT_EQ(grant_->answer().tensors(0).name(), "w");
    EXPECT_EQ(grant_->answer().generation(), 3);
    EXPECT_EQ(grant_->answer().size_bytes(), 12);
    EXPECT_EQ(grant_->source().Slice(0, 0).size(), 12u);
    EXPECT_OK(grant_->why_ended());
  };
  expect_good();
  ASSERT_OK_AND_ASSIGN(const UniqueFd file,
                       MakeSealedFile("answer", GoodAnswer().SerializeAsString()));
  ASSERT_OK(Open(EncodeReply(absl::OkStatus()), {file.get(), region_.get()}));
  expect_good();
}

TEST_F(WorkerGrantTest, WhatIsNoAnswerIsRefusedNamingTheWorker) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd garbage, MakeSealedFile("answer", "\xff\xff"));
  v1::LiveMapAnswer outside = GoodAnswer();
  outside.mutable_given()->mutable_slices(0)->set_size_bytes(kRegionBytes + 1);
  const std::string given = EncodeReply(absl::OkStatus());
  const auto expect_refused = [&](const std::string& text, const std::vector<int>& fds,
                                  absl::StatusCode code, const std::string& why) {
    SCOPED_TRACE(why);
    const absl::Status status = Open(text, fds);
    EXPECT_THAT(status, StatusIs(code, HasSubstr(why)));
    EXPECT_THAT(status, StatusIs(code, HasSubstr(address())));
  };
  const absl::StatusCode lost = absl::StatusCode::kDataLoss;
  expect_refused(TextOf(GoodAnswer()), {}, lost, "gave no words");
  expect_refused(TextOf(outside), {region_.get()}, lost, "4097 bytes");
  expect_refused(given, {}, lost, "no descriptors arrived");
  expect_refused(given, {region_.get(), region_.get()}, lost, "may change");
  expect_refused(given, {garbage.get(), region_.get()}, lost, "is empty");
  expect_refused("\xff\xff", {}, absl::StatusCode::kUnavailable, "is not a reply");
  expect_refused(EncodeReply(absl::NotFoundError("no job")), {}, absl::StatusCode::kNotFound,
                 "no job");
  expect_refused("", {}, absl::StatusCode::kUnavailable, "closed it");
}

TEST_F(WorkerGrantTest, QueryThatHasNoRoomInAPacketIsNotSent) {
  query_.add_include(std::string(kMaxPacketBytes, '*'));
  EXPECT_THAT(WorkerGrant::Open(address(), query_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("too long")));
}

TEST_F(WorkerGrantTest, EndIsKnownWithItsReasonOnceTheWorkerSaidItAndStaysSo) {
  ASSERT_OK(OpenGood());
  EXPECT_OK(grant_->why_ended());
  ASSERT_OK(SendPacket(server_.get(), EncodeReply(absl::UnavailableError("begun again"))));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(grant_->why_ended(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("begun again")));
    server_.Reset();
  }
}

TEST_F(WorkerGrantTest, WorkerThatIsGoneOrSaysNoReasonIsGone) {
  ASSERT_OK(OpenGood());
  server_.Reset();
  EXPECT_THAT(grant_->why_ended(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is gone")));
  ASSERT_OK(OpenGood());
  ASSERT_OK(SendPacket(server_.get(), EncodeReply(absl::OkStatus())));
  EXPECT_THAT(grant_->why_ended(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is gone")));
}

}  // namespace
}  // namespace tessera
