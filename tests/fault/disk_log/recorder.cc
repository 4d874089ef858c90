#include "tests/fault/disk_log/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace tessera::disk_log {
namespace {

constexpr int kMaxDescriptors = 4096;

// By descriptor: the inode that is watched there, 0: none. That the number means something else by
// now is told by its inode.
std::atomic<uint64_t> watched_inodes[kMaxDescriptors];

struct Process {
  DiskControl* control = nullptr;
  int log = -1;
  int rank = -1;
};

// The number after the last '/' of the flag --label=JOB/RANK, which is the second one.
int RankOfThisProcess() {
  REAL(open);
  REAL(read);
  REAL(close);
  char line[4096];
  const int fd = real_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t size = fd < 0 ? 0 : real_read(fd, line, sizeof(line) - 1);
  if (fd >= 0) real_close(fd);
  line[size < 0 ? 0 : size] = '\0';
  for (const char* flag = line; flag < line + size; flag += strlen(flag) + 1) {
    if (strncmp(flag, "--label=", 8) != 0) continue;
    const char* slash = strrchr(flag, '/');
    if (slash != nullptr) return atoi(slash + 1);
  }
  return -1;
}

Process Attach() {
  REAL(open);
  REAL(close);
  Process process;
  const char* path = getenv(kControlVariable);
  if (path == nullptr) return process;
  const int fd = real_open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return process;
  REAL(mmap);
  void* page = real_mmap(nullptr, sizeof(DiskControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  real_close(fd);
  if (page == MAP_FAILED) return process;
  process.control = static_cast<DiskControl*>(page);
  process.log = real_open(process.control->log, O_WRONLY | O_APPEND | O_CLOEXEC);
  process.rank = RankOfThisProcess();
  return process;
}

Process this_process;  // Watches nothing until it is attached.

// When the library is loaded: a sanitizer's runtime calls it earlier, when nothing works yet.
__attribute__((constructor)) void AttachThisProcess() { this_process = Attach(); }

const Process& ThisProcess() { return this_process; }

// What of an absolute path follows the folder; false where it is not in there.
bool Relative(const DiskControl& control, const char* path, char* relative, size_t size) {
  const size_t length = strlen(control.folder);
  if (strncmp(path, control.folder, length) != 0) return false;
  if (path[length] != '\0' && path[length] != '/') return false;
  while (path[length] == '/') ++path;
  snprintf(relative, size, "%s", path + length);
  for (size_t end = strlen(relative); end > 0 && relative[end - 1] == '/'; --end)
    relative[end - 1] = '\0';
  return true;
}

bool IsWatched(int fd, uint64_t* inode) {
  if (fd < 0 || fd >= kMaxDescriptors) return false;
  *inode = watched_inodes[fd].load();
  if (*inode == 0) return false;
  struct stat info;
  if (fstat(fd, &info) == 0 && info.st_ino == *inode) return true;
  watched_inodes[fd].store(0);
  return false;
}

// With the lock, so that no other thread does anything more.
[[noreturn]] void KillThisProcess() {
  kill(getpid(), SIGKILL);
  while (true) pause();
}

}  // namespace

uint64_t Watch(int fd) {
  struct stat info;
  if (fd < 0 || fd >= kMaxDescriptors || fstat(fd, &info) != 0) return 0;
  watched_inodes[fd].store(info.st_ino);
  return info.st_ino;
}

uint64_t InodeAt(const char* path, int64_t* size_bytes) {
  struct stat info;
  if (lstat(path, &info) != 0) return 0;
  if (size_bytes != nullptr) *size_bytes = info.st_size;
  return info.st_ino;
}

Operation::Operation(DiskCall call, const char* name, int fd) : call_(call), name_(name) {
  const int error = errno;
  if (IsWatched(fd, &inode_) && Lock()) {
    REAL(readlink);
    char link[64], target[512];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t size = real_readlink(link, target, sizeof(target) - 1);
    target[size < 0 ? 0 : size] = '\0';
    Relative(*control_, target, path_, sizeof(path_));
  }
  errno = error;
}

Operation::Operation(DiskCall call, const char* name, const char* path, const char* second_path)
    : call_(call), name_(name) {
  const DiskControl* control = ThisProcess().control;
  if (control == nullptr || path == nullptr) return;
  const bool first = Relative(*control, path, path_, sizeof(path_));
  const bool second =
      second_path != nullptr && Relative(*control, second_path, second_path_, sizeof(second_path_));
  if ((!first && !second) || !Lock()) return;
  // Into the folder or out of it.
  if (second_path != nullptr && first != second) RecordUnseen();
}

Operation::~Operation() {
  if (is_last_) KillThisProcess();
  if (control_ != nullptr) pthread_mutex_unlock(&control_->mu);
}

bool Operation::Lock() {
  DiskControl* control = ThisProcess().control;
  if (control == nullptr) return false;
  // A process that died in an operation did it, or not; the log may lack it.
  if (pthread_mutex_lock(&control->mu) == EOWNERDEAD) pthread_mutex_consistent(&control->mu);
  control_ = control;
  return true;
}

bool Operation::Fails(size_t* size_bytes) {
  DiskControl& control = *control_;
  if (control.countdown == 0 || ThisProcess().rank != control.fault_rank ||
      (control.calls & call_) == 0)
    return false;
  const bool halves = control.error == kShortWrite || control.error == kKilledHalfway;
  if (halves && (size_bytes == nullptr || *size_bytes < 2)) return false;
  if (--control.countdown > 0) return false;
  snprintf(control.failed, sizeof(control.failed), "%.60s %.450s", name_, path_);
  if (control.error == kKilled) KillThisProcess();
  if (halves) {
    *size_bytes /= 2;
    is_last_ = control.error == kKilledHalfway;
    return false;
  }
  errno = control.error;
  return true;
}

void Operation::Record(DiskEvent event, uint64_t inode, int64_t offset_bytes, int64_t size_bytes,
                       const void* data, size_t data_bytes) {
  DiskRecordHead head = {};
  head.event = event;
  head.inode = inode;
  head.offset_bytes = offset_bytes;
  head.size_bytes = size_bytes;
  head.data_bytes = data_bytes;
  Append(head, path_, second_path_, data);
}

void Operation::RecordUnseen() {
  DiskRecordHead head = {};
  head.event = DiskEvent::kUnseen;
  char what[640];
  snprintf(what, sizeof(what), "%s %s", name_, path_);
  Append(head, what, second_path_, nullptr);
}

void Operation::Append(const DiskRecordHead& fields, const char* path, const char* second_path,
                       const void* data) {
  REAL(writev);
  const int error = errno;
  DiskRecordHead head = fields;
  head.rank = ThisProcess().rank;
  head.path_bytes = strlen(path);
  head.second_path_bytes = strlen(second_path);
  iovec parts[] = {{&head, sizeof(head)},
                   {const_cast<char*>(path), head.path_bytes},
                   {const_cast<char*>(second_path), head.second_path_bytes},
                   {const_cast<void*>(data), head.data_bytes}};
  const size_t all = sizeof(head) + head.path_bytes + head.second_path_bytes + head.data_bytes;
  // A log with a hole proves nothing.
  if (real_writev(ThisProcess().log, parts, 4) != static_cast<ssize_t>(all)) abort();
  errno = error;
}

void Operation::CountRead(int64_t size_bytes) {
  const int rank = ThisProcess().rank;
  if (rank >= 0 && rank < kMaxRanks) control_->read_bytes[rank] += size_bytes;
}

}  // namespace tessera::disk_log
