// Saves and loads of checkpoints, of a rank alone, that are given up in the middle or made again.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "gtest/gtest.h"
#include "worker/comm/loopback/loopback_communicator.h"
#include "worker/engine/agreed_error.h"
#include "worker/executor/load/checkpoint_load.h"
#include "worker/executor/load/fake_state_writer.h"
#include "worker/executor/save/checkpoint_save.h"
#include "worker/executor/save/part_save.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class CheckpointStopTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-stop-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ModelSpec model;
    model.units.push_back({"root", {{"a", {4}}, {"b", {4}}, {"c", {4}}}});
    memory_.job_id = "toy";
    memory_.rank = Rank(0);
    memory_.config.world_size = 1;
    ASSERT_OK_AND_ASSIGN(memory_.layout, ModelLayout::Create(model, LayoutOptions(), 1));
    ASSERT_OK_AND_ASSIGN(memory_.plan, JobMemory::Create(memory_.layout, memory_.config));
    ASSERT_OK_AND_ASSIGN(communicator_, LoopbackCommunicator::Create(0, 1));
    progress_.step = 3;
    progress_.update_counts = {1, 1, 1};
    progress_.groups = {HyperParameters()};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  using Save =
      std::function<absl::Status(const v1::SaveRequest&, const StateToSave&, const SaveControl&)>;
  // What becomes of it where `flag` is set once its second slice is asked for. Counts the slices.
  absl::Status RunSave(const Save& save, std::atomic<bool>* flag, int* num_slices) {
    const std::vector<float> values(4, 1.0f);
    const auto read = [&](StateArray, const ShardSegment&) -> ConstValues {
      if (++*num_slices == 2) {
        if (flag != nullptr) flag->store(true);
        if (at_second_slice_ != nullptr) at_second_slice_();
      }
      return values;
    };
    const SavedState state = {/*version=*/5, progress_, MomentsOf(memory_.config.optimizer), read};
    v1::SaveRequest request;
    request.mutable_spec()->set_path(folder_ + "/c");
    request.mutable_spec()->set_no_overwrite(no_overwrite_);
    const absl::Status outcome =
        save(request, InMemory(state), {&stopped_, &cancelled_, nullptr, 0, asked_for_});
    EXPECT_TRUE(outcome.ok() || IsAgreed(outcome)) << outcome;
    return outcome;
  }
  Save Whole() {
    return [this](const v1::SaveRequest& request, const StateToSave& state,
                  const SaveControl& control) {
      v1::SaveReply reply;
      return SaveCheckpoint(request, memory_, state, communicator_.get(), control, &reply);
    };
  }
  Save Parts() {
    return [this](const v1::SaveRequest& request, const StateToSave& state,
                  const SaveControl& control) {
      v1::SaveReply reply;
      return SaveParts(request, memory_, state, communicator_.get(), control, &reply);
    };
  }

  std::string folder_;
  ExecutorMemory memory_;
  std::unique_ptr<Communicator> communicator_;
  TrainingProgress progress_;
  std::atomic<bool> stopped_{false}, cancelled_{false};
  bool no_overwrite_ = false;
  std::string asked_for_;
  std::function<void()> at_second_slice_;
};

TEST_F(CheckpointStopTest, SavesWriteNoSliceMoreOnceTheEpochEndsAndLeaveNothing) {
  for (const Save& save : {Whole(), Parts()}) {
    stopped_.store(false);
    int num_slices = 0;
    EXPECT_THAT(RunSave(save, &stopped_, &num_slices),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("the epoch ended")));
    EXPECT_EQ(num_slices, 2);
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  }
}

TEST_F(CheckpointStopTest, SaveThatIsCancelledWritesNoSliceMore) {
  int num_slices = 0;
  EXPECT_THAT(RunSave(Whole(), &cancelled_, &num_slices),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_EQ(num_slices, 2);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(CheckpointStopTest, SaveWhoseFolderAnotherOneRemovedIsToldAndLeavesTheOthers) {
  const auto expect = [&](const Save& save, const std::string& name) {
    const std::string partial = name + ".partial";
    at_second_slice_ = [&] {
      std::filesystem::rename(partial,
                              folder_ + "/kept");  // So that its inode is not reused.
      std::filesystem::create_directory(partial);
    };
    int num_slices = 0;
    EXPECT_THAT(RunSave(save, nullptr, &num_slices),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(partial)));
    EXPECT_TRUE(std::filesystem::is_empty(partial)) << "nothing was put there, and it is there";
    EXPECT_FALSE(std::filesystem::exists(name));
    std::filesystem::remove_all(folder_ + "/kept");
    std::filesystem::remove_all(folder_ + "/c");
  };
  expect(Whole(), folder_ + "/c");
  std::filesystem::remove_all(folder_ + "/c.partial");
  expect(Parts(), folder_ + "/c/rank-00000");
}

// When an attempt dies, some ranks may have named their parts: parts of another step do not prevent
// the next attempt, nor anything else.
TEST_F(CheckpointStopTest, PartOfAnEarlierTryOfTheSameRequestIsReplacedAndNoOther) {
  int num_slices = 0;
  for (const bool no_overwrite : {false, true}) {
    no_overwrite_ = no_overwrite;
    for (const char* asked_for : {"", "0123/1", "0123/2"}) {
      SCOPED_TRACE(asked_for);
      asked_for_ = asked_for;
      progress_.step = 3;
      ASSERT_OK(RunSave(Parts(), nullptr, &num_slices));
      progress_.step = 4;
      asked_for_ = "0123/2";
      const bool is_own = asked_for == asked_for_;
      const absl::Status status = RunSave(Parts(), nullptr, &num_slices);
      if (is_own) {
        EXPECT_OK(status);
      } else {
        EXPECT_THAT(status, no_overwrite ? StatusIs(absl::StatusCode::kAlreadyExists,
                                                    HasSubstr("must not be replaced"))
                                         : StatusIs(absl::StatusCode::kFailedPrecondition,
                                                    HasSubstr("of another step are not replaced")));
      }
      ASSERT_OK_AND_ASSIGN(const Manifest part, ReadPartManifest(folder_ + "/c/rank-00000"));
      EXPECT_EQ(part.step, is_own ? 4 : 3);
      EXPECT_EQ(std::filesystem::remove_all(folder_ + "/c/rank-00000.partial"), 0);
      std::filesystem::remove_all(folder_ + "/c");
    }
  }
}

TEST_F(CheckpointStopTest, LoadReadsNoSliceMoreOnceTheEpochEnds) {
  int num_saved = 0;
  ASSERT_OK(RunSave(Whole(), nullptr, &num_saved));
  int num_slices = 0;
  FakeStateWriter writer([&](StateArray, const ShardSegment&) {
    if (++num_slices == 2) stopped_.store(true);
  });
  v1::LoadRequest request;
  request.set_path(folder_ + "/c");
  request.set_is_checkpoint(true);
  const auto load = [&] {
    LoadedState state = {
        /*first=*/true, MomentsOf(memory_.config.optimizer), &writer, std::nullopt, {}};
    const absl::Status outcome =
        LoadCheckpoint(request, memory_, &state, communicator_.get(), &stopped_).status();
    EXPECT_TRUE(outcome.ok() || IsAgreed(outcome)) << outcome;
    return outcome;
  };
  EXPECT_THAT(load(), StatusIs(absl::StatusCode::kAborted, HasSubstr("the epoch ended")));
  EXPECT_EQ(num_slices, 2);
  stopped_.store(false);
  EXPECT_OK(load());
  EXPECT_EQ(num_slices, 2 + num_saved);
}

}  // namespace
}  // namespace tessera
