// Two hosts, as far as the kernel can tell: each worker in a network namespace of its own, joined
// by a bridge, and nothing else between them but that.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ExecutorsOf;
using testing_support::ReadFile;

absl::Status WriteText(const std::string& path, const std::string& text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
    return absl::OkStatus();
  return ErrnoStatus(errno, path);
}

absl::Status Shell(const std::string& command) {
  if (system(absl::StrCat(command, " >/dev/null 2>&1").c_str()) == 0) return absl::OkStatus();
  return absl::UnavailableError(command);
}

// As root at once, else as the root of a user namespace. Only while the process has one thread.
absl::Status EnterOwnNetworkNamespace() {
  if (unshare(CLONE_NEWNET) != 0) {
    const int uid = geteuid(), gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return ErrnoStatus(errno, "unshare");
    RETURN_IF_ERROR(WriteText("/proc/self/setgroups", "deny"));
    RETURN_IF_ERROR(WriteText("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1")));
    RETURN_IF_ERROR(WriteText("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1")));
  }
  return Shell(
      "ip link set lo up && ip link add bridge0 type bridge && ip link set bridge0 up && "
      "ip address add 10.77.0.1/24 dev bridge0");
}

// A process that does nothing but have a network namespace, until it is killed.
absl::StatusOr<int> StartHost() {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const int pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char ok = unshare(CLONE_NEWNET) == 0 ? 1 : 0;
    if (write(ready[1], &ok, 1) != 1) _exit(1);
    while (true) pause();
  }
  char ok = 0;
  const bool told = read(ready[0], &ok, 1) == 1;
  close(ready[0]);
  close(ready[1]);
  if (told && ok == 1) return pid;
  return absl::UnavailableError("a network namespace for a host");
}

absl::Status JoinToBridge(int pid, const std::string& name, const std::string& address) {
  const std::string enter = absl::StrCat("nsenter --net=/proc/", pid, "/ns/net ip ");
  return Shell(absl::StrCat("ip link add ", name, " type veth peer name eth0 netns ", pid,
                            " && ip link set ", name, " master bridge0 && ip link set ", name,
                            " up && ", enter, "link set lo up && ", enter, "link set eth0 up && ",
                            enter, "address add ", address, "/24 dev eth0"));
}

class NetworkNamespacesTest : public ProcessCluster {
 protected:
  static void SetUpTestSuite() { network_ = MakeNetwork(); }
  static void TearDownTestSuite() {
    for (const Host& host : made_) {
      if (host.pid == 0) continue;
      kill(host.pid, SIGKILL);
      waitpid(host.pid, nullptr, 0);
    }
  }
  void SetUp() override {
    ProcessCluster::SetUp();
    if (!network_.ok()) GTEST_SKIP() << "no network namespaces: " << network_;
    ASSERT_FALSE(UndisturbedModel().empty());
    split_ = true;
    hosts_ = made_;
  }
  void StartBoth() {
    StartCoordinator();
    StartWorker();
    StartSecondWorker();
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  }

 private:
  static absl::Status MakeNetwork() {
    RETURN_IF_ERROR(EnterOwnNetworkNamespace());
    made_.push_back({0, "10.77.0.1"});
    for (const char* name : {"w", "x"}) {
      ASSIGN_OR_RETURN(const int pid, StartHost());
      made_.push_back({pid, absl::StrCat("10.77.0.", made_.size() + 1)});
      RETURN_IF_ERROR(JoinToBridge(pid, name, made_.back().address));
    }
    return absl::OkStatus();
  }

  static absl::Status network_;
  static std::vector<Host> made_;
};

absl::Status NetworkNamespacesTest::network_;
std::vector<ProcessCluster::Host> NetworkNamespacesTest::made_;

TEST_F(NetworkNamespacesTest, ModelIsThatOfOneWorker) {
  StartBoth();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(NetworkNamespacesTest, CutWireIsAnErrorByNameAndTheRunGoesOnWhenItIsMended) {
  collective_timeout_ = absl::Seconds(2);
  pause_at_ = kSteps / 2;
  StartBoth();
  for (int rank = 0; rank < kWorldSize; ++rank) AwaitStep(rank, kSteps / 2);
  // Between the hosts: the coordinator hears both, and they do not hear each other.
  const auto cut = [this](const char* verb) {
    return Shell(absl::StrCat("nsenter --net=/proc/", hosts_[2].pid, "/ns/net ip route ", verb,
                              " blackhole ", hosts_[1].address, "/32"));
  };
  ASSERT_OK(cut("add"));
  Resume();
  ASSERT_TRUE(testing_support::Eventually([this] {
    return absl::StrContains(ReadFile(folder_ + "/coordinator.log"), "waited for ranks");
  })) << ReadFile(folder_ + "/coordinator.log");
  ASSERT_OK(cut("del"));
  EXPECT_EQ(Finish(), UndisturbedModel());
}

}  // namespace
}  // namespace tessera
