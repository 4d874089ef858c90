#include "tests/bench/cluster_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "tessera/local_cluster.h"

namespace tessera {
namespace bench {
namespace {

// What the cluster's process does until its lifeline closes.
int ServeCluster(const LocalCluster::Options& options, int report, int lifeline) {
  setpgid(0, 0);
  const auto cluster = LocalCluster::Start(options);
  if (!cluster.ok()) {
    fprintf(stderr, "cluster: %s\n", cluster.status().ToString().c_str());
    return 1;
  }
  std::string addresses = (*cluster)->coordinator_address();
  for (int worker = 0; worker < options.num_workers; ++worker)
    absl::StrAppend(&addresses, " ", (*cluster)->worker_address(worker));
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

struct ProcessStat {
  pid_t group = 0;
  long long ticks = 0, faults = 0;
};

// Fields of /proc/PID/stat after the name: state ppid pgrp ... minflt (8th) cminflt majflt cmajflt
// utime stime.
ProcessStat ReadStat(pid_t pid) {
  ProcessStat stat;
  FILE* file = fopen(absl::StrCat("/proc/", pid, "/stat").c_str(), "r");
  if (file == nullptr) return stat;
  long long minor = 0, major = 0, user = 0, system = 0;
  int group = 0;
  if (fscanf(file, "%*d (%*[^)]) %*c %*d %d %*d %*d %*d %*u %lld %*u %lld %*u %lld %lld", &group,
             &minor, &major, &user, &system) == 5) {
    stat = {group, user + system, minor + major};
  }
  fclose(file);
  return stat;
}

std::vector<pid_t> ProcessesOfGroup(pid_t group) {
  std::vector<pid_t> found;
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return found;
  while (const dirent* entry = readdir(processes)) {
    const pid_t pid = atoi(entry->d_name);
    if (pid > 0 && ReadStat(pid).group == group) found.push_back(pid);
  }
  closedir(processes);
  return found;
}

// "VmRSS" or "VmHWM" of /proc/PID/status.
int64_t StatusBytes(pid_t pid, const std::string& key) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  long long kibibytes = 0;
  while (std::getline(status, line)) {
    if (absl::StartsWith(line, key + ":"))
      sscanf(line.c_str() + key.size() + 1, "%lld", &kibibytes);
  }
  return kibibytes << 10;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterProcess>> ClusterProcess::Start(
    int num_devices, const std::string& executor_binary, int num_workers) {
  LocalCluster::Options options;
  options.num_devices = num_devices;
  options.executor_binary = executor_binary;
  options.num_workers = num_workers;
  int report[2], lifeline[2];
  if (pipe2(report, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  UniqueFd report_read(report[0]), report_write(report[1]);
  if (pipe2(lifeline, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  UniqueFd lifeline_read(lifeline[0]), lifeline_write(lifeline[1]);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork the cluster");
  if (pid == 0) {
    lifeline_write.Reset();
    exit(ServeCluster(options, report_write.get(), lifeline_read.get()));
  }
  std::unique_ptr<ClusterProcess> cluster(new ClusterProcess());
  cluster->pid_ = pid;
  cluster->lifeline_ = std::move(lifeline_write);
  report_write.Reset();
  const std::string text = ReadAll(report_read.get());
  const std::vector<std::string> addresses =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  if (addresses.size() != static_cast<size_t>(1 + num_workers))
    return absl::InternalError("the cluster did not start");
  cluster->coordinator_address_ = addresses[0];
  cluster->worker_addresses_.assign(addresses.begin() + 1, addresses.end());
  return cluster;
}

ClusterProcess::~ClusterProcess() {
  lifeline_.Reset();
  int status;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

ClusterProcess::Used ClusterProcess::Use() const {
  Used used;
  for (const pid_t pid : ProcessesOfGroup(pid_)) {
    const ProcessStat stat = ReadStat(pid);
    used.cpu_ns += stat.ticks * (1000000000 / sysconf(_SC_CLK_TCK));
    (pid == pid_ ? used.control_page_faults : used.executor_page_faults) += stat.faults;
  }
  return used;
}

std::map<pid_t, int64_t> ClusterProcess::MarkMemory() const {
  std::map<pid_t, int64_t> mark;
  for (const pid_t pid : ProcessesOfGroup(pid_)) {
    std::ofstream(absl::StrCat("/proc/", pid, "/clear_refs")) << "5";  // The peak is what there is.
    mark[pid] = StatusBytes(pid, "VmRSS");
  }
  return mark;
}

int64_t ClusterProcess::PeakGrowthBytes(const std::map<pid_t, int64_t>& mark) const {
  int64_t growth = 0;
  for (const auto& [pid, bytes] : mark)
    growth += std::max<int64_t>(0, StatusBytes(pid, "VmHWM") - bytes);
  return growth;
}

int64_t SharedBytesOf(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/smaps"));
  int64_t kibibytes = 0;
  bool is_shared = false;
  for (std::string line; std::getline(maps, line);) {
    // A mapping's own line has an address range; those of its figures have a name and a colon.
    if (line.find('-') < line.find(' ')) is_shared = line.find("/memfd:") != std::string::npos;
    long long value = 0;
    if (is_shared && sscanf(line.c_str(), "Pss: %lld kB", &value) == 1) kibibytes += value;
  }
  return kibibytes * 1024;
}

int64_t ClusterProcess::SharedBytes() const {
  int64_t bytes = 0;
  for (const pid_t pid : ProcessesOfGroup(pid_)) bytes += SharedBytesOf(pid);
  return bytes;
}

}  // namespace bench
}  // namespace tessera
