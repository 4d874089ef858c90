// MPS, found by traces that the test makes: a socket, and processes of its name.
#include "worker/device/cuda/mps.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class MpsTest : public testing::Test {
 protected:
  void SetUp() override {
    // Short: the name of a socket has room for 107 characters.
    char folder[] = "/tmp/mps_test_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    pipes_ = absl::StrCat(folder, "/pipes");
    proc_ = absl::StrCat(folder, "/proc");
    std::filesystem::create_directory(pipes_);
    std::filesystem::create_directory(proc_);
    AddProcess("1", "init");
    AddProcess("self", "nvidia-cuda-mps");  // No number, so no process.
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void AddProcess(const std::string& id, const std::string& name) {
    std::filesystem::create_directory(absl::StrCat(proc_, "/", id));
    std::ofstream(absl::StrCat(proc_, "/", id, "/comm")) << name << "\n";
  }
  // What the daemon listens to; its name stays when the descriptor is closed.
  UniqueFd Bind() {
    UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, absl::StrCat(pipes_, "/control").c_str(),
                 sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_fd.get(), 1), 0);
    return socket_fd;
  }
  Mps Verdict() const { return JudgeMps(ProbeMps(pipes_, proc_)).verdict; }

  std::string folder_, pipes_, proc_;
};

TEST_F(MpsTest, WithoutATraceItDoesNotRun) {
  EXPECT_EQ(Verdict(), Mps::kNotRunning);
  EXPECT_TRUE(absl::IsNotFound(ProbeMps(pipes_, proc_).control));
  EXPECT_EQ(JudgeMps(ProbeMps(folder_ + "/nothing", folder_ + "/nothing")).verdict,
            Mps::kNotRunning);
}

TEST_F(MpsTest, RunsWhereItsSocketAndItsProcessAre) {
  const UniqueFd daemon = Bind();
  AddProcess("17", "nvidia-cuda-mps");
  AddProcess("18", "nvidia-cuda-mps");
  EXPECT_EQ(Verdict(), Mps::kRunning);
  EXPECT_EQ(ProbeMps(pipes_, proc_).processes, 2);
}

TEST_F(MpsTest, SocketThatWasLeftBehindIsUnclear) {
  Bind().Reset();
  EXPECT_EQ(Verdict(), Mps::kUnclear);
  EXPECT_THAT(JudgeMps(ProbeMps(pipes_, proc_)).reason, HasSubstr("left behind"));
}

TEST_F(MpsTest, DaemonOfAnotherFolderIsElsewhereAndTheReasonNamesTheOneThatWasLookedAt) {
  AddProcess("17", "nvidia-cuda-mps");
  EXPECT_EQ(Verdict(), Mps::kElsewhere);
  EXPECT_THAT(JudgeMps(ProbeMps(pipes_, proc_)).reason, HasSubstr(pipes_ + "/control"));
}

TEST_F(MpsTest, PipeCountsAsTheSocketAndAFileDoesNot) {
  AddProcess("17", "nvidia-cuda-mps");
  const std::string control = pipes_ + "/control";
  std::ofstream(control) << "a file";
  EXPECT_EQ(Verdict(), Mps::kElsewhere);
  std::filesystem::remove(control);
  ASSERT_EQ(mkfifo(control.c_str(), 0600), 0);
  EXPECT_EQ(Verdict(), Mps::kRunning);
}

// As the kernel shows it: names of processes are cut.
TEST_F(MpsTest, ProcessIsKnownByWhatTheKernelKeepsOfItsName) {
  int ready[2], end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(end[1]);
    char byte = prctl(PR_SET_NAME, "nvidia-cuda-mps-control") == 0 ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    _exit(read(end[0], &byte, 1) == 0 ? 0 : 1);  // Until the test ends it.
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  std::filesystem::create_directory_symlink(absl::StrCat("/proc/", child),
                                            absl::StrCat(proc_, "/", child));
  EXPECT_EQ(ProbeMps(pipes_, proc_).processes, 1);
  for (int fd : {ready[0], ready[1], end[0], end[1]}) close(fd);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ProbeMps(pipes_, proc_).processes, 0) << "gone";
}

}  // namespace
}  // namespace tessera
