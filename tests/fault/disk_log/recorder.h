// The half of the preloaded library that knows what is watched, appends to the log and decides
// which call fails. Linked into a program that it knows nothing of, so it uses nothing but libc.
// Thread-safe: an operation holds the lock of all processes from its beginning to its end.
#ifndef TESSERA_TESTS_FAULT_DISK_LOG_RECORDER_H_
#define TESSERA_TESTS_FAULT_DISK_LOG_RECORDER_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "tests/fault/disk_log/log_format.h"

// real_NAME: the function that the program would have called. Looked up twice if two threads ask at
// once; a guarded static would call into the runtime of a sanitizer that is not ready yet.
#define REAL(name)                                \
  static decltype(&::name) real_##name = nullptr; \
  if (real_##name == nullptr)                     \
  real_##name = reinterpret_cast<decltype(&::name)>(dlsym(RTLD_NEXT, #name))

namespace tessera::disk_log {

// One call of the program's. Where it concerns nothing that is watched, `watched()` is false and
// nothing is locked.
class Operation {
 public:
  // Of a descriptor. `name` is the function's.
  Operation(DiskCall call, const char* name, int fd);
  // Of paths; relative ones are not watched. `second_path` may be null.
  Operation(DiskCall call, const char* name, const char* path, const char* second_path = nullptr);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool watched() const { return control_ != nullptr; }
  uint64_t inode() const { return inode_; }
  // Whether the call fails, with errno set. A short write instead halves `size_bytes`, if given.
  // Does not return where the process is to be killed before the call.
  bool Fails(size_t* size_bytes = nullptr);

  // Appends what was done. errno stays.
  void Record(DiskEvent event, uint64_t inode, int64_t offset_bytes = 0, int64_t size_bytes = 0,
              const void* data = nullptr, size_t data_bytes = 0);
  void RecordUnseen();
  void CountRead(int64_t size_bytes);

 private:
  bool Lock();
  void Append(const DiskRecordHead& head, const char* path, const char* second_path,
              const void* data);

  const DiskCall call_;
  const char* const name_;
  DiskControl* control_ = nullptr;  // Locked, if not null.
  uint64_t inode_ = 0;
  bool is_last_ = false;                         // Of its process.
  char path_[512] = "", second_path_[512] = "";  // Relative.
};

// From now on what is done to `fd` is watched. The inode's number.
uint64_t Watch(int fd);
// The inode's number, 0 where there is none; and of a file its size.
uint64_t InodeAt(const char* path, int64_t* size_bytes = nullptr);

}  // namespace tessera::disk_log

#endif  // TESSERA_TESTS_FAULT_DISK_LOG_RECORDER_H_
