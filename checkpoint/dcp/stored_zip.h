// Where the members of a zip are that holds them as they are, neither compressed nor encrypted, as
// torch.save writes it. The zip may be a part of a larger file.
//
//   ... | member "archive/data.pkl" | member "archive/data/0" | ... | directory | end | ...
//       ^ begin_bytes                                                               ^ +
//       length_bytes
//
// Pure but for reading the file; thread-safe. Source: PKWARE's APPNOTE.TXT, also its 64-bit form.
#ifndef TESSERA_CHECKPOINT_DCP_STORED_ZIP_H_
#define TESSERA_CHECKPOINT_DCP_STORED_ZIP_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/element_reader.h"

namespace tessera::dcp {

// A part of a file.
struct ByteRange {
  int64_t begin_bytes = 0;
  int64_t size_bytes = 0;
};

// By name: where each member's data is in `file`.
// Errors: InvalidArgument  no zip; a comment after it; more than one volume; a member that is
//   compressed, encrypted or there twice, or is not before the directory; a directory of
//   more than a MiB. They name the file, the zip's place and the member. DataLoss  the file is
//   shorter.
absl::StatusOr<std::map<std::string, ByteRange>> ListStoredMembers(const OpenFile& file,
                                                                   const ByteRange& zip);

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_STORED_ZIP_H_
