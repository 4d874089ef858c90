// What the processes of a test do to the files below one folder, in the order in which they do it;
// and a way to let one of these operations fail, or be the last of its process.
//
//   ASSERT_OK_AND_ASSIGN(auto log, DiskLog::Start(folder));     before the processes
//   ... executors work in folder ...
//   ASSERT_OK_AND_ASSIGN(std::vector<DiskRecord> records, log->Read());
//
// Processes that this one starts meanwhile get the library preload.cc ahead of libc, through their
// environment; this process itself is not watched and leaves the folder as it is. Syncs of theirs
// are logged and not done. One at a time; thread-compatible.
#ifndef TESSERA_TESTS_FAULT_DISK_LOG_DISK_LOG_H_
#define TESSERA_TESTS_FAULT_DISK_LOG_DISK_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/fault/disk_log/log_format.h"

namespace tessera::disk_log {

struct DiskRecord {
  DiskEvent event = DiskEvent::kMark;
  int rank = -1;  // Whose executor; -1: the test.
  uint64_t inode = 0;
  int64_t offset_bytes = 0, size_bytes = 0;
  std::string path, second_path;  // Relative to the folder.
  std::string data;
};

struct DiskFault {
  int rank = 0;
  uint32_t calls = 0;  // Of DiskCall.
  int64_t at_call = 1;
  int error = 0;  // An errno, or one of kShortWrite, kKilled and kKilledHalfway.
};

class DiskLog {
 public:
  // `folder` is absolute, empty, and not below the test's own files.
  // Errors: NotFound  no library in the test's runfiles; others  the file system's.
  static absl::StatusOr<std::unique_ptr<DiskLog>> Start(const std::string& folder);
  ~DiskLog();

  // Puts a mark of the test's between operations.
  absl::Status Mark(absl::string_view text);
  // Replaces the fault that was armed.
  void Arm(const DiskFault& fault);
  // Ends it. The call that failed, as "pwrite c.partial/manifest.json"; "" where there was none.
  std::string Disarm();
  // How many bytes of files in the folder a rank has read so far.
  int64_t ReadBytes(int rank) const;

  // All so far, the folder itself first. Errors: DataLoss  the log is cut off.
  absl::StatusOr<std::vector<DiskRecord>> Read() const;

 private:
  DiskLog() = default;

  std::string own_;  // The folder of the control file and the log.
  std::string path_;
  DiskControl* control_ = nullptr;
};

}  // namespace tessera::disk_log

#endif  // TESSERA_TESTS_FAULT_DISK_LOG_DISK_LOG_H_
