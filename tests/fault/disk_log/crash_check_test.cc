#include "tests/fault/disk_log/crash_check.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::disk_log {
namespace {

using testing::HasSubstr;

DiskRecord Mark(const std::string& text) { return {DiskEvent::kMark, -1, 0, 0, 0, text}; }
DiskRecord Create(const std::string& path, uint64_t inode) {
  return {DiskEvent::kCreate, 0, inode, 0, 0, path};
}
DiskRecord Write(uint64_t inode, const std::string& data) {
  return {DiskEvent::kWrite, 0, inode, 0, 0, "", "", data};
}
DiskRecord Sync(uint64_t inode) { return {DiskEvent::kSync, 0, inode}; }
DiskRecord Rename(const std::string& from, const std::string& to) {
  return {DiskEvent::kRename, 0, 0, 0, 0, from, to};
}

// As one replaces a file rightly: `a` has "1", then "22".
std::vector<DiskRecord> Replaced() {
  return {{DiskEvent::kMakeFolder, 0, 1},
          Mark("begin a"),
          Create("t", 2),
          Write(2, "1"),
          Sync(2),
          Rename("t", "a"),
          Sync(1),
          Mark("end a"),
          Mark("begin a"),
          Create("t", 3),
          Write(3, "22"),
          Sync(3),
          Rename("t", "a"),
          Sync(1),
          Mark("end a")};
}
const Saved kSaved = {{"a", {DiskTree{{"", "1"}}, DiskTree{{"", "22"}}}}};

std::string Wrong(const std::vector<DiskRecord>& records) {
  std::vector<DiskTree> sample;
  return FirstWrong(records, kSaved, /*seed=*/1, &sample);
}

TEST(CrashCheckTest, RightLogHasNoWrongState) { EXPECT_EQ(Wrong(Replaced()), ""); }

TEST(CrashCheckTest, EachSyncThatIsMissingIsFound) {
  int syncs = 0;
  for (size_t i = 0; i < Replaced().size(); ++i) {
    std::vector<DiskRecord> records = Replaced();
    if (records[i].event != DiskEvent::kSync) continue;
    records.erase(records.begin() + i);
    EXPECT_THAT(Wrong(records), HasSubstr("'a' is wrong")) << "without record " << i;
    ++syncs;
  }
  EXPECT_EQ(syncs, 4);
}

TEST(CrashCheckTest, FileThatIsOverwrittenInPlaceIsFound) {
  std::vector<DiskRecord> records = Replaced();
  records[9] = Write(2, "22");
  records.erase(records.begin() + 11, records.begin() + 14);
  records[10] = Sync(2);
  // Its size may be there before its bytes.
  EXPECT_THAT(Wrong(records), HasSubstr("some is lost"));
}

TEST(CrashCheckTest, NameMayBeGoneOnlyOnceItIsRetired) {
  std::vector<DiskRecord> records = Replaced();
  records.push_back({DiskEvent::kUnlink, 0, 0, 0, 0, "a"});
  EXPECT_THAT(Wrong(records), HasSubstr("all is kept"));
  records.insert(records.end() - 1, Mark("retire a"));
  EXPECT_EQ(Wrong(records), "");
}

TEST(CrashCheckTest, VersionsAreThoseAtTheMarksAndTheLogEndsWithTheFolder) {
  const std::string folder = testing::TempDir() + "/checked";
  ASSERT_OK(WriteTree({{"a", "22"}}, folder));
  ASSERT_OK_AND_ASSIGN(const Saved saved, SavedIn(Replaced(), folder));
  EXPECT_EQ(saved, kSaved);
  ASSERT_OK(WriteTree({{"b", ""}}, folder));
  EXPECT_THAT(SavedIn(Replaced(), folder).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("b 0 bytes")));
}

}  // namespace
}  // namespace tessera::disk_log
