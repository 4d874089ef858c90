// A file system of a few MiB, which only this process and its children see, for tests of full
// disks.
#ifndef TESSERA_TESTS_TESTING_SMALL_DISK_H_
#define TESSERA_TESTS_TESTING_SMALL_DISK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tessera::testing_support {

// A mount namespace of this process's own, where it may mount: as root at once, else as the root of
// a user namespace. Only while the process has one thread.
absl::Status EnterOwnMountNamespace();

class SmallDisk {
 public:
  ~SmallDisk() { Unmount(); }

  // At `folder`, which exists. In a mount namespace of the process's own.
  absl::Status Mount(const std::string& folder, int64_t size_bytes);
  void Unmount();  // If it is mounted; nothing has a file of it open.
  // Leaves no byte of room; and gives it back.
  absl::Status Fill();
  absl::Status Free();

 private:
  std::string folder_;  // Empty: it is not mounted.
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_SMALL_DISK_H_
