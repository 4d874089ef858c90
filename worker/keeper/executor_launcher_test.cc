#include "worker/keeper/executor_launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/no_more_threads.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

class ProcessLauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/launcher-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_OK_AND_ASSIGN(sockets_, CreatePacketSocketPair());
  }
  // An executable that does `body`, in the place of tessera-executor.
  std::string Program(const std::string& body) {
    const std::string path = folder_ + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    EXPECT_EQ(chmod(path.c_str(), 0700), 0);
    return path;
  }
  std::unique_ptr<RunningExecutor> Launch(const std::string& body) {
    const auto launcher = NewProcessLauncher(Program(body), {"--extra=1"});
    auto executor = launcher->Launch(std::move(sockets_.second), "toy/3");
    EXPECT_OK(executor);
    return executor.ok() ? *std::move(executor) : nullptr;
  }
  // Waits for the process to close its end of the socket, as its end does.
  void AwaitSocketEnd() {
    EXPECT_THAT(ReceivePacket(sockets_.first.get()),
                StatusIs(absl::StatusCode::kUnavailable, testing::_));
  }

  std::string folder_;
  std::pair<UniqueFd, UniqueFd> sockets_;
};

TEST_F(ProcessLauncherTest, ProgramGetsItsFlagsAndTheSocketAndNoOtherDescriptor) {
  // A descriptor of this process that is close-on-exec, as all of a worker's are.
  const UniqueFd secret(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto executor =
      Launch(absl::StrCat("printf '%s ' \"$@\" > ", folder_, "/args; ls /proc/$$/fd > ", folder_,
                          "/fds; printf hello >&3"));
  ASSERT_NE(executor, nullptr);
  ASSERT_OK_AND_ASSIGN(const Packet packet, ReceivePacket(sockets_.first.get()));
  EXPECT_EQ(packet.bytes, "hello");
  EXPECT_EQ(executor->Wait(), "exit status 0");
  EXPECT_EQ(ReadFile(folder_ + "/args"), "--socket-fd=3 --label=toy/3 --extra=1 ");
  const std::string fds = ReadFile(folder_ + "/fds");
  EXPECT_THAT(fds, HasSubstr("3\n"));
  EXPECT_THAT(fds, testing::Not(HasSubstr(absl::StrCat(secret.get(), "\n"))));
}

TEST_F(ProcessLauncherTest, WaitSaysHowItEnded) {
  EXPECT_EQ(Launch("exit 7")->Wait(), "exit status 7");
  ASSERT_OK_AND_ASSIGN(sockets_, CreatePacketSocketPair());
  EXPECT_EQ(Launch("kill -TERM $$")->Wait(), "killed by signal 15");
}

TEST_F(ProcessLauncherTest, KillEndsItWhateverItDoes) {
  const auto executor = Launch("trap '' TERM INT; while true; do sleep 1000; done");
  executor->Kill();
  EXPECT_EQ(executor->Wait(), "killed by signal 9");
  executor->Kill();  // Harmless: that process id may be another's by now.
}

TEST_F(ProcessLauncherTest, DestroyingItLeavesNoProcess) {
  auto executor = Launch("exec sleep 1000");
  const int pid = executor->pid();
  EXPECT_EQ(kill(pid, 0), 0);
  executor.reset();
  EXPECT_NE(kill(pid, 0), 0) << "neither running nor a zombie";
}

// The kernel ties the process to the thread that launched it, so to the worker.
TEST_F(ProcessLauncherTest, ProcessDiesWithItsLauncher) {
  std::unique_ptr<RunningExecutor> executor;
  std::thread supervisor([&] {
    executor = Launch("printf up >&3; exec sleep 1000");
    EXPECT_OK(ReceivePacket(sockets_.first.get()));
  });
  supervisor.join();
  ASSERT_NE(executor, nullptr);
  AwaitSocketEnd();
  EXPECT_EQ(executor->Wait(), "killed by signal 9");
}

TEST_F(ProcessLauncherTest, MissingBinaryIsNamed) {
  const auto launcher = NewProcessLauncher("/nonexistent/tessera-executor", {});
  EXPECT_THAT(launcher->Launch(std::move(sockets_.second), "toy/0"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/tessera-executor")));
}

TEST(ThreadLauncherTest, ThreadEndsWhenItsSocketCloses) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  const auto launcher = NewThreadLauncher();
  ASSERT_OK_AND_ASSIGN(const auto executor, launcher->Launch(std::move(sockets.second), "toy/0"));
  EXPECT_EQ(executor->pid(), getpid());
  sockets.first.Reset();
  EXPECT_EQ(executor->Wait(), "thread ended");
}

TEST(ThreadLauncherTest, MachineWithoutMoreThreadsIsAnError) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  const auto launcher = NewThreadLauncher();
  const NoMoreThreads limit;
  EXPECT_THAT(launcher->Launch(std::move(sockets.second), "toy/0"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("an executor")));
}

TEST_F(ProcessLauncherTest, SaysWhetherItStandsStillAndWhetherItEndedInTime) {
  const auto executor = Launch("while true; do read line <&3; done");
  ASSERT_NE(executor, nullptr);
  EXPECT_FALSE(executor->is_stopped());
  EXPECT_FALSE(executor->EndsWithin(absl::Milliseconds(2)));
  ASSERT_EQ(kill(executor->pid(), SIGSTOP), 0);
  while (!executor->is_stopped()) sched_yield();
  EXPECT_THAT(executor->Describe(),
              HasSubstr(absl::StrCat("process ", executor->pid(), ", state T (stopped)")));
  executor->Kill();
  EXPECT_TRUE(executor->EndsWithin(absl::Seconds(20)));
  EXPECT_EQ(executor->Wait(), "killed by signal 9");
}

}  // namespace
}  // namespace tessera
