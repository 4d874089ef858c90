// A trainer that stands still in the middle of a step, with real processes: the coordinator names its
// rank, says when it has come, and where it was told to, ends the epoch with that as the reason. The
// final model is the same bytes as that of an undisturbed run.
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/events.grpc.pb.h"
#include "proto/grpc_status.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::IsStopped;

class MissingRankEventsTest : public ProcessCluster {
 protected:
  MissingRankEventsTest() {
    coordinator_flags_ = {"--hang-after=1s", "--heartbeat-interval=100ms"};
  }

  // Ranks 0 and 2 train; the trainer of rank 1 stops in the middle of its step.
  void StartUntilRank1Stops() {
    StartCoordinator();
    StartWorker();
    for (const int rank : {0, 2}) StartTrainer(rank);
    trainer_flags_ = {"--fault-points=trainer.operation=stop@102"};
    StartTrainer(1);
    ASSERT_TRUE(Eventually([&] { return IsStopped(trainers_[1]->pid()); }));
  }
  v1::ListEventsResponse Events() {
    if (channel_ == nullptr) {
      auto channel = OpenChannel({coordinator_address()}, grpc::ChannelArguments());
      EXPECT_OK(channel);
      if (!channel.ok()) return {};
      channel_ = *std::move(channel);
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::ListEventsRequest request;
    request.set_job_id("toy");
    v1::ListEventsResponse events;
    EXPECT_OK(
        FromGrpcStatus(v1::Events::NewStub(channel_)->ListEvents(&context, request, &events)));
    return events;
  }
  // The newest event of this kind that has the text, once there is one. Trainers that start slowly
  // are missing for a while too.
  v1::Event Await(v1::EventKind kind, const std::string& text, int64_t after_number = 0) {
    v1::Event found;
    EXPECT_TRUE(Eventually([&] {
      const v1::ListEventsResponse events = Events();
      for (const v1::Event& event : events.events()) {
        if (event.kind() == kind && event.number() > after_number &&
            absl::StrContains(event.text(), text)) {
          found = event;
        }
      }
      return found.number() > 0;
    })) << v1::EventKind_Name(kind)
        << " did not happen, but " << Events().ShortDebugString();
    return found;
  }

  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(MissingRankEventsTest, RankOfAStoppedTrainerIsMissingUntilItIsContinued) {
  ASSERT_FALSE(UndisturbedModel().empty());
  ASSERT_NO_FATAL_FAILURE(StartUntilRank1Stops());
  const v1::Event missing =
      Await(v1::EVENT_KIND_RANK_MISSING, "its trainer is attached and submits no operation");
  EXPECT_EQ(missing.rank(), 1);
  EXPECT_EQ(missing.worker_id(), "w");
  EXPECT_THAT(missing.text(), AllOf(HasSubstr("rank 1 on worker w is missing at "),
                                    HasSubstr("for 1s; ranks 0, 2 wait: ")));
  trainers_[1]->Kill(SIGCONT);
  const v1::Event arrived = Await(v1::EVENT_KIND_RANK_ARRIVED, "rank 1", missing.number());
  EXPECT_EQ(arrived.rank(), 1);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(MissingRankEventsTest, EpochOfAStoppedTrainerEndsWithItsRankAsTheReason) {
  ASSERT_FALSE(UndisturbedModel().empty());
  coordinator_flags_.push_back("--end-hung-epochs");
  ASSERT_NO_FATAL_FAILURE(StartUntilRank1Stops());
  const v1::Event ended =
      Await(v1::EVENT_KIND_JOB_STATE, "STARTING: rank 1 on worker w is missing at ");
  EXPECT_EQ(ended.severity(), v1::EVENT_SEVERITY_ERROR);
  EXPECT_GT(ended.epoch(), 1);
  EXPECT_GT(Await(v1::EVENT_KIND_RANK_MISSING, "rank 1 on worker w is missing at ").number(), 0);
  trainers_[1]->Kill(SIGCONT);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

}  // namespace
}  // namespace tessera
