#include "worker/keeper/process_state.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Of this process, and does nothing.
pid_t StartIdle() {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  return pid;
}
void End(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(ProcessStateTest, ProcessThatIsStoppedIsToldWithItsThread) {
  const pid_t pid = StartIdle();
  EXPECT_FALSE(IsStopped(pid));
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  while (!IsStopped(pid)) sched_yield();
  EXPECT_THAT(DescribeProcess(pid),
              AllOf(HasSubstr(absl::StrCat("process ", pid, ", state T (stopped)")),
                    HasSubstr(absl::StrCat("thread ", pid, " 'process_state_t', T (stopped)"))));
  End(pid);
  EXPECT_FALSE(IsStopped(pid));
  EXPECT_EQ(DescribeProcess(pid), absl::StrCat("process ", pid));
}

TEST(ProcessStateTest, StacksAreToldOrThatTheyMayNotBeRead) {
  const pid_t pid = StartIdle();
  std::string line;
  const bool may = std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/stack")), line).good();
  const std::string refusal = "; kernel stacks: not readable without CAP_SYS_ADMIN, which root has";
  EXPECT_THAT(DescribeProcess(pid), HasSubstr(may ? ", kernel stack " : refusal));
  End(pid);
}

// What /proc has of process 7 is what the test writes.
class WrittenProcTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(proc_.data()), nullptr);
    Write("status", "Name:\tx\nState:\tS (sleeping)\n");
  }
  void TearDown() override { std::filesystem::remove_all(proc_); }
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = proc_ + "/7/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void WriteThread(int thread, const std::string& state, const std::string& name) {
    const std::string folder = absl::StrCat("task/", thread, "/");
    Write(folder + "status", "State:\t" + state + "\n");
    Write(folder + "comm", name + "\n");
    Write(folder + "wchan", "rpc_wait_bit");
    Write(folder + "syscall", "262 0x3 0x7f 0x0 0x0 0x0 0x0 0x1 0x2");
    Write(folder + "stack", "[<0>] rpc_wait_bit+0x1/0x2\n[<0>] nfs_getattr+0x30/0x80 [nfs]\n");
  }
  std::string Describe() { return DescribeProcess(7, proc_); }

  std::string proc_ = testing::TempDir() + "/proc-XXXXXX";
};

TEST_F(WrittenProcTest, ThreadThatNoSignalReachesComesFirstWithItsStack) {
  WriteThread(7, "S (sleeping)", "main");
  Write("task/7/wchan", "0");
  Write("task/7/syscall", "running");
  Write("task/7/stack", "");
  WriteThread(9, "D (disk sleep)", "saver");
  EXPECT_EQ(Describe(),
            "process 7, state S (sleeping); thread 9 'saver', D (disk sleep) in rpc_wait_bit, "
            "system call 262, kernel stack rpc_wait_bit < nfs_getattr; "
            "thread 7 'main', S (sleeping)");
}

TEST_F(WrittenProcTest, WhatTheProcessChoseIsEscapedAndAllHasABound) {
  for (int thread = 7; thread < 40; ++thread)
    WriteThread(thread, "D (disk sleep)", "a\n\x1b[31m'; thread 1 \xff" + std::string(9000, 'x'));
  Write("task/8/stack", std::string(100'000, 'f'));
  const std::string text = Describe();
  EXPECT_THAT(text, AllOf(HasSubstr("'a\\n\\x1b[31m\\'; thread 1 \\xffxxx"), Not(HasSubstr("\n"))));
  EXPECT_LE(text.size(), kMaxProcessTextBytes);
}

TEST_F(WrittenProcTest, ThreadsBeyondTheFirstAreCounted) {
  for (int thread = 7; thread < 40; ++thread) WriteThread(thread, "R (running)", "t");
  EXPECT_THAT(Describe(), AllOf(HasSubstr("thread 14 "), Not(HasSubstr("thread 15 ")),
                                HasSubstr("; and 25 threads more")));
}

TEST_F(WrittenProcTest, FilesThatAreNotThereAreLeftOut) {
  Write("task/7/status", "State:\tR (running)\n");
  EXPECT_EQ(Describe(), "process 7, state S (sleeping); thread 7 '', R (running)");
}

}  // namespace
}  // namespace tessera
