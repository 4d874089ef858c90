#include "client/session/fork_closed.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/unique_fd.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class ForkClosedTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    mine_ = UniqueFd(fds[0]);
    peer_ = UniqueFd(fds[1]);
  }
  // A child that lives until TearDown.
  void Fork() {
    child_ = fork();
    if (child_ == 0) {
      while (true) pause();
    }
    ASSERT_GT(child_, 0);
  }
  void TearDown() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }
  // The child's handler has run by then: it runs in fork() itself, before the child does anything.
  bool PeerSeesTheEnd() {
    pollfd wait = {peer_.get(), POLLIN, 0};
    return poll(&wait, 1, /*timeout=*/30'000) == 1 && (wait.revents & POLLHUP) != 0;
  }

  UniqueFd mine_, peer_;
  pid_t child_ = -1;
};

TEST_F(ForkClosedTest, EndsWithTheProcessAlthoughItsChildLives) {
  ForkClosed closed;
  closed.Set(mine_.get());
  Fork();
  closed.Set(-1);
  mine_.Reset();
  EXPECT_TRUE(PeerSeesTheEnd());
}

TEST_F(ForkClosedTest, StaysWithTheParent) {
  ForkClosed closed;
  closed.Set(mine_.get());
  Fork();
  ASSERT_EQ(send(mine_.get(), "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(recv(peer_.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(ForkClosedTest, ChildKnowsWhatItInheritedAndWhatItMade) {
  const ForkClosed parents;
  EXPECT_FALSE(parents.is_inherited());
  child_ = fork();
  if (child_ == 0) _exit(parents.is_inherited() && !ForkClosed().is_inherited() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(std::exchange(child_, -1), &status, 0) > 0 ? status : -1, 0);
  EXPECT_FALSE(parents.is_inherited());
}

TEST_F(ForkClosedTest, WhatIsForgottenIsTheChilds) {
  {
    ForkClosed closed;
    closed.Set(mine_.get());
  }
  Fork();
  mine_.Reset();
  pollfd wait = {peer_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0) << "the child still has it";
}

}  // namespace
}  // namespace tessera
