// What a DCP folder's `.metadata` says: of each tensor its dtype, its shape and the boxes that it
// was saved in, and in which file each box is. Pure; no I/O.
//
//   tensor [7, 3]   chunk at [0, 0] of [4, 3] ──► __0_0.distcp [0, 1577)
//                   chunk at [4, 0] of [3, 3] ──► __1_0.distcp [0, 1577)
//
// Elements and bytes, ranges half-open. What else a folder holds (numbers, texts, lists) is an
// object: pickled Python, which is stored in one place and which this does not decode.
// Source: pytorch torch/distributed/checkpoint/{metadata,filesystem}.py, version 1.0.0.
#ifndef TESSERA_CHECKPOINT_DCP_DCP_METADATA_H_
#define TESSERA_CHECKPOINT_DCP_DCP_METADATA_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/dcp/stored_zip.h"
#include "checkpoint/safetensors/tensor_table.h"

namespace tessera::dcp {

struct Chunk {
  std::vector<int64_t> offsets, sizes;  // The box in the tensor, an entry a dimension.
  std::string file;                     // In the folder.
  ByteRange item;                       // A whole torch.save of one tensor of these sizes.
};

struct ChunkedTensor {
  TensorInfo info;
  std::vector<Chunk> chunks;  // They cover the tensor; each element is in one.
};

using Metadata = std::map<std::string, ChunkedTensor>;

struct StoredObject {
  std::string file;  // In the folder.
  ByteRange item;    // A whole torch.save.
};

struct Contents {
  Metadata tensors;
  std::map<std::string, StoredObject> objects;
};

inline constexpr int64_t kMaxMetadataBytes = 256 << 20;
inline constexpr size_t kMaxChunks = 1 << 14;  // Of one tensor.

// Errors: InvalidArgument  what Pickle::Decode refuses, and by its name any global that is not of
//           the format; another structure than the format's; naming the tensor: a dtype or shape
//           that is none, chunks that overlap, leave a hole, are outside or have no file, a file
//           outside of the folder, more than kMaxChunks;
//         Unimplemented    an item that was transformed (compressed) by an extension.
absl::StatusOr<Metadata> DecodeMetadata(absl::string_view pickle);
// The same with the objects. Errors: also InvalidArgument  an object without a place, or a place of
// one that cannot be; Unimplemented  an object that was transformed.
absl::StatusOr<Contents> DecodeContents(absl::string_view pickle);

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_DCP_METADATA_H_
