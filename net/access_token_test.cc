#include "net/access_token.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class AccessTokenTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = "/tmp/tessera-token-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_ + "/token";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }

  std::string folder_;
};

TEST_F(AccessTokenTest, IsMadeOnceWithItsFolderForItsUserAlone) {
  const std::string path = folder_ + "/a/b/token";
  EXPECT_THAT(ReadAccessToken(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  ASSERT_OK_AND_ASSIGN(const std::string made, ReadOrMakeAccessToken(path));
  EXPECT_EQ(made.size(), 64);
  EXPECT_EQ(ReadOrMakeAccessToken(path).value_or(""), made);
  EXPECT_EQ(ReadAccessToken(path).value_or(""), made);
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/a/b"), {}), 1)
      << "no temporary file stays";
}

TEST_F(AccessTokenTest, ThoseWhoMakeItAtOnceHaveTheSame) {
  std::vector<std::string> seen(8);
  std::vector<std::thread> threads;
  for (std::string& token : seen)
    threads.emplace_back([&] { token = ReadOrMakeAccessToken(folder_ + "/token").value_or(""); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& token : seen) EXPECT_EQ(token, seen[0]);
  EXPECT_EQ(seen[0].size(), 64);
}

TEST_F(AccessTokenTest, FileThatOthersMayReadIsRefused) {
  const std::string path = Write(std::string(64, 'a'), 0640);
  EXPECT_THAT(ReadOrMakeAccessToken(path),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 600")));
}

TEST_F(AccessTokenTest, FileOfAnotherUserIsRefused) {
  const std::string path = Write(std::string(64, 'a'));
  if (chown(path.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "this user gives no file away";
  EXPECT_THAT(ReadAccessToken(path),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(path)));
}

TEST_F(AccessTokenTest, OtherContentsAreRefused) {
  for (const std::string& text :
       {std::string(), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'x')}) {
    EXPECT_THAT(ReadAccessToken(Write(text)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 hexadecimal digits")))
        << text;
  }
  EXPECT_EQ(ReadAccessToken(Write(std::string(64, 'a') + "\n")).value_or(""), std::string(64, 'a'));
  EXPECT_THAT(ReadAccessToken(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
}

}  // namespace
}  // namespace tessera
