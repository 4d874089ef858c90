#include "checkpoint/storage/save_root.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class SaveRootTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_ = "/tmp/tessera-roots-XXXXXX";
};

TEST_F(SaveRootTest, FolderOfAnOwnerIsMadeOnceForItAndItsGroupAlone) {
  const std::string root = folder_ + "/1000";
  ASSERT_OK(MakeSaveRoot(root));
  ASSERT_OK(MakeSaveRoot(root));
  struct stat made;
  ASSERT_EQ(lstat(root.c_str(), &made), 0);
  EXPECT_TRUE(S_ISDIR(made.st_mode));
  EXPECT_EQ(made.st_mode & 0027, 0u);
  EXPECT_EQ(made.st_mode & 0700, 0700u);
}

TEST_F(SaveRootTest, FolderThatIsToHoldItIsNotMade) {
  EXPECT_THAT(MakeSaveRoot(folder_ + "/unmounted/1000"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(folder_ + "/unmounted/1000")));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/unmounted"));
}

TEST_F(SaveRootTest, LinkAtItsPlaceIsNotFollowed) {
  std::filesystem::create_symlink(folder_ + "/elsewhere", folder_ + "/1000");
  ASSERT_OK(MakeSaveRoot(folder_ + "/1000"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/elsewhere"));
}

TEST_F(SaveRootTest, InAnObjectStoreThereIsNothingToMake) {
  EXPECT_OK(MakeSaveRoot("s3://bucket/1000"));
}

}  // namespace
}  // namespace tessera
