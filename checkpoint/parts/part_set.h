// The parts of one save (checkpoint_part.h), found in folders, and checked to form a checkpoint.
// Plain values and stateless functions; thread-safe.
#ifndef TESSERA_CHECKPOINT_PARTS_PART_SET_H_
#define TESSERA_CHECKPOINT_PARTS_PART_SET_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/parts/checkpoint_part.h"

namespace tessera {

struct FoundPart {
  std::string folder;
  Manifest manifest;  // It has a `part`.
  PartContents contents;
};

// What to read of a part into the checkpoint.
struct TakenSlice {
  std::string name;  // In the shard.
  PartSlice slice;
};

struct PartSet {
  std::vector<FoundPart> parts;                // By rank, each once; rank 0's is the first.
  std::vector<int> missing_ranks;              // Without which all tensors are covered.
  WholeFile model, optimizer;                  // What the checkpoint has.
  std::vector<std::vector<TakenSlice>> taken;  // By part: slices that cover each tensor once.
  // By NameOf: the checksum of the whole tensor, made of its slices'.
  std::map<std::string, uint32_t> sums;
};

// `folders`: each a part, or a folder with parts right below it.
// Errors: NotFound            a folder has none, or rank 0's is missing
//         InvalidArgument     a part is not of the form; naming tensor and range: a hole, an
//                             overlap that is not a replica, a slice of another shape or dtype, or
//                             a tensor that the checkpoint does not have
//         FailedPrecondition  parts are of different saves, or a rank is missing (named), unless
//                             `allow_missing_ranks`
//         DataLoss            a part is damaged, or replicas or two parts of a rank are not the
//                             same.
absl::StatusOr<PartSet> FindParts(const std::vector<std::string>& folders,
                                  bool allow_missing_ranks);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_PARTS_PART_SET_H_
