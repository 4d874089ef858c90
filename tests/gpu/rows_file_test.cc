// What is found of a benchmark's rows while it runs.
#include "tests/gpu/rows_file.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;

class RowsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/rows.XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static BenchRow Row(const std::string& name) {
    BenchRow row;
    row.name = name;
    row.unit = "us";
    return row;
  }
  static absl::StatusOr<std::vector<BenchRow>> Read(std::ifstream file) {
    std::stringstream text;
    text << file.rdbuf();
    return RowsFromJson(text.str());
  }

  std::string folder_;
};

TEST_F(RowsFileTest, WhoHasItOpenReadsAllOfAnEarlierPartAndWhoOpensItAllSoFar) {
  const std::string path = folder_ + "/rows.json";
  RowsFile file(path);
  ASSERT_OK(file.Add({Row("one"), Row("two")}));
  std::ifstream earlier(path);
  ASSERT_OK(file.AddError("three", absl::InternalError("refused")));
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> before, Read(std::move(earlier)));
  EXPECT_EQ(before.size(), 2);
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> now, Read(std::ifstream(path)));
  ASSERT_EQ(now.size(), 3);
  EXPECT_EQ(now[1].name, "two");
  EXPECT_EQ(now[2].name, "three");
  EXPECT_THAT(now[2].error, testing::HasSubstr("refused"));
  EXPECT_EQ(RowsToJson(file.rows()), RowsToJson(now));
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

TEST_F(RowsFileTest, WhereNothingCanBeWrittenThatIsAnErrorWithThePath) {
  const std::string path = folder_ + "/missing/rows.json";
  EXPECT_THAT(RowsFile(path).Add({Row("one")}),
              StatusIs(StatusCode::kNotFound, testing::HasSubstr(path)));
  // The name is a folder's: what was written cannot be renamed to it.
  EXPECT_FALSE(RowsFile(folder_).Add({Row("one")}).ok());
  std::filesystem::remove(folder_ + ".new");
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
