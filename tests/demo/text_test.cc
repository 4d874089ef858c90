#include "tests/demo/text.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::demo {
namespace {

using testing::HasSubstr;

class TextTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/text-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name) << content;
  }
  std::string folder_;
};

TEST_F(TextTest, MissingEmptyAndShortTextsAreNamed) {
  EXPECT_THAT(ReadText("/no/such/text", 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/text")));
  Write("empty", "");
  EXPECT_THAT(ReadText(folder_ + "/empty", 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is empty")));
  Write("short", "four");
  EXPECT_THAT(ReadText(folder_ + "/short", 5),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 bytes, at least 5")));
}

TEST_F(TextTest, FolderIsReadInNameOrderWithoutItsIndexFiles) {
  Write("b", "second");
  Write("a", "first ");
  Write("a.dat", "index");
  Write("c", std::string("bi\0nary", 7));
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadText(folder_, 1));
  EXPECT_EQ(text, "first second");
}

TEST(WindowStartsTest, SameStepSameWindowsAndEachLiesInTheText) {
  const auto starts = WindowStarts(1, 5, 2, 64, 100, 150);
  EXPECT_EQ(starts, WindowStarts(1, 5, 2, 64, 100, 150));
  EXPECT_NE(starts, WindowStarts(1, 6, 2, 64, 100, 150));
  EXPECT_NE(starts, WindowStarts(1, 5, 3, 64, 100, 150));
  for (int64_t start : starts) {
    EXPECT_GE(start, 0);
    EXPECT_LE(start, 50);
  }
}

}  // namespace
}  // namespace tessera::demo
