// Makes the checkpoint of the parts that its ranks wrote (checkpoint_part.h), off line.
//
//   rank-00000/ ... rank-00007/ ──► proof that each element is there once ──► copy, piece by piece,
//   checked against the parts' checksums ──► manifest, name
//
// What it writes is what ranks with a common file system would have saved, to the bit. Memory is
// that of the parts' lists of slices, and a piece of a slice or a trainer's file. Stateless;
// thread-safe.
#ifndef TESSERA_CHECKPOINT_PARTS_CONSOLIDATE_H_
#define TESSERA_CHECKPOINT_PARTS_CONSOLIDATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest/manifest.h"

namespace tessera {

struct ConsolidateOptions {
  int64_t max_file_bytes = 0;  // As SaveOptions'.
  // Ranks may be missing as long as all tensors are covered, as replicas do. Their trainers' bytes
  // are then not in the checkpoint.
  bool allow_missing_ranks = false;
  // Told how many bytes of how many are copied. May be null.
  std::function<void(int64_t done_bytes, int64_t all_bytes)> progress;
};

struct Consolidated {
  Manifest manifest;
  int num_parts = 0;
  std::vector<int> missing_ranks;
};

// `part_folders`: as FindParts. `path`: absolute; a checkpoint there is replaced once the new one
// is whole and on disk, as by SaveCheckpoint. Errors: as FindParts, nothing is written then; as
// BeginFolder and PublishCheckpoint; DataLoss  a part's slice or file is damaged, named. What was
// at `path` stays, and nothing else is left.
absl::StatusOr<Consolidated> Consolidate(const std::vector<std::string>& part_folders,
                                         const std::string& path,
                                         const ConsolidateOptions& options);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_PARTS_CONSOLIDATE_H_
