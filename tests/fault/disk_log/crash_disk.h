// A folder of which is known what is on the disk and what only in memory, and the states that it
// may have after the power fails. Pure; values are copied.
//
//   of a file:    synced bytes   + [write, truncate, reserve, ...]    since its last sync
//   of a folder:  synced names   + [make, rename, remove, ...]        since its last sync
//
// The rules are POSIX's and no file system's: a sync of a file keeps its bytes and size but no name
// of it; a sync of a folder keeps the names in it, and nothing of what they name. Of everything
// else each operation may be on the disk or not, whatever came before or after it, and a write in
// pieces; a file may have its size but not its bytes: zeroes. Only a rename is whole or not at all.
#ifndef TESSERA_TESTS_FAULT_DISK_LOG_CRASH_DISK_H_
#define TESSERA_TESTS_FAULT_DISK_LOG_CRASH_DISK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/fault/disk_log/disk_log.h"

namespace tessera::disk_log {

// The contents of a folder: relative path to bytes; a folder has none.
using DiskTree = std::map<std::string, std::optional<std::string>>;

// Of a real folder. Errors: the file system's.
absl::StatusOr<DiskTree> ReadTree(const std::string& folder);
// Makes `folder`, which is not there yet.
absl::Status WriteTree(const DiskTree& tree, const std::string& folder);
// The contents of a folder of the tree, by paths relative to it; nullopt if it does not exist.
std::optional<DiskTree> TreeAt(const DiskTree& tree, const std::string& path);

class CrashDisk {
 public:
  // A write is torn at multiples of this in the file.
  explicit CrashDisk(int64_t piece_bytes = 4096) : piece_bytes_(piece_bytes) {}

  // Errors: FailedPrecondition  the record says what cannot be: the log has a hole;
  //         Unimplemented       a rename between folders, or what the library has not seen.
  absl::Status Apply(const DiskRecord& record);

  // What processes see.
  DiskTree Kept() const;
  // After a crash that loses all that may be lost.
  DiskTree Lost() const;
  // After one that loses at random. Same seed, same tree.
  DiskTree Torn(std::mt19937_64* random) const;

 private:
  struct FileChange {
    DiskEvent event;
    int64_t offset_bytes, size_bytes;
    std::string data;
  };
  // Names that become something else at once: a number of a node, or none.
  struct NameChange {
    std::vector<std::pair<std::string, std::optional<int>>> names;
    bool moves = false;  // What is named has no other name in this folder then.
  };
  struct Node {
    bool is_folder = false;
    std::string synced_bytes, bytes;
    std::vector<FileChange> changes;
    std::map<std::string, int> synced_names, names;
    std::vector<NameChange> name_changes;
  };
  using Keep = std::mt19937_64*;  // Null: nothing is kept.

  static void Change(const FileChange& change, std::string* bytes);
  static void Change(const NameChange& change, std::map<std::string, int>* names);
  void ChangeTorn(const FileChange& change, Keep random, std::string* bytes) const;
  std::string BytesAfterCrash(const Node& node, Keep random) const;
  std::map<std::string, int> NamesAfterCrash(const Node& node, Keep random) const;
  void Collect(const Node& node, const std::string& path, bool crashed, Keep random,
               DiskTree* tree) const;

  // The folder of a path and the name in it.
  absl::StatusOr<std::pair<Node*, std::string>> Locate(const std::string& path);
  absl::StatusOr<int> Named(const std::string& path);
  absl::StatusOr<Node*> Existing(const DiskRecord& record);
  absl::Status Make(const DiskRecord& record, bool is_folder);
  absl::Status Move(const DiskRecord& record);
  absl::Status Remove(const DiskRecord& record);
  absl::Status ChangeFile(const DiskRecord& record);
  absl::Status Sync(const DiskRecord& record);

  const int64_t piece_bytes_;
  std::vector<Node> nodes_;           // The first is the folder itself.
  std::map<uint64_t, int> of_inode_;  // The last node that had the number.
};

}  // namespace tessera::disk_log

#endif  // TESSERA_TESTS_FAULT_DISK_LOG_CRASH_DISK_H_
