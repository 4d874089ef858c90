#include "tests/bench/cluster_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/cpp/local_cluster.h"

namespace tessera {
namespace bench {
namespace {

// What the cluster's process does until its lifeline closes.
int ServeCluster(int num_devices, const std::string& executor_binary, int report, int lifeline) {
  setpgid(0, 0);
  LocalCluster::Options options;
  options.num_devices = num_devices;
  options.executor_binary = executor_binary;
  const auto cluster = LocalCluster::Start(options);
  if (!cluster.ok()) {
    fprintf(stderr, "cluster: %s\n", cluster.status().ToString().c_str());
    return 1;
  }
  const std::string addresses =
      absl::StrCat((*cluster)->coordinator_address(), " ", (*cluster)->worker_address(), "\n");
  if (write(report, addresses.data(), addresses.size()) < 0) return 1;
  close(report);
  char end;
  while (read(lifeline, &end, 1) < 0 && errno == EINTR) {
  }
  return 0;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[256];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, got);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterProcess>> ClusterProcess::Start(
    int num_devices, const std::string& executor_binary) {
  int report[2], lifeline[2];
  if (pipe2(report, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  UniqueFd report_read(report[0]), report_write(report[1]);
  if (pipe2(lifeline, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  UniqueFd lifeline_read(lifeline[0]), lifeline_write(lifeline[1]);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork the cluster");
  if (pid == 0) {
    lifeline_write.Reset();
    exit(ServeCluster(num_devices, executor_binary, report_write.get(), lifeline_read.get()));
  }
  std::unique_ptr<ClusterProcess> cluster(new ClusterProcess());
  cluster->pid_ = pid;
  cluster->lifeline_ = std::move(lifeline_write);
  report_write.Reset();
  const std::string text = ReadAll(report_read.get());
  const std::vector<std::string> addresses =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  if (addresses.size() != 2) return absl::InternalError("the cluster did not start");
  cluster->coordinator_address_ = addresses[0];
  cluster->worker_address_ = addresses[1];
  return cluster;
}

ClusterProcess::~ClusterProcess() {
  lifeline_.Reset();
  int status;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

// Fields of /proc/PID/stat after the name: state ppid pgrp ... utime (12th) stime (13th).
int64_t ClusterProcess::CpuNs() const {
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return 0;
  long long ticks = 0;
  while (const dirent* entry = readdir(processes)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    FILE* file = fopen(absl::StrCat("/proc/", entry->d_name, "/stat").c_str(), "r");
    if (file == nullptr) continue;
    int group = 0;
    long long user = 0, system = 0;
    if (fscanf(file, "%*d (%*[^)]) %*c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld", &group,
               &user, &system) == 3 &&
        group == pid_) {
      ticks += user + system;
    }
    fclose(file);
  }
  closedir(processes);
  return ticks * (1000000000 / sysconf(_SC_CLK_TCK));
}

}  // namespace bench
}  // namespace tessera
