// What a worker refuses to start with, and which clients may connect to it.
#include "worker/service/worker_server.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

// errno of connecting to `path` as `uid`, in a process of its own; 0: connected.
int ConnectAs(uid_t uid, const std::string& path, int type) {
  const pid_t pid = fork();
  if (pid == 0) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    const int fd = socket(AF_UNIX, type, 0);
    if (setuid(uid) != 0) _exit(255);
    const sockaddr* to = reinterpret_cast<const sockaddr*>(&address);
    _exit(connect(fd, to, sizeof(address)) == 0 ? 0 : errno);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WEXITSTATUS(status);
}

// Root of a user namespace may well be unable to.
bool CanBecomeNobody() { return ConnectAs(kNobody, "/nonexistent", SOCK_STREAM) == ENOENT; }

class WorkerServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-worker-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    options_.worker_id = "w";
    options_.coordinator_address = "127.0.0.1:1";  // Nobody there; the worker waits for it.
    options_.socket_dir = folder_;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  WorkerServer::Options options_;
};

TEST_F(WorkerServerTest, FolderAndCallsAreForTheirOwnUserAlone) {
  options_.socket_dir = folder_ + "/made";
  ASSERT_OK_AND_ASSIGN(const auto server, WorkerServer::Start(options_));
  EXPECT_EQ(ModeOf(options_.socket_dir), 0700);
  EXPECT_EQ(ModeOf(options_.socket_dir + "/worker.sock"), 0600);
  EXPECT_EQ(ModeOf(options_.socket_dir + "/descriptors.sock"), 0666)
      << "for who is let into the folder; each request is checked";
}

TEST_F(WorkerServerTest, AnotherUserWhomTheFolderLetsInReachesTheDescriptorSocketAlone) {
  if (!CanBecomeNobody()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  ASSERT_OK_AND_ASSIGN(const auto server, WorkerServer::Start(options_));
  EXPECT_EQ(ConnectAs(0, folder_ + "/worker.sock", SOCK_STREAM), 0);
  EXPECT_EQ(ConnectAs(kNobody, folder_ + "/worker.sock", SOCK_STREAM), EACCES);
  EXPECT_EQ(ConnectAs(kNobody, folder_ + "/descriptors.sock", SOCK_SEQPACKET), 0);
}

TEST_F(WorkerServerTest, FolderThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0770, 0707, 01777}) {
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    EXPECT_THAT(WorkerServer::Start(options_),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(folder_)));
  }
}

TEST_F(WorkerServerTest, FolderOfAnotherUserIsRefused) {
  if (!CanBecomeNobody()) GTEST_SKIP() << "needs root, to give the folder away";
  ASSERT_EQ(chown(folder_.c_str(), kNobody, 0), 0);
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("to user 65534")));
}

TEST_F(WorkerServerTest, WhatNoCoordinatorWouldRegisterIsRefusedByItsFlag) {
  for (const int num_devices : {0, -1, 1025, 1000000}) {
    WorkerServer::Options options = options_;
    options.num_devices = num_devices;
    EXPECT_THAT(WorkerServer::Start(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--devices is ")));
  }
  for (const char* id : {"", "a b", "\xff"}) {
    WorkerServer::Options options = options_;
    options.worker_id = id;
    EXPECT_THAT(WorkerServer::Start(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--worker-id '")));
  }
}

TEST_F(WorkerServerTest, CoordinatorOfAnotherMachineNeedsTlsOrAnExplicitPermit) {
  options_.coordinator_address = "node7.invalid:7070";
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("node7.invalid"), HasSubstr("--insecure-connect"))));
  options_.insecure_connect = true;
  EXPECT_OK(WorkerServer::Start(options_));
}

TEST_F(WorkerServerTest, DataHostOfTheNetworkNeedsAPermitAndIsAnAddress) {
  options_.data_host = "10.0.0.1";
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--insecure-data")));
  options_.insecure_data = true;
  options_.data_host = "192.0.2.1";
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1")));
  options_.data_host = "not an address";
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--data-host")));
  options_.data_host = "127.0.0.2";
  options_.insecure_data = false;
  EXPECT_OK(WorkerServer::Start(options_));
}

TEST_F(WorkerServerTest, HttpForOtherMachinesNeedsTlsOrAPermit) {
  options_.http_listen_address = "0.0.0.0:0";
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--http-listen: "), HasSubstr("--insecure-http-listen"))));
  options_.insecure_http_listen = true;
  ASSERT_OK_AND_ASSIGN(const auto server, WorkerServer::Start(options_));
  EXPECT_GT(server->http_port(), 0);
}

TEST_F(WorkerServerTest, TlsFilesAreReadAtTheStart) {
  options_.tls.ca_path = "/nonexistent/ca.pem";
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TLS needs all")));
  options_.tls.certificate_path = options_.tls.key_path = "/nonexistent/w.pem";
  EXPECT_THAT(WorkerServer::Start(options_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/ca.pem")));
}

TEST_F(WorkerServerTest, OfManyThatStartAtOnceInAFolderOneServes) {
  constexpr int kWorkers = 8;
  std::vector<absl::StatusOr<std::unique_ptr<WorkerServer>>> servers(kWorkers);
  std::vector<std::thread> threads;
  for (auto& server : servers) {
    threads.emplace_back([&] { server = WorkerServer::Start(options_); });
  }
  for (std::thread& thread : threads) thread.join();
  int num_serving = 0;
  for (auto& server : servers) {
    num_serving += server.ok();
    if (server.ok()) continue;
    EXPECT_THAT(server, StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(folder_)));
  }
  EXPECT_EQ(num_serving, 1);
  EXPECT_EQ(access((folder_ + "/worker.sock").c_str(), F_OK), 0);
  EXPECT_EQ(access((folder_ + "/descriptors.sock").c_str(), F_OK), 0);
  servers.clear();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_OK(WorkerServer::Start(options_)) << "once it is free";
}

}  // namespace
}  // namespace tessera
