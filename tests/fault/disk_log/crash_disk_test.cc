#include "tests/fault/disk_log/crash_disk.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::disk_log {
namespace {

constexpr int kSeeds = 2000;

class CrashDiskTest : public testing::Test {
 protected:
  void SetUp() override { Do({DiskEvent::kMakeFolder, 0, 1}); }
  void Do(const DiskRecord& record) { ASSERT_OK(disk_.Apply(record)); }
  void Create(const std::string& path, uint64_t inode) {
    Do({DiskEvent::kCreate, 0, inode, 0, 0, path});
  }
  void MakeFolder(const std::string& path, uint64_t inode) {
    Do({DiskEvent::kMakeFolder, 0, inode, 0, 0, path});
  }
  void Write(uint64_t inode, int64_t at, const std::string& data) {
    Do({DiskEvent::kWrite, 0, inode, at, 0, "", "", data});
  }
  void Sync(uint64_t inode) { Do({DiskEvent::kSync, 0, inode}); }
  void Rename(const std::string& from, const std::string& to,
              DiskEvent event = DiskEvent::kRename) {
    Do({event, 0, 0, 0, 0, from, to});
  }
  std::set<DiskTree> TornStates() const {
    std::set<DiskTree> states;
    for (int seed = 0; seed < kSeeds; ++seed) {
      std::mt19937_64 random(seed);
      states.insert(disk_.Torn(&random));
    }
    return states;
  }

  CrashDisk disk_{4};  // Pieces of 4 bytes.
};

TEST_F(CrashDiskTest, WhatIsSyncedStaysAndNothingElseIsSure) {
  Create("a", 2);
  Write(2, 0, "old");
  Sync(2);
  Sync(1);
  Write(2, 0, "new");
  Create("b", 3);
  EXPECT_EQ(disk_.Kept(), (DiskTree{{"a", "new"}, {"b", ""}}));
  EXPECT_EQ(disk_.Lost(), (DiskTree{{"a", "old"}}));
  EXPECT_EQ(
      TornStates(),
      (std::set<DiskTree>{
          {{"a", "old"}}, {{"a", "new"}}, {{"a", "old"}, {"b", ""}}, {{"a", "new"}, {"b", ""}}}));
}

TEST_F(CrashDiskTest, SyncOfAFileKeepsNoNameOfItAndSyncOfAFolderNoBytes) {
  Create("named", 2);
  Sync(1);
  Write(2, 0, "x");
  Create("synced", 3);
  Write(3, 0, "y");
  Sync(3);
  EXPECT_EQ(disk_.Lost(), (DiskTree{{"named", ""}}));
  Rename("synced", "other");
  Sync(1);
  EXPECT_EQ(disk_.Lost(), (DiskTree{{"named", ""}, {"other", "y"}}));
}

TEST_F(CrashDiskTest, WriteIsTornWhereAPieceEndsAndASizeMayComeWithoutBytes) {
  Create("a", 2);
  Sync(1);
  Write(2, 2, "123456");
  std::set<std::string> found;
  for (const DiskTree& state : TornStates()) found.insert(*state.at("a"));
  const std::string zeroes(8, '\0');
  EXPECT_EQ(found,
            (std::set<std::string>{"", zeroes.substr(0, 4), zeroes.substr(0, 2) + "12", zeroes,
                                   zeroes.substr(0, 2) + "12" + zeroes.substr(0, 4),
                                   zeroes.substr(0, 4) + "3456", zeroes.substr(0, 2) + "123456"}));
}

TEST_F(CrashDiskTest, TruncationAndReservedSizeMayBeLostOrKept) {
  Create("a", 2);
  Write(2, 0, "12345678");
  Sync(2);
  Sync(1);
  Do({DiskEvent::kTruncate, 0, 2});
  Do({DiskEvent::kReserve, 0, 2, 0, 2});
  EXPECT_EQ(disk_.Kept(), (DiskTree{{"a", std::string(2, '\0')}}));
  EXPECT_EQ(TornStates(),
            (std::set<DiskTree>{{{"a", "12345678"}}, {{"a", ""}}, {{"a", std::string(2, '\0')}}}));
}

TEST_F(CrashDiskTest, RenameIsWholeOrNotAtAllAndDoesNotWaitForOthers) {
  Create("a", 2);
  Create("b", 3);
  Sync(1);
  Rename("a", "c");
  Rename("b", "d");
  EXPECT_EQ(TornStates(), (std::set<DiskTree>{{{"a", ""}, {"b", ""}},
                                              {{"c", ""}, {"b", ""}},
                                              {{"a", ""}, {"d", ""}},
                                              {{"c", ""}, {"d", ""}}}));
}

TEST_F(CrashDiskTest, FoldersThatAreExchangedAreBothThereEitherWay) {
  MakeFolder("a", 2);
  MakeFolder("b", 3);
  Create("a/x", 4);
  Sync(2);
  Sync(1);
  Rename("a", "b", DiskEvent::kExchange);
  EXPECT_EQ(TornStates(), (std::set<DiskTree>{{{"a", {}}, {"a/x", ""}, {"b", {}}},
                                              {{"a", {}}, {"b", {}}, {"b/x", ""}}}));
  EXPECT_EQ(TreeAt(disk_.Kept(), "b"), (DiskTree{{"x", ""}}));
  EXPECT_EQ(TreeAt(disk_.Kept(), "b/x"), std::nullopt) << "no folder";
}

// Files of a folder whose new name is not synced may be gone where it still has the old one.
TEST_F(CrashDiskTest, RemovedFilesMayBeGoneWhereTheNewNameOfTheirFolderIsNot) {
  MakeFolder("a", 2);
  Create("a/x", 3);
  Sync(2);
  Sync(1);
  Rename("a", "b");
  Do({DiskEvent::kUnlink, 0, 0, 0, 0, "b/x"});
  EXPECT_EQ(TornStates().count(DiskTree{{"a", {}}}), 1);
  Do({DiskEvent::kRemoveFolder, 0, 0, 0, 0, "b"});
  EXPECT_EQ(disk_.Kept(), DiskTree());
  EXPECT_EQ(disk_.Lost(), (DiskTree{{"a", {}}, {"a/x", ""}}));
}

TEST_F(CrashDiskTest, NumberOfAnInodeThatIsUsedAgainIsTheNewFiles) {
  Create("a", 2);
  Write(2, 0, "old");
  Do({DiskEvent::kUnlink, 0, 0, 0, 0, "a"});
  Create("b", 2);
  Write(2, 0, "n");
  EXPECT_EQ(disk_.Kept(), (DiskTree{{"b", "n"}}));
}

TEST_F(CrashDiskTest, LogWithAHoleIsRefused) {
  const auto refused = [&](const DiskRecord& record) { return disk_.Apply(record).code(); };
  Create("a", 2);
  using absl::StatusCode;
  EXPECT_EQ(refused({DiskEvent::kWrite, 0, 9, 0, 0, "", "", "x"}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused({DiskEvent::kCreate, 0, 3, 0, 0, "a"}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused({DiskEvent::kCreate, 0, 3, 0, 0, "b/c"}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused({DiskEvent::kUnlink, 0, 0, 0, 0, "b"}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused({DiskEvent::kRemoveFolder, 0, 0, 0, 0, "a"}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused({DiskEvent::kUnseen, 0, 0, 0, 0, "writev a"}), StatusCode::kUnimplemented);
  MakeFolder("b", 3);
  EXPECT_EQ(refused({DiskEvent::kRename, 0, 0, 0, 0, "a", "b/a"}), StatusCode::kUnimplemented);
}

TEST_F(CrashDiskTest, TreeIsWrittenAndReadBack) {
  const DiskTree tree = {{"a", "bytes"}, {"f", {}}, {"f/empty", ""}};
  const std::string folder = absl::StrCat(testing::TempDir(), "/tree");
  ASSERT_OK(WriteTree(tree, folder));
  EXPECT_EQ(ReadTree(folder).value(), tree);
}

}  // namespace
}  // namespace tessera::disk_log
