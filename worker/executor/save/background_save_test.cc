#include "worker/executor/save/background_save.h"

#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_reader.h"
#include "gtest/gtest.h"
#include "worker/comm/loopback/loopback_communicator.h"

namespace tessera {
namespace {

constexpr int64_t kNumel = 1000;

class BackgroundSaveTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-background-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ModelSpec model;
    model.units.push_back({"root", {{"w", {kNumel}}}});
    memory_.job_id = "toy";
    memory_.rank = Rank(0);
    memory_.config.world_size = 1;
    memory_.config.optimizer = OptimizerKind::kAdam;  // Three arrays.
    ASSERT_OK_AND_ASSIGN(memory_.layout, ModelLayout::Create(model, LayoutOptions(), 1));
    ASSERT_OK_AND_ASSIGN(memory_.plan, JobMemory::Create(memory_.layout, memory_.config));
    ASSERT_OK_AND_ASSIGN(communicator_, LoopbackCommunicator::Create(0, 1));
    save_ = std::make_unique<BackgroundSave>(&memory_);
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    save_.reset();
    std::filesystem::remove_all(folder_);
  }

  // Version 5 has values_ in all arrays.
  absl::Status Prepare(bool stays = false, int64_t version = 5) {
    const auto read = [&](StateArray, const ShardSegment&) -> ConstValues { return values_; };
    TrainingProgress progress;
    progress.update_counts = {1};
    progress.groups = {HyperParameters()};
    v1::SaveRequest request;
    request.mutable_spec()->set_path(folder_ + "/c");
    return save_->Prepare(request,
                          {version, progress, MomentsOf(memory_.config.optimizer), read, stays},
                          {&stopped_, &cancelled_});
  }
  std::vector<float> Saved() {
    auto model = ModelReader::Open(folder_ + "/c/model.safetensors");
    EXPECT_OK(model);
    std::vector<float> saved(kNumel);
    EXPECT_OK(model->ReadSlice("w", 0, absl::MakeSpan(saved)));
    return saved;
  }
  absl::Status Start() {
    return save_->Start(communicator_.get(),
                        [](const v1::SaveRequest&, const absl::Status&, const v1::SaveReply&) {});
  }

  std::string folder_;
  ExecutorMemory memory_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<float> values_ = std::vector<float>(kNumel, 1.0f);
  std::atomic<bool> stopped_{false}, cancelled_{false};
  std::unique_ptr<BackgroundSave> save_;
};

TEST_F(BackgroundSaveTest, VersionIsWrittenFromWhereItLiesAndCopiedOnlyWhereTrainingComesFirst) {
  for (const bool training_comes_first : {false, true}) {
    SCOPED_TRACE(training_comes_first);
    values_.assign(kNumel, 1.0f);
    Fault hold;
    hold.action = FaultAction::kHold;
    if (training_comes_first) ArmFaultPoint("save.take", hold);
    EXPECT_TRUE(save_->MayOverwrite(7));
    ASSERT_OK(Prepare());
    EXPECT_FALSE(save_->MayOverwrite(7));
    ASSERT_OK(Start());
    EXPECT_TRUE(save_->MayOverwrite(6));
    if (!training_comes_first) save_->End();
    // What training does: it overwrites as soon as it may, also while the save stands still.
    save_->AwaitCopied(6);
    save_->AwaitCopied(7);
    values_.assign(kNumel, 2.0f);
    DisarmAllFaultPoints();
    save_->End();
    ASSERT_EQ(save_->status().code(), 0) << save_->status().message();
    EXPECT_EQ(Saved(), std::vector<float>(kNumel, 1.0f));
  }
}

TEST_F(BackgroundSaveTest, WhatStaysIsWrittenFromWhereItIsAndHoldsNoStepUp) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.copy", hold);  // A copy would never end.
  ASSERT_OK(Prepare(/*stays=*/true));
  EXPECT_TRUE(save_->MayOverwrite(7));
  EXPECT_EQ(save_->status().all_bytes(), 3 * kNumel * static_cast<int64_t>(sizeof(float)));
  ASSERT_OK(Start());
  save_->End();
  ASSERT_EQ(save_->status().code(), 0) << save_->status().message();
  EXPECT_EQ(Saved(), std::vector<float>(kNumel, 1.0f));
}

TEST_F(BackgroundSaveTest, EndOfTheEpochEndsTheCopyAndWhoWaitsForItAndSavesNothing) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.take", hold);
  ASSERT_OK(Prepare());
  ASSERT_OK(Start());
  stopped_.store(true);
  save_->AwaitCopied(7);
  DisarmAllFaultPoints();
  save_->End();
  EXPECT_EQ(save_->status().code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(BackgroundSaveTest, CancelledSaveIsGivenUpAtOnce) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.take", hold);
  ASSERT_OK(Prepare());
  ASSERT_OK(Start());
  cancelled_.store(true);
  DisarmAllFaultPoints();
  save_->End();
  EXPECT_EQ(save_->status().code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(BackgroundSaveTest, RestIsCopiedFromTheVoteForTheNextStepOn) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.take", hold);
  ASSERT_OK(Prepare());
  ASSERT_OK(Start());
  EXPECT_FALSE(save_->MayOverwrite(7));
  save_->AwaitCopied(6);
  while (!save_->MayOverwrite(7)) std::this_thread::yield();  // Not by a writer that waits for it.
  values_.assign(kNumel, 2.0f);
  DisarmAllFaultPoints();
  save_->End();
  ASSERT_EQ(save_->status().code(), 0) << save_->status().message();
  EXPECT_EQ(Saved(), std::vector<float>(kNumel, 1.0f));
}

TEST_F(BackgroundSaveTest, WhatIsNotStartedHoldsNothingUp) {
  ASSERT_OK(Prepare());
  EXPECT_FALSE(save_->MayOverwrite(7));
  save_->End();
  EXPECT_TRUE(save_->MayOverwrite(7));
}

}  // namespace
}  // namespace tessera
