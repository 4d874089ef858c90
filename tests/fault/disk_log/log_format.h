// What the preloaded library and the test that reads its log have in common: a page that both map,
// and the log, a file to which every process appends.
//
//   control file: DiskControl        log file: | DiskRecordHead | path | second path | data | ...
//
// Each operation is done and appended under the page's mutex, so the log's order is the real one,
// whichever process did it. Paths are relative to the folder that is watched; "" is the folder.
#ifndef TESSERA_TESTS_FAULT_DISK_LOG_LOG_FORMAT_H_
#define TESSERA_TESTS_FAULT_DISK_LOG_LOG_FORMAT_H_

#include <pthread.h>

#include <cstdint>

namespace tessera::disk_log {

// The variable that names the control file.
inline constexpr char kControlVariable[] = "TESSERA_TEST_DISK_LOG";

enum class DiskEvent : uint32_t {
  kMark,          // Of the test's: `path` is what it says.
  kCreate,        // A new, empty file `inode` at `path`.
  kTruncate,      // `inode` has `size_bytes` bytes from now on.
  kReserve,       // `inode` has at least `size_bytes` bytes.
  kWrite,         // `data` at `offset_bytes` of `inode`.
  kSync,          // `inode`, a file or a folder.
  kMakeFolder,    // A new, empty folder `inode` at `path`.
  kRename,        // `path` to `second_path`, in place of what was there.
  kExchange,      // `path` and `second_path`.
  kLink,          // `second_path` is another name of the file at `path`.
  kUnlink,        // The file at `path`.
  kRemoveFolder,  // The folder at `path`.
  kUnseen,        // A change that the library cannot follow; `path` says which call it was.
};

// Kinds of operations that can be made to fail, as bits.
enum DiskCall : uint32_t {
  kOpenCall = 1,
  kWriteCall = 2,  // Through the page cache.
  kReserveCall = 4,
  kSyncCall = 8,
  kRenameCall = 16,
  kMakeFolderCall = 32,
  kUnlinkCall = 64,  // rmdir too.
  kReadCall = 128,
  kDirectWriteCall = 256,
};
inline constexpr uint32_t kCallsOfASave = kOpenCall | kWriteCall | kDirectWriteCall | kReserveCall |
                                          kSyncCall | kRenameCall | kMakeFolderCall | kUnlinkCall;
inline constexpr uint32_t kCallsOfALoad = kOpenCall | kReadCall;

// What a chosen call may meet instead of an errno.
inline constexpr int32_t kShortWrite = 0;      // A write writes half of its bytes and says so.
inline constexpr int32_t kKilled = -1;         // Its process gets SIGKILL and the call is not done.
inline constexpr int32_t kKilledHalfway = -2;  // A write writes half of its bytes, then that.

struct DiskRecordHead {
  DiskEvent event;
  int32_t rank;  // Of the process; -1: the test.
  uint64_t inode;
  int64_t offset_bytes, size_bytes;
  uint32_t path_bytes, second_path_bytes;
  uint64_t data_bytes;
};

inline constexpr int kMaxRanks = 16;

struct DiskControl {
  pthread_mutex_t mu;  // Shared by processes, robust. Guards what follows and the log.
  char folder[256];    // Absolute, without a '/' at the end.
  char log[256];
  // The fault: the `countdown`-th call of one of `calls` by `fault_rank` gets `error`, an errno or
  // one of the above. A countdown of 0: none is armed.
  int32_t fault_rank;
  uint32_t calls;
  int64_t countdown;
  int32_t error;
  char failed[512];  // The call that got it: "pwrite c.partial/manifest.json"; "": none. A direct
                     // write is a "pwrite O_DIRECT c.partial/...".
  int64_t read_bytes[kMaxRanks];  // Of files in the folder, by rank.
};

}  // namespace tessera::disk_log

#endif  // TESSERA_TESTS_FAULT_DISK_LOG_LOG_FORMAT_H_
