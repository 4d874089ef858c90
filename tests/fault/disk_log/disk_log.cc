#include "tests/fault/disk_log/disk_log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tests/testing/process_view.h"

namespace tessera::disk_log {
namespace {

constexpr char kLibrary[] = "tests/fault/disk_log/preload_disk_log.so";

class Lock {
 public:
  explicit Lock(DiskControl* control) : control_(*control) {
    if (pthread_mutex_lock(&control_.mu) == EOWNERDEAD) pthread_mutex_consistent(&control_.mu);
  }
  ~Lock() { pthread_mutex_unlock(&control_.mu); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  DiskControl& control_;
};

absl::StatusOr<DiskControl*> MakeControl(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid() || ftruncate(fd.get(), sizeof(DiskControl)) != 0)
    return ErrnoStatus(errno, absl::StrCat("make ", path));
  void* page = mmap(nullptr, sizeof(DiskControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", path));
  DiskControl* control = new (page) DiskControl();
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&control->mu, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return control;
}

absl::Status Append(const std::string& log, const DiskRecordHead& head, absl::string_view path) {
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  absl::StrAppend(&bytes, path);
  const UniqueFd fd(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid() || write(fd.get(), bytes.data(), bytes.size()) != (ssize_t)bytes.size())
    return ErrnoStatus(errno, absl::StrCat("append to ", log));
  return absl::OkStatus();
}

// A sanitizer's runtime, if there is one, has to be the first library; it calls the next.
std::string WithSanitizer(const std::string& library) {
  for (const std::string& loaded : testing_support::MappingsOf(getpid())) {
    if (absl::StrContains(loaded, "/libasan.so") || absl::StrContains(loaded, "/libtsan.so"))
      return absl::StrCat(loaded, ":", library);
  }
  return library;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskLog>> DiskLog::Start(const std::string& folder) {
  std::error_code error;
  const std::string library = std::filesystem::canonical(kLibrary, error).string();
  if (error) return ErrnoStatus(error.value(), kLibrary);
  std::unique_ptr<DiskLog> log(new DiskLog());
  log->own_ = "/tmp/tessera-disk-log-XXXXXX";
  if (mkdtemp(log->own_.data()) == nullptr) return ErrnoStatus(errno, "make a folder in /tmp");
  log->path_ = log->own_ + "/log";
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) return ErrnoStatus(errno, folder);
  ASSIGN_OR_RETURN(log->control_, MakeControl(log->own_ + "/control"));
  absl::SNPrintF(log->control_->folder, sizeof(log->control_->folder), "%s", folder);
  absl::SNPrintF(log->control_->log, sizeof(log->control_->log), "%s", log->path_);
  DiskRecordHead head = {};
  head.event = DiskEvent::kMakeFolder;
  head.rank = -1;
  head.inode = info.st_ino;
  RETURN_IF_ERROR(Append(log->path_, head, ""));
  setenv(kControlVariable, (log->own_ + "/control").c_str(), 1);
  setenv("LD_PRELOAD", WithSanitizer(library).c_str(), 1);
  return log;
}

DiskLog::~DiskLog() {
  unsetenv("LD_PRELOAD");
  unsetenv(kControlVariable);
  if (control_ != nullptr) munmap(control_, sizeof(DiskControl));
  std::error_code error;
  std::filesystem::remove_all(own_, error);
}

absl::Status DiskLog::Mark(absl::string_view text) {
  DiskRecordHead head = {};
  head.event = DiskEvent::kMark;
  head.rank = -1;
  head.path_bytes = text.size();
  Lock lock(control_);
  return Append(path_, head, text);
}

void DiskLog::Arm(const DiskFault& fault) {
  Lock lock(control_);
  control_->fault_rank = fault.rank;
  control_->calls = fault.calls;
  control_->countdown = fault.at_call;
  control_->error = fault.error;
  control_->failed[0] = '\0';
}

std::string DiskLog::Disarm() {
  Lock lock(control_);
  control_->countdown = 0;
  return control_->failed;
}

int64_t DiskLog::ReadBytes(int rank) const {
  Lock lock(control_);
  return control_->read_bytes[rank];
}

absl::StatusOr<std::vector<DiskRecord>> DiskLog::Read() const {
  std::string bytes;
  {
    Lock lock(control_);
    bytes = testing_support::ReadFile(path_);
  }
  absl::string_view left = bytes;
  std::vector<DiskRecord> records;
  const auto take = [&](uint64_t size) {
    const std::string taken(left.substr(0, size));
    left.remove_prefix(size);
    return taken;
  };
  while (!left.empty()) {
    DiskRecordHead head = {};
    if (left.size() < sizeof(head)) return absl::DataLossError("the log ends within a record");
    memcpy(&head, left.data(), sizeof(head));
    left.remove_prefix(sizeof(head));
    if (left.size() < head.path_bytes + head.second_path_bytes + head.data_bytes)
      return absl::DataLossError("the log ends within a record");
    DiskRecord& record = records.emplace_back();
    record = {head.event, head.rank, head.inode, head.offset_bytes, head.size_bytes, "", "", ""};
    record.path = take(head.path_bytes);
    record.second_path = take(head.second_path_bytes);
    record.data = take(head.data_bytes);
  }
  return records;
}

}  // namespace tessera::disk_log
