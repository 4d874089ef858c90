// Every operation of a save on files, in turn: it is the last of its process (SIGKILL), it fails
// (ENOSPC, EIO), or the power fails after it and what was not synced is lost. The operations are
// counted as they come, and none is left out. Whatever is left loads as the version before or as
// the one that was saved, whole; the next save goes through, and leaves just what a save leaves
// that nothing disturbed; anything else in the folder is not touched.
//
// The executors' own code saves, two ranks in a process that is forked for each save
// (saved_version.h). Whole clusters that die in a save: checkpoint_kill_test and its neighbours.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/disk_log/crash_check.h"
#include "tests/fault/disk_log/crash_disk.h"
#include "tests/fault/disk_log/disk_log.h"
#include "tests/fault/save_steps/saver.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using disk_log::CrashDisk;
using disk_log::DiskEvent;
using disk_log::DiskLog;
using disk_log::DiskRecord;
using disk_log::DiskTree;
using disk_log::ListOf;
using disk_log::ReadTree;
using disk_log::WriteTree;
using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kSeed = 20250301;
constexpr int kTornStates = 4;  // After each operation, besides all lost and all kept.

struct Scenario {
  const char* name;
  SaveKind kind;
  int before;                    // Versions 1 to this are there.
  std::vector<int> next;         // What is saved after the interruption.
  bool in_users_folder = false;  // The parts' folder is there, and has something of the user's.

  int saved() const { return before + 1; }
};

enum class Outcome { kOld, kNew, kRefused };
using Counts = std::map<Outcome, int>;

std::string TextOf(const Counts& counts) {
  const auto count = [&](Outcome outcome) {
    return counts.count(outcome) == 0 ? 0 : counts.at(outcome);
  };
  return absl::StrCat("old ", count(Outcome::kOld), ", new ", count(Outcome::kNew), ", refused ",
                      count(Outcome::kRefused));
}

std::set<std::string> PathsOf(const DiskTree& tree) {
  std::set<std::string> paths;
  for (const auto& [path, bytes] : tree) paths.insert(path);
  return paths;
}

class SaveStepsTest : public testing::TestWithParam<Scenario> {
 protected:
  void SetUp() override {
    root_ = "/tmp/tessera-steps-XXXXXX";
    scratch_ = "/tmp/tessera-loaded-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    ASSERT_NE(mkdtemp(scratch_.data()), nullptr);
    auto log = DiskLog::Start(root_);
    ASSERT_OK(log);
    log_ = *std::move(log);
    auto saver = Saver::Start();
    ASSERT_OK(saver);
    saver_ = *std::move(saver);
  }
  void TearDown() override {
    saver_.reset();
    log_.reset();
    fs::remove_all(root_);
    fs::remove_all(scratch_);
  }

  static SaveKind kind() { return GetParam().kind; }
  static std::string Path(const std::string& folder, int version) {
    return absl::StrCat(folder, "/", NameOfSaved(kind(), version));
  }
  absl::StatusOr<int> Version(const std::string& path) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(scratch_)) fs::remove_all(entry, error);
    return LoadedVersion(kind(), path, scratch_);
  }
  void ExpectVersion(const std::string& path, int version) {
    const absl::StatusOr<int> loaded = Version(path);
    ASSERT_OK(loaded);
    EXPECT_EQ(*loaded, version) << path;
  }

  // The versions that are there before the save.
  void SaveBefore() {
    for (int version = 1; version <= GetParam().before; ++version) {
      ASSERT_OK(saver_->Prepare(kind(), root_, version));
      ASSERT_OK(saver_->Save(kind(), root_, version));
    }
    ASSERT_OK(saver_->Prepare(kind(), root_, GetParam().saved()));
  }
  void MakeUsersOwn() {
    DiskTree own = {{"notes", "mine"}, {"photos", std::nullopt}, {"photos/a", "of last year"}};
    if (GetParam().in_users_folder) {
      const std::string name = NameOfSaved(kind(), GetParam().saved());
      own[name] = std::nullopt;
      own[name + "/notes"] = "mine";
    }
    ASSERT_OK(WriteTree(own, root_));
    own_ = std::move(own);
  }
  void ExpectUsersOwnIsUntouched(const std::string& folder) {
    const DiskTree tree = ReadTree(folder).value();
    for (const auto& [path, bytes] : own_) {
      ASSERT_EQ(tree.count(path), 1) << path;
      EXPECT_EQ(tree.at(path), bytes) << path;
    }
  }
  // The folder as `tree` has it.
  void Reset(const DiskTree& tree) {
    for (const auto& entry : fs::directory_iterator(root_)) fs::remove_all(entry);
    ASSERT_OK(WriteTree(tree, root_));
  }

  // What a folder that an interrupted save left is worth. Fails where it is anything else.
  Outcome Judge(const std::string& folder) {
    const Scenario& scenario = GetParam();
    const std::string path = Path(folder, scenario.saved());
    const absl::StatusOr<int> found = Version(path);
    switch (scenario.kind) {
      case SaveKind::kRetention:
        ExpectVersion(Path(folder, 2), 2);
        if (fs::exists(Path(folder, 1)) || absl::IsNotFound(found.status()))
          ExpectVersion(Path(folder, 1), 1);
        break;
      case SaveKind::kParts:
        ExpectVersion(Path(folder, 1), 1);
        // Some ranks' parts have their names, and others' do not yet: that is not a checkpoint.
        if (absl::IsFailedPrecondition(found.status())) return Outcome::kOld;
        break;
      case SaveKind::kPartsOver:
        // Of both saves some, which is told (docs/adr/0029), and no part is gone.
        if (absl::IsFailedPrecondition(found.status())) {
          EXPECT_THAT(std::string(found.status().message()),
                      HasSubstr("do not belong to one save"));
          return Outcome::kRefused;
        }
        break;
      default:
        break;
    }
    const bool may_be_absent =
        scenario.kind == SaveKind::kRetention || scenario.kind == SaveKind::kParts;
    if (may_be_absent && absl::IsNotFound(found.status())) return Outcome::kOld;
    EXPECT_OK(found);
    if (found.ok() && *found == scenario.saved()) return Outcome::kNew;
    EXPECT_FALSE(may_be_absent);
    EXPECT_EQ(found.value_or(0), scenario.before);
    return Outcome::kOld;
  }

  // An empty folder is removed only once it must be a crash's.
  static void MakeEmptyFoldersOld(const std::string& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (!entry.is_directory() || !fs::is_empty(entry)) continue;
      const timespec times[2] = {{1000, 0}, {1000, 0}};
      EXPECT_EQ(utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
    }
  }
  // The next saves go through, and leave what they leave where nothing happened before.
  void ExpectNextSavesLeaveNothingElse(const std::string& folder) {
    MakeEmptyFoldersOld(folder);
    for (const int version : GetParam().next) {
      ASSERT_OK(saver_->Save(kind(), folder, version));
      ExpectVersion(Path(folder, version), version);
    }
    EXPECT_EQ(PathsOf(ReadTree(folder).value()), undisturbed_);
  }

  bool IsJudged(const DiskTree& tree, bool goes_on) const {
    const auto known = judged_.find(tree);
    return known != judged_.end() && (known->second.went_on || !goes_on);
  }
  // Judge and what follows of a folder with new contents: equal contents give equal results.
  Outcome JudgeOnce(const std::string& folder, bool goes_on) {
    const DiskTree tree = ReadTree(folder).value();
    if (IsJudged(tree, goes_on)) return judged_.at(tree).outcome;
    const Outcome outcome = Judge(folder);
    judged_[tree] = {outcome, goes_on};
    ExpectUsersOwnIsUntouched(folder);
    if (!goes_on) return outcome;
    ExpectNextSavesLeaveNothingElse(folder);
    ExpectUsersOwnIsUntouched(folder);
    return outcome;
  }

  // Runs the save with the first, second, ... of `calls` met by `error`, until none is left.
  // `check`: of each, with the call and the save's status. Returns how many there were.
  using Check = std::function<void(const std::string& call, const absl::Status& status)>;
  int ForEachCall(uint32_t calls, int error, const Check& check) {
    for (int call = 1; call < 1000; ++call) {
      Reset(before_);
      log_->Arm({0, calls, call, error});
      const absl::Status status = saver_->Save(kind(), root_, GetParam().saved());
      const std::string met = log_->Disarm();
      if (met.empty()) {
        EXPECT_OK(status);
        return call - 1;
      }
      SCOPED_TRACE(absl::StrCat("call ", call, ": ", met));
      check(met, status);
      if (HasFailure()) return call;
    }
    ADD_FAILURE() << "there is no end";
    return 0;
  }
  // What is there before, with something of the user's, and what undisturbed saves leave.
  void Begin() {
    ASSERT_NO_FATAL_FAILURE(MakeUsersOwn());
    ASSERT_NO_FATAL_FAILURE(SaveBefore());
    before_ = ReadTree(root_).value();
    ASSERT_OK(saver_->Save(kind(), root_, GetParam().saved()));
    EXPECT_EQ(Judge(root_), Outcome::kNew);
    FindUndisturbed();
  }
  void FindUndisturbed() {
    for (const int version : GetParam().next) ASSERT_OK(saver_->Save(kind(), root_, version));
    undisturbed_ = PathsOf(ReadTree(root_).value());
  }
  // Both outcomes are met, and nothing else but of parts that are replaced.
  static void ExpectBoth(const Counts& counts) {
    EXPECT_GT(counts.count(Outcome::kOld), 0);
    EXPECT_GT(counts.count(Outcome::kNew), 0);
    if (kind() != SaveKind::kPartsOver) {
      EXPECT_EQ(counts.count(Outcome::kRefused), 0);
    }
  }

  std::string root_, scratch_;
  std::unique_ptr<DiskLog> log_;
  std::unique_ptr<Saver> saver_;
  DiskTree own_, before_;
  std::set<std::string> undisturbed_;
  struct Judged {
    Outcome outcome = Outcome::kOld;
    bool went_on = false;  // The next saves were looked at.
  };
  std::map<DiskTree, Judged> judged_;
};

TEST_P(SaveStepsTest, KilledBeforeEachOperationAndInTheMiddleOfEachWrite) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  Counts counts;
  const auto check = [&](const std::string&, const absl::Status& status) {
    ASSERT_TRUE(WasKilled(status)) << status;
    ++counts[JudgeOnce(root_, /*goes_on=*/true)];
  };
  const int operations = ForEachCall(disk_log::kCallsOfASave, disk_log::kKilled, check);
  ASSERT_FALSE(HasFailure());
  const int writes = ForEachCall(disk_log::kWriteCall | disk_log::kDirectWriteCall,
                                 disk_log::kKilledHalfway, check);
  ASSERT_FALSE(HasFailure());
  std::cout << GetParam().name << ": killed before each of " << operations
            << " operations and within each of " << writes << " writes: " << TextOf(counts) << "\n";
  EXPECT_GT(operations, 10);
  EXPECT_GT(writes, 4);
  ExpectBoth(counts);
}

TEST_P(SaveStepsTest, ErrorOfEachOperationIsToldWithItsPathAndChangesNothingOrTheSaveIsWhole) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  for (const int error : {ENOSPC, EIO}) {
    int failed = 0, passed = 0;
    const auto check = [&](const std::string&, const absl::Status& status) {
      ASSERT_FALSE(WasKilled(status));
      if (status.ok()) {  // What remained to be done: older ones are removed.
        EXPECT_EQ(JudgeOnce(root_, /*goes_on=*/true), Outcome::kNew);
        ++passed;
      } else {
        EXPECT_THAT(status, StatusIs(error == ENOSPC ? absl::StatusCode::kResourceExhausted
                                                     : absl::StatusCode::kInternal,
                                     AllOf(HasSubstr(root_), HasSubstr(strerror(error)))));
        EXPECT_TRUE(ReadTree(root_).value() == before_) << "what was there has changed:\n"
                                                        << ListOf(ReadTree(root_).value());
        // So the next save is one that nothing disturbed: once is enough.
        if (failed++ == 0) ExpectNextSavesLeaveNothingElse(root_);
      }
    };
    const int operations = ForEachCall(disk_log::kCallsOfASave, error, check);
    ASSERT_FALSE(HasFailure());
    std::cout << GetParam().name << ": " << strerror(error) << " at each of " << operations
              << " operations: " << failed << " told and nothing changed, " << passed
              << " saved all the same\n";
    EXPECT_GT(failed, 10);
    EXPECT_EQ(failed + passed, operations);
  }
}

TEST_P(SaveStepsTest, PowerThatFailsBehindEachOperationLosesWhatWasNotSyncedAndNoVersion) {
  if (GetParam().in_users_folder) GTEST_SKIP() << "as without the user's files";
  ASSERT_NO_FATAL_FAILURE(SaveBefore());
  ASSERT_OK(log_->Mark("begin"));
  ASSERT_OK(saver_->Save(kind(), root_, GetParam().saved()));
  ASSERT_OK(log_->Mark("end"));
  ASSERT_OK_AND_ASSIGN(const std::vector<DiskRecord> records, log_->Read());
  const DiskTree at_end = ReadTree(root_).value();
  FindUndisturbed();
  CrashDisk disk;
  bool begun = false, ended = false;
  int operations = 0, states = 0;
  Counts counts;
  std::mt19937_64 random(kSeed);
  const std::string folder = absl::StrCat(root_, "-crashed");
  // Of a state of the disk. `goes_on`: the next saves are looked at too.
  const auto look = [&](const DiskTree& state, bool goes_on) {
    ++states;
    if (!IsJudged(state, goes_on)) {
      fs::remove_all(folder);
      ASSERT_OK(WriteTree(state, folder));
      JudgeOnce(folder, goes_on);
    }
    ++counts[judged_.at(state).outcome];
    EXPECT_TRUE(!ended || judged_.at(state).outcome == Outcome::kNew) << "it was said to be saved";
  };
  for (const DiskRecord& record : records) {
    ASSERT_OK(disk.Apply(record));
    if (record.event == DiskEvent::kMark) {
      begun = begun || record.path == "begin";
      ended = record.path == "end";
    }
    if (!begun) continue;
    SCOPED_TRACE(absl::StrCat("behind operation ", operations, ": ", record.path, " ",
                              record.second_path, ", event ", static_cast<int>(record.event)));
    if (record.event != DiskEvent::kMark) ++operations;
    look(disk.Lost(), /*goes_on=*/true);
    look(disk.Kept(), /*goes_on=*/true);
    for (int i = 0; i < kTornStates; ++i) look(disk.Torn(&random), /*goes_on=*/false);
    ASSERT_FALSE(HasFailure()) << ListOf(disk.Lost()) << "all kept:\n" << ListOf(disk.Kept());
  }
  EXPECT_TRUE(disk.Kept() == at_end) << "the log lacks what was done";
  fs::remove_all(folder);
  std::cout << GetParam().name << ": the power fails behind each of " << operations
            << " operations: " << states << " states, " << judged_.size()
            << " that differ: " << TextOf(counts) << "\n";
  EXPECT_GT(operations, 10);
  ExpectBoth(counts);
}

INSTANTIATE_TEST_SUITE_P(
    Saves, SaveStepsTest,
    testing::Values(Scenario{"Whole", SaveKind::kWhole, 1, {3}},
                    Scenario{"FilesWithAnIndex", SaveKind::kFiles, 1, {3}},
                    Scenario{"ModelFile", SaveKind::kModelFile, 1, {3}},
                    Scenario{"ModelFolder", SaveKind::kModelFolder, 1, {3}},
                    Scenario{"OldestIsRemoved", SaveKind::kRetention, 2, {3, 4}},
                    Scenario{"Parts", SaveKind::kParts, 1, {2}},
                    Scenario{"PartsInAUsersFolder", SaveKind::kParts, 1, {2}, true},
                    Scenario{"PartsOverParts", SaveKind::kPartsOver, 1, {3}},
                    Scenario{"Consolidated", SaveKind::kConsolidate, 1, {2}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
