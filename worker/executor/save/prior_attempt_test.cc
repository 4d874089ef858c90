// What the ranks of a save in parts find of an earlier try, which died while the parts got their
// names: two ranks, threads of this process, over shared memory.
#include "worker/executor/save/prior_attempt.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/shm/shm_test_group.h"
#include "worker/engine/agreed_error.h"
#include "worker/executor/save/checkpoint_save.h"
#include "worker/executor/save/part_save.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;

class PriorAttemptTest : public testing::Test {
 protected:
  // What each rank is told.
  struct Told {
    PriorAttempt made;
    absl::Status outcome;
  };

  void SetUp() override {
    folder_ = "/tmp/tessera-made-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    group_fd_ = UniqueFd(memfd_create("group", MFD_CLOEXEC));
    ASSERT_TRUE(group_fd_.valid());
    ASSERT_EQ(ftruncate(group_fd_.get(), kGroupPageBytes), 0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  absl::StatusOr<ExecutorMemory> MemoryOf(int rank) const {
    ModelSpec model;
    UnitSpec& root = model.units.emplace_back();
    root.name = "root";
    root.parameters = {{"a", {5}}, {"b", {4}}};
    ExecutorMemory memory;
    memory.job_id = "toy";
    memory.rank = Rank(rank);
    memory.config.world_size = kRanks;
    ASSIGN_OR_RETURN(memory.layout, ModelLayout::Create(model, LayoutOptions(), kRanks));
    ASSIGN_OR_RETURN(memory.plan, JobMemory::Create(memory.layout, memory.config));
    ASSIGN_OR_RETURN(memory.group, Mapping::CreateWhole(group_fd_.get(), Access::kReadWrite));
    return memory;
  }
  v1::SaveRequest Request() const {
    v1::SaveRequest request;
    request.mutable_spec()->set_path(folder_ + "/c");
    request.mutable_spec()->set_in_parts(true);
    request.mutable_spec()->set_no_overwrite(no_overwrite_);
    request.set_request_number(request_number_);
    return request;
  }
  static void OnBoth(const RankBody& body) {
    GroupOptions group;
    group.size = kRanks;
    for (const absl::Status& status : RunShmThreads(group, body)) EXPECT_OK(status);
  }

  // By rank.
  std::vector<Told> Find() const {
    std::vector<Told> told(kRanks);
    OnBoth([&](const RankContext& context) -> absl::Status {
      ASSIGN_OR_RETURN(const ExecutorMemory memory, MemoryOf(context.comm->rank()));
      Told& own = told[context.comm->rank()];
      absl::StatusOr<PriorAttempt> prior = FindPriorAttempt(Request(), memory, context.comm);
      own.outcome = prior.status();
      if (prior.ok()) own.made = *std::move(prior);
      return IsAgreed(own.outcome) ? absl::OkStatus() : own.outcome;
    });
    return told;
  }
  // A try that ends well.
  void Save(int64_t step) const {
    const std::string request = Find()[0].made.request;
    OnBoth([&](const RankContext& context) -> absl::Status {
      ASSIGN_OR_RETURN(const ExecutorMemory memory, MemoryOf(context.comm->rank()));
      TrainingProgress progress;
      progress.step = step;
      progress.update_counts = {1, 1};
      progress.groups = {HyperParameters()};
      const std::vector<float> values(9, 1.0f);
      const auto read = [&](StateArray, const ShardSegment& segment) -> ConstValues {
        return absl::MakeConstSpan(values).first(segment.numel);
      };
      const SavedState state = {/*version=*/5, progress, MomentsOf(memory.config.optimizer), read};
      SaveControl control;
      control.asked_for = request;
      v1::SaveReply reply;
      return SaveParts(Request(), memory, InMemory(state), context.comm, control, &reply);
    });
  }
  void ExpectMade(int64_t step) const {
    const std::vector<Told> told = Find();
    for (const Told& one : told) {
      EXPECT_OK(one.outcome);
      EXPECT_TRUE(one.made.is_made);
      EXPECT_EQ(one.made.step, step);
      EXPECT_GT(one.made.reply.written_bytes(), 0);
      EXPECT_EQ(one.made.reply.written_bytes(), told[0].made.reply.written_bytes());
    }
  }
  // Both say so, and that it may be made.
  void ExpectNotMade() const {
    for (const Told& one : Find()) {
      EXPECT_OK(one.outcome);
      EXPECT_FALSE(one.made.is_made);
    }
  }
  std::string PartOf(int rank) const { return absl::StrCat(folder_, "/c/rank-0000", rank); }

  std::string folder_;
  UniqueFd group_fd_;
  bool no_overwrite_ = false;
  int64_t request_number_ = 1;
};

TEST_F(PriorAttemptTest, IsMadeWhereTheNamesOfAllPartsAreOfOneSaveOfTheRequest) {
  for (const bool no_overwrite : {false, true}) {
    SCOPED_TRACE(no_overwrite);
    no_overwrite_ = no_overwrite;
    ExpectNotMade();
    Save(3);
    ExpectMade(3);
    fs::remove_all(folder_ + "/c");
  }
}

TEST_F(PriorAttemptTest, PartThatOneRankHasAloneIsNotTheSaveAndTheNextTryMakesAll) {
  for (const bool no_overwrite : {false, true}) {
    for (const int missing : {0, 1}) {
      SCOPED_TRACE(absl::StrCat(no_overwrite, " ", missing));
      no_overwrite_ = no_overwrite;
      Save(3);
      fs::remove_all(PartOf(missing));
      ExpectNotMade();
      Save(4);
      ExpectMade(4);
      fs::remove_all(folder_ + "/c");
    }
  }
}

TEST_F(PriorAttemptTest, PartsOfTwoTriesAreNotTheSaveAndTheNextTryMakesAll) {
  for (const bool no_overwrite : {false, true}) {
    for (const int older : {0, 1}) {
      SCOPED_TRACE(absl::StrCat(no_overwrite, " ", older));
      no_overwrite_ = no_overwrite;
      Save(3);
      fs::rename(PartOf(older), folder_ + "/older");
      Save(3);  // The same step, so that the tries' ids alone differ.
      fs::remove_all(PartOf(older));
      fs::rename(folder_ + "/older", PartOf(older));
      ExpectNotMade();
      Save(4);
      ExpectMade(4);
      fs::remove_all(folder_ + "/c");
    }
  }
}

// What the try did not come to; but a folder that another save is making is that one's.
TEST_F(PriorAttemptTest, PartThatWasReplacedIsRemovedAndNothingElseThatIsNotFinished) {
  Save(3);
  const std::string replaced = PartOf(0) + ".partial", others = PartOf(1) + ".partial";
  fs::copy(PartOf(0), replaced);
  fs::create_directory(others);
  ExpectMade(3);
  EXPECT_FALSE(fs::exists(replaced));
  EXPECT_TRUE(fs::exists(others));
}

TEST_F(PriorAttemptTest, PartsOfAnotherRequestAreNotThisOnesAndStay) {
  Save(3);
  request_number_ = 2;
  ExpectNotMade();
  no_overwrite_ = true;
  for (const Told& one : Find()) {
    EXPECT_FALSE(one.made.is_made);
    EXPECT_THAT(one.outcome,
                StatusIs(absl::StatusCode::kAlreadyExists, testing::HasSubstr("rank-0000")));
  }
  request_number_ = 1;
  ExpectMade(3);
}

}  // namespace
}  // namespace tessera
