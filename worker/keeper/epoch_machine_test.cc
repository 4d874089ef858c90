#include "worker/keeper/epoch_machine.h"

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "shm/fd_passing.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kWorldSize = 2;

// A job whose executors are the test's ends of their sockets: no process, no thread.
class EpochMachineTest : public testing::Test {
 protected:
  void SetUp() override {
    ModelSpec model;
    model.units.push_back({"u", {{"w", {64}, DType::kFp32}}});
    JobConfig config;
    config.world_size = kWorldSize;
    job_.set_job_id("toy");
    *job_.mutable_model() = EncodeModel(model);
    *job_.mutable_config() = EncodeJobConfig(config);
    LocalRanks local;
    local.topology = RankTopology::OneHost(kWorldSize);
    ASSERT_OK_AND_ASSIGN(JobRegions regions, JobRegions::Create(job_, local));
    context_.reset(
        new JobContext{"toy", /*generation=*/3, std::move(regions), "", nullptr,
                       [this](const v1::WorkerEvent& event) { events_.push_back(event); }});
    executors_ = std::make_unique<ExecutorSlots>(context_->local());
    epochs_ = std::make_unique<EpochMachine>(context_.get(), job_, executors_.get());
    for (ExecutorSlot& slot : *executors_) {
      ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
      slot.socket = std::move(sockets.first);
      ends_.push_back(std::move(sockets.second));
      slot.ready = true;
    }
  }

  void Prepare(int64_t epoch) {
    v1::PrepareEpoch prepare;
    *prepare.mutable_job() = job_;
    prepare.mutable_job()->set_epoch(epoch);
    epochs_->Prepare(prepare);
  }
  void QuietAll() {
    for (ExecutorSlot& slot : *executors_) slot.quiet = true;
    epochs_->MaybePrepared();
  }
  void Start(int64_t epoch) {
    v1::StartEpoch start;
    start.set_epoch(epoch);
    epochs_->Start(start);
  }
  // What the rank's executor was sent since the last call.
  std::vector<v1::ExecutorCommand> Sent(int rank) {
    std::vector<v1::ExecutorCommand> commands;
    pollfd readable = {ends_[rank].get(), POLLIN, 0};
    while (poll(&readable, 1, 0) > 0) {
      const absl::StatusOr<Packet> packet = ReceivePacket(ends_[rank].get());
      EXPECT_OK(packet.status());
      if (!packet.ok()) break;
      EXPECT_TRUE(commands.emplace_back().ParseFromString(packet->bytes));
    }
    return commands;
  }
  // What the coordinator was told since the last call.
  std::vector<v1::WorkerEvent> Told() { return std::exchange(events_, {}); }

  v1::Job job_;
  std::vector<v1::WorkerEvent> events_;
  std::unique_ptr<JobContext> context_;
  std::unique_ptr<ExecutorSlots> executors_;
  std::unique_ptr<EpochMachine> epochs_;
  std::vector<UniqueFd> ends_;  // The executors'.
};

TEST_F(EpochMachineTest, IsPreparedOnceEveryRankIsReadyAndQuiet) {
  Prepare(1);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const std::vector<v1::ExecutorCommand> sent = Sent(rank);
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_TRUE(sent[0].abort().prepare());
    EXPECT_EQ(sent[0].abort().epoch(), 1);
  }
  executors_->Of(Rank(0)).quiet = true;
  epochs_->MaybePrepared();
  EXPECT_EQ(epochs_->phase(), EpochPhase::kPreparing);
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_FALSE(epochs_->Unacknowledged().has_value());
  QuietAll();
  EXPECT_EQ(epochs_->phase(), EpochPhase::kPrepared);
  const std::vector<v1::WorkerEvent> told = Told();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].prepared().epoch(), 1);
  EXPECT_EQ(told[0].prepared().generation(), 3);
  ASSERT_TRUE(epochs_->Unacknowledged().has_value());
  EXPECT_TRUE(epochs_->Unacknowledged()->has_prepared());
}

TEST_F(EpochMachineTest, FailureAbortsEveryRankAndIsToldOnceAndAgainAfterAReconnect) {
  Prepare(1);
  QuietAll();
  Start(1);
  EXPECT_EQ(epochs_->phase(), EpochPhase::kRunning);
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_TRUE(Sent(rank).back().has_start());
  Told();
  epochs_->Fail(Rank(1), "the trainer of rank 1 died");
  epochs_->Fail(Rank(0), "the trainer of rank 0 died");  // Ends nothing that has not ended.
  EXPECT_EQ(epochs_->phase(), EpochPhase::kFailed);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const std::vector<v1::ExecutorCommand> sent = Sent(rank);
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_FALSE(sent[0].abort().prepare());
    EXPECT_THAT(sent[0].abort().reason(), HasSubstr("rank 1 died"));
  }
  const std::vector<v1::WorkerEvent> told = Told();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].failure().rank(), 1);
  ASSERT_TRUE(epochs_->Unacknowledged().has_value());
  EXPECT_EQ(epochs_->Unacknowledged()->failure().rank(), 1);
  Prepare(2);
  EXPECT_FALSE(epochs_->Unacknowledged().has_value());
}

TEST_F(EpochMachineTest, CommandsOfAPastEpochAreIgnored) {
  Prepare(2);
  QuietAll();
  for (int rank = 0; rank < kWorldSize; ++rank) Sent(rank);
  Told();
  Prepare(1);
  Start(1);
  v1::OrderRelease release;
  release.set_epoch(1);
  epochs_->Release(release);
  v1::OrderMismatch mismatch;
  mismatch.set_epoch(1);
  epochs_->Mismatch(mismatch);
  EXPECT_EQ(epochs_->epoch(), Epoch(2));
  EXPECT_EQ(epochs_->phase(), EpochPhase::kPrepared);
  EXPECT_THAT(Told(), IsEmpty());
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_THAT(Sent(rank), IsEmpty());
}

TEST_F(EpochMachineTest, AnnouncementIsKeptUntilItsOwnPositionIsReleased) {
  Prepare(1);
  QuietAll();
  Start(1);
  ExecutorSlot& slot = executors_->Of(Rank(0));
  slot.pending_order.set_epoch(1);
  slot.pending_order.set_step(3);
  slot.pending_order.set_sequence(4);
  v1::OrderRelease release;
  release.set_epoch(1);
  release.set_step(3);
  // The second one of a position that was announced again after a reconnect.
  release.set_sequence(3);
  epochs_->Release(release);
  EXPECT_EQ(slot.pending_order.sequence(), 4);
  release.set_sequence(4);
  epochs_->Release(release);
  EXPECT_EQ(slot.pending_order.epoch(), 0) << "it would be announced again";
}

TEST_F(EpochMachineTest, MismatchIsTheTrainersErrorAndNotToldToTheCoordinatorThatFoundIt) {
  Prepare(1);
  QuietAll();
  Start(1);
  for (int rank = 0; rank < kWorldSize; ++rank) Sent(rank);
  Told();
  v1::OrderMismatch mismatch;
  mismatch.set_epoch(1);
  mismatch.set_message("rank 0 opens, rank 1 closes");
  epochs_->Mismatch(mismatch);
  EXPECT_EQ(epochs_->phase(), EpochPhase::kFailed);
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_FALSE(epochs_->Unacknowledged().has_value());
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const std::vector<v1::ExecutorCommand> sent = Sent(rank);
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].abort().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  }
}

TEST_F(EpochMachineTest, ExecutorThatIsEndingIsSentNothingAndWaitedFor) {
  executors_->Of(Rank(1)).ending = true;
  Prepare(1);
  EXPECT_THAT(Sent(0), SizeIs(1));
  EXPECT_THAT(Sent(1), IsEmpty());
  QuietAll();
  EXPECT_EQ(epochs_->phase(), EpochPhase::kPreparing);
}

}  // namespace
}  // namespace tessera
