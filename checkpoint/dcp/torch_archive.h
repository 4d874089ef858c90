// What torch.save wrote of one object: a zip with a pickle, and the bytes of the storages that the
// pickle refers to.
//
//   archive/data.pkl    archive/byteorder: "little"    archive/data/0, ...
//
// Thread-safe: reads at offsets.
#ifndef TESSERA_CHECKPOINT_DCP_TORCH_ARCHIVE_H_
#define TESSERA_CHECKPOINT_DCP_TORCH_ARCHIVE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/dcp/stored_zip.h"
#include "checkpoint/safetensors/element_reader.h"

namespace tessera::dcp {

struct TorchArchive {
  std::string pickle;
  std::string prefix;  // Of the members' names: "archive/".
  std::map<std::string, ByteRange> members;
};

inline constexpr int64_t kMaxArchivePickleBytes = 1 << 20;

// `zip`: what one torch.save wrote, in `file`.
// Errors: InvalidArgument  what ListStoredMembers refuses; no pickle, more than one, or one of more
//   than kMaxArchivePickleBytes; another byte order than little-endian. DataLoss  the file is
//   shorter. They name the file and the place.
absl::StatusOr<TorchArchive> ReadTorchArchive(const OpenFile& file, const ByteRange& zip);

// For messages: the file and the place in it.
std::string ItemOf(const OpenFile& file, const ByteRange& zip);

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_TORCH_ARCHIVE_H_
