// A rank's part of a checkpoint: the slices that it holds, in a folder of its own, for where ranks
// share no file system. `tessera consolidate` (consolidate.h) makes the checkpoint of all parts.
//
//   PATH/rank-00003/  shard.safetensors   "model/NAME", "optimizer/state.NAME.exp_avg": flat slices
//                     trainer-00003.bin   the rank's own bytes, if it has any
//                     part.json           manifest.h: which rank of which save, and checksums
//
// The shard's __metadata__ says where in which tensor each slice belongs ("tessera.slices"), and in
// rank 0's part what tensors the checkpoint has ("tessera.whole"), so that a tensor of which nobody
// gave anything is missed. Here is what reads and writes that. Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_PARTS_CHECKPOINT_PART_H_
#define TESSERA_CHECKPOINT_PARTS_CHECKPOINT_PART_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/safetensors/tensor_table.h"

namespace tessera {

// "rank-00003"
std::string PartFolderName(int rank);

enum class PartFile { kModel, kOptimizer };

struct PartSlice {
  PartFile file = PartFile::kModel;
  std::string tensor;
  TensorInfo whole;  // All of the tensor.
  int64_t begin_elements = 0, count = 0;
};

// "model/NAME" or "optimizer/NAME": what the slice is called in the shard.
std::string NameOf(const PartSlice& slice);

// What one of the checkpoint's files is to hold, in its order.
struct WholeFile {
  std::vector<NamedTensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

struct PartContents {
  std::map<std::string, PartSlice> slices;               // By their names in the shard.
  std::optional<std::pair<WholeFile, WholeFile>> whole;  // Model and optimizer: of rank 0's part.
};

// The shard's header. Errors: as PlaceInfos.
absl::StatusOr<SafetensorsHeader> PlacePart(const PartContents& contents);

// `shard`: anybody's, as DecodeHeader accepted it.
// Errors: InvalidArgument  naming the tensor: its place is missing, or is not in it; it is not a
//   flat slice; or __metadata__ is not of this form.
absl::StatusOr<PartContents> DecodePart(const SafetensorsHeader& shard);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_PARTS_CHECKPOINT_PART_H_
