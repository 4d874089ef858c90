// The power fails after any operation of a save on the disk. The executors' real operations are
// logged, and every state that the disk may then have is looked at: all un-synced lost, all kept,
// and some at random. Under each name is a version that was saved, to the bit.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/stored_model.h"
#include "tests/fault/disk_log/crash_check.h"
#include "tests/fault/disk_log/crash_disk.h"
#include "tests/fault/watched_training.h"

namespace tessera {
namespace {

using disk_log::CrashDisk;
using disk_log::DiskEvent;
using disk_log::DiskRecord;
using disk_log::DiskTree;
using disk_log::FirstWrong;
using disk_log::ListOf;
using disk_log::ReadTree;
using disk_log::Saved;
using disk_log::SavedIn;
using disk_log::TreeAt;
using disk_log::Version;
using disk_log::VersionAt;
using disk_log::WriteTree;
using testing::IsEmpty;
using testing_support::TrainerTeam;

constexpr uint64_t kSeed = 20240607;
constexpr int kStatesLoaded = 16;  // By a job.

class PowerLossTest : public testing::Test {
 protected:
  void SetUp() override {
    auto training = WatchedTraining::Start();
    ASSERT_OK(training);
    training_ = *std::move(training);
    scratch_ = "/tmp/tessera-crashed-XXXXXX";
    ASSERT_NE(mkdtemp(scratch_.data()), nullptr);
  }
  void TearDown() override {
    training_.reset();
    std::filesystem::remove_all(scratch_);
  }

  // One step more, then saved under `name` by `save`.
  template <typename Save>
  void SaveNext(const std::string& name, const Save& save) {
    ASSERT_OK(training_->TrainStep());
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values, ValuesOf(&training_->team()));
    ASSERT_OK(training_->log().Mark(absl::StrCat("begin ", name)));
    for (const absl::Status& status : save()) ASSERT_OK(status);
    ASSERT_OK(training_->log().Mark(absl::StrCat("end ", name)));
    ASSERT_OK_AND_ASSIGN(const DiskTree now, ReadTree(training_->folder()));
    values_.push_back({VersionAt(now, name), values});
  }
  void SaveCheckpoint(const std::string& name, int keep_newest = 0) {
    SaveNext(name, [&] { return training_->SaveCheckpoint(name, keep_newest); });
  }
  void SaveModel(const std::string& name) {
    SaveNext(name, [&] { return training_->SaveModel(name); });
  }

  // Looks at every crash of the log, and calls `look` for some states.
  void CrashEverywhere(const std::function<void(const std::string& folder)>& look) {
    ASSERT_OK_AND_ASSIGN(const std::vector<DiskRecord> records, training_->log().Read());
    ASSERT_OK_AND_ASSIGN(const Saved saved, SavedIn(records, training_->folder()));
    std::vector<DiskTree> sample;
    const std::string wrong = FirstWrong(records, saved, kSeed, &sample);
    ASSERT_EQ(wrong, "");
    EXPECT_GT(records.size(), 40);
    std::mt19937_64 random(kSeed);
    std::shuffle(sample.begin(), sample.end(), random);
    for (size_t i = 0; i < sample.size(); ++i) {
      SCOPED_TRACE(ListOf(sample[i]));
      const std::string folder = Materialise(sample[i]);
      VerifyAllIn(folder);
      if (i < kStatesLoaded) look(folder);
      if (HasFailure()) return;
    }
  }

  // Of the syncs that `is_left_out` names any could be one that nothing needs; all of them cannot.
  void ExpectWrongWithout(const std::function<bool(const DiskRecord&)>& is_left_out) {
    ASSERT_OK_AND_ASSIGN(std::vector<DiskRecord> records, training_->log().Read());
    ASSERT_OK_AND_ASSIGN(const Saved saved, SavedIn(records, training_->folder()));
    const size_t before = records.size();
    records.erase(std::remove_if(records.begin(), records.end(), is_left_out), records.end());
    ASSERT_LT(records.size(), before);
    std::vector<DiskTree> sample;
    EXPECT_NE(FirstWrong(records, saved, kSeed, &sample), "");
  }

  // The values of the version that is there; null if none is.
  const std::vector<float>* ValuesAt(const std::string& folder, const std::string& name) {
    const auto tree = ReadTree(folder);
    EXPECT_OK(tree);
    const Version version = VersionAt(*tree, name);
    if (!version.has_value()) return nullptr;
    for (const auto& [saved, values] : values_) {
      if (saved == version) return &values;
    }
    ADD_FAILURE() << name << " is no version that was saved";
    return nullptr;
  }

  // After each operation, of a crash that loses nothing.
  std::vector<DiskTree> KeptStates() const {
    const auto records = training_->log().Read();
    EXPECT_OK(records);
    std::vector<DiskTree> states;
    CrashDisk disk;
    for (const DiskRecord& record : *records) {
      EXPECT_OK(disk.Apply(record));
      states.push_back(disk.Kept());
    }
    return states;
  }
  std::string Materialise(const DiskTree& state) {
    const std::string folder = scratch_ + "/state";
    std::filesystem::remove_all(folder);
    EXPECT_OK(WriteTree(state, folder));
    return folder;
  }

  std::unique_ptr<WatchedTraining> training_;

 private:
  static void VerifyAllIn(const std::string& folder) {
    ASSERT_OK_AND_ASSIGN(const std::vector<ListedCheckpoint> listed, ListCheckpoints(folder));
    for (const ListedCheckpoint& checkpoint : listed) {
      ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(checkpoint.path));
      EXPECT_THAT(verified.damages, IsEmpty());
    }
  }
  std::string scratch_;
  std::vector<std::pair<Version, std::vector<float>>> values_;  // Of parameters, by version.
};

// A job that comes after the crash: what is at `name` is loaded to the bit, if anything does, and
// saved again at the same place, whatever else the crash has left there.
void LoadAndSaveAgain(TrainerTeam* next, const std::string& folder, const std::string& name,
                      const std::vector<float>* values) {
  const std::string path = absl::StrCat(folder, "/", name);
  if (values != nullptr) {
    LoadCheckpointOptions options;
    options.strict = false;  // It has a buffer, the job none.
    ASSERT_OK(next->RunAll(
        [&](Session* session) { return LoadCheckpoint(session, path, options).status(); }));
    EXPECT_EQ(ValuesOf(next).value(), *values);
  }
  ASSERT_OK(next->RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(path)));
}

TEST_F(PowerLossTest, LeavesTheOldCheckpointOrTheNewOneToTheBit) {
  for (int i = 0; i < 3; ++i) SaveCheckpoint("c");  // The first one of that name, and two over it.
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, training_->OpenAnother("next"));
  ASSERT_OK(next.TrainTo(1));
  CrashEverywhere([&](const std::string& folder) {
    LoadAndSaveAgain(&next, folder, "c", ValuesAt(folder, "c"));
  });
}

// The same states would be wrong if a rank did not sync its bytes, or nobody the names.
TEST_F(PowerLossTest, EachRanksSyncsAndThoseOfFoldersAreWhatKeepsIt) {
  for (int i = 0; i < 2; ++i) SaveCheckpoint("c");
  std::map<uint64_t, bool> is_folder;  // By inode, at the log's current place.
  const auto is_sync = [&](const DiskRecord& record) {
    if (record.event == DiskEvent::kMakeFolder) is_folder[record.inode] = true;
    if (record.event == DiskEvent::kCreate) is_folder[record.inode] = false;
    return record.event == DiskEvent::kSync;
  };
  for (int rank = 0; rank < WatchedTraining::kWorldSize; ++rank) {
    SCOPED_TRACE(rank);
    ExpectWrongWithout([&](const DiskRecord& record) {
      return is_sync(record) && !is_folder[record.inode] && record.rank == rank;
    });
  }
  ExpectWrongWithout(
      [&](const DiskRecord& record) { return is_sync(record) && is_folder[record.inode]; });
}

TEST_F(PowerLossTest, LeavesTheNewestCheckpointsWhereOlderOnesAreRemoved) {
  const std::vector<std::string> names = {"s1", "s2", "s3", "s4"};
  for (int i = 0; i < 4; ++i) {
    if (i >= 2) {
      ASSERT_OK(training_->log().Mark("retire " + names[i - 2]));
    }
    SaveCheckpoint(names[i], /*keep_newest=*/2);
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, training_->OpenAnother("next"));
  ASSERT_OK(next.TrainTo(1));
  CrashEverywhere([&](const std::string& folder) {
    for (const std::string& name : names)
      LoadAndSaveAgain(&next, folder, name, ValuesAt(folder, name));
  });
  // What a crash leaves of one that was being removed, the next save removes; but for its folder
  // if that is empty already, which could be anybody's.
  for (const DiskTree& state : KeptStates()) {
    const bool is_last = VersionAt(state, "s4").has_value();
    if (!is_last && !VersionAt(state, "s3").has_value()) continue;
    const std::string folder = Materialise(state);
    ASSERT_OK(KeepNewest(absl::StrCat(folder, is_last ? "/s4" : "/s3"), "toy", 2));
    const DiskTree left = ReadTree(folder).value();
    for (const char* name : {"s1", "s2"})
      EXPECT_TRUE(TreeAt(left, PartialFolder(name)).value_or(DiskTree()).empty()) << ListOf(left);
  }
}

TEST_F(PowerLossTest, LeavesTheOldModelFileOrTheNewOneToTheBit) {
  for (int i = 0; i < 3; ++i) SaveModel("m");
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, training_->OpenAnother("next"));
  ASSERT_OK(next.TrainTo(1));
  CrashEverywhere([&](const std::string& folder) {
    const std::string path = folder + "/m";
    if (const std::vector<float>* values = ValuesAt(folder, "m"); values != nullptr) {
      ASSERT_OK(next.RunAll([&](Session* session) { return LoadModel(session, path).status(); }));
      EXPECT_EQ(ValuesOf(&next).value(), *values);
    }
    ASSERT_OK(next.RunAll([&](Session* session) { return session->Save(path); }));
    ASSERT_OK_AND_ASSIGN(const DiskTree tree, ReadTree(folder));
    EXPECT_EQ(tree.size(), 1) << "just the model";
  });
}

}  // namespace
}  // namespace tessera
