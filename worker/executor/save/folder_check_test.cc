#include "worker/executor/save/folder_check.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FolderCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-folders-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    root_ = folder_ + "/root";
    std::filesystem::create_directories(root_ + "/mine");
    std::filesystem::create_directories(folder_ + "/root2");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_, root_;
};

TEST_F(FolderCheckTest, PathBelowAFolderMayBeWhetherItIsThereOrNot) {
  for (const char* name : {"/mine", "/mine/c", "/a/b/c", "//a/./b"})
    EXPECT_OK(CheckBelow(root_ + name, {"/nowhere", root_})) << name;
  EXPECT_OK(CheckBelow("/anything", {"/"}));
}

TEST_F(FolderCheckTest, KeyOfAnObjectStoreIsBelowRootsInThatStoreAlone) {
  const std::vector<std::string> roots = {"/", "s3://bucket", "s3://shared/runs"};
  for (const char* path : {"s3://bucket/c", "s3://shared/runs/a/c"})
    EXPECT_OK(CheckBelow(path, roots)) << path;
  for (const char* path : {"s3://shared/c", "s3://shared/runs", "s3://shared/runs2/c",
                           "s3://bucket2/c", "s3://bucket/../c", "gs://bucket/c"}) {
    EXPECT_THAT(CheckBelow(path, roots),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("s3://shared/runs")))
        << path;
  }
  // Which is what a relative path would be.
  EXPECT_THAT(
      CheckBelow(std::filesystem::current_path().string() + "/s3:/bucket/c", {"s3://bucket"}),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("s3://bucket")));
}

TEST_F(FolderCheckTest, PathElsewhereIsRefusedNamingTheFolders) {
  for (const std::string& path : {root_, root_ + "/", root_ + "2/c", root_ + "/../root2/c",
                                  std::string("relative"), std::string("/"), std::string()}) {
    EXPECT_THAT(CheckBelow(path, {root_}),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("--save-root"), HasSubstr(root_))))
        << path;
  }
  EXPECT_THAT(CheckBelow(root_ + "/c", {}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("allows none")));
}

TEST_F(FolderCheckTest, LinkThatLeadsOutOfTheFolderIsRefusedAndOneWithinItIsNot) {
  std::filesystem::create_symlink(folder_ + "/root2", root_ + "/out");
  std::filesystem::create_symlink(folder_ + "/root2/none", root_ + "/file");
  std::filesystem::create_symlink(root_ + "/mine", root_ + "/in");
  EXPECT_THAT(CheckBelow(root_ + "/out/c", {root_}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(folder_ + "/root2/c")));
  EXPECT_FALSE(CheckBelow(root_ + "/file", {root_}).ok());
  EXPECT_OK(CheckBelow(root_ + "/in/c", {root_}));
}

TEST_F(FolderCheckTest, FolderMayItselfBeBehindALink) {
  std::filesystem::create_symlink(root_, folder_ + "/data");
  EXPECT_OK(CheckBelow(folder_ + "/data/c", {folder_ + "/data"}));
  EXPECT_OK(CheckBelow(root_ + "/c", {folder_ + "/data"}));
}

}  // namespace
}  // namespace tessera
