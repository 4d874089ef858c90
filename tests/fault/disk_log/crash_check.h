// Whether every state that a disk may have after a crash is one of those that were promised. The
// test says by marks in the log what it promises:
//
//   "begin NAME"    NAME may become its next version from here on
//   "end NAME"      it is that version, whatever happens
//   "retire NAME"   it may be gone, too
//
// A version is what had the name at "end", to the bit. Before its first "begin" nothing has it.
#ifndef TESSERA_TESTS_FAULT_DISK_LOG_CRASH_CHECK_H_
#define TESSERA_TESTS_FAULT_DISK_LOG_CRASH_CHECK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/disk_log/crash_disk.h"
#include "tests/fault/disk_log/disk_log.h"

namespace tessera::disk_log {

// What has a name: the files of a folder, or a file, whose own path is ""; nullopt: nothing.
using Version = std::optional<DiskTree>;
Version VersionAt(const DiskTree& tree, const std::string& name);

using Saved = std::map<std::string, std::vector<Version>>;  // By name, in their order.

// The versions in a log.
// Errors: DataLoss  it does not end with what is in `folder`: what it lacks nobody would look at;
//         others  as CrashDisk::Apply.
absl::StatusOr<Saved> SavedIn(const std::vector<DiskRecord>& records, const std::string& folder);

// The first state that breaks a promise, in words, with its seed; "" if none does. After each
// record it looks at: all lost, all kept, and 32 at random. Some of those that differ go into
// `sample`.
std::string FirstWrong(const std::vector<DiskRecord>& records, const Saved& saved, uint64_t seed,
                       std::vector<DiskTree>* sample);

// One line a path, with sizes.
std::string ListOf(const DiskTree& tree);

}  // namespace tessera::disk_log

#endif  // TESSERA_TESTS_FAULT_DISK_LOG_CRASH_CHECK_H_
