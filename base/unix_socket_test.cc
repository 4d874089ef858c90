#include "base/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::IsSubsetOf;

constexpr uid_t kOtherUser = 65534;

class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  mode_t ModeOf(const std::string& path) const {
    struct stat info = {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  }

  std::string folder_ = "/tmp/tessera-XXXXXX";  // The sandbox's own is too deep for a socket.
  std::string path() const { return folder_ + "/s"; }
};

TEST_F(UnixSocketTest, FileHasTheModeWhateverTheUmask) {
  const mode_t umask_before = umask(077);
  for (const mode_t mode : {0600u, 0666u}) {
    EXPECT_OK(ListenUnixSocket(path(), SOCK_STREAM, mode));
    EXPECT_EQ(ModeOf(path()), mode);
  }
  umask(umask_before);
  // And nothing else is left there.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(UnixSocketTest, PathOfAnyLengthThatClientsCanNameWorks) {
  std::string longest = folder_ + "/";
  longest.append(sizeof(sockaddr_un::sun_path) - 1 - longest.size(), 'x');
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener, ListenUnixSocket(longest, SOCK_STREAM, 0600));
  ASSERT_OK_AND_ASSIGN(const sockaddr_un address, UnixSocketAddress(longest));
  const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(ConnectUnixSocket(client.get(), address), 0);
  EXPECT_THAT(ListenUnixSocket(longest + "x", SOCK_STREAM, 0600),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107 bytes")));
}

TEST_F(UnixSocketTest, FileThatIsNoSocketStays) {
  const UniqueFd file(open(path().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_THAT(ListenUnixSocket(path(), SOCK_STREAM, 0600),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("something else is there")));
  EXPECT_TRUE(std::filesystem::is_regular_file(path()));
}

TEST_F(UnixSocketTest, OfTwoThatListenAtOnePathOneIsRefused) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd first, ListenUnixSocket(path(), SOCK_STREAM, 0600));
  EXPECT_THAT(ListenUnixSocket(path(), SOCK_STREAM, 0600),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path())));
}

// A client that is refused by a socket half made has no reason to try again.
TEST_F(UnixSocketTest, AnotherUserFindsNoSocketOrOneThatTakesHim) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  std::atomic<bool> done = false;
  std::set<int> errors;
  std::thread client([&] {
    // Of this thread alone: glibc's setresuid would change all of them.
    ASSERT_EQ(syscall(SYS_setresuid, -1, kOtherUser, -1), 0);
    ASSERT_OK_AND_ASSIGN(const sockaddr_un address, UnixSocketAddress(path()));
    // The last connect begins after `done`, with a listener there.
    for (bool last = false; !last;) {
      last = done;
      const UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      errors.insert(ConnectUnixSocket(connection.get(), address));
    }
  });
  // All stay open: a client that found the file before it was unlinked still finds a listener.
  std::vector<UniqueFd> listeners;
  for (int i = 0; i < 500; ++i) {
    if (i > 0) unlink(path().c_str());
    ASSERT_OK_AND_ASSIGN(UniqueFd listener, ListenUnixSocket(path(), SOCK_STREAM, 0666));
    listeners.push_back(std::move(listener));
  }
  done = true;
  client.join();
  EXPECT_THAT(errors, IsSubsetOf({0, ENOENT, EAGAIN}));
  EXPECT_EQ(errors.count(0), 1) << "no connection came while a socket was there";
}

}  // namespace
}  // namespace tessera
