// Reading a file of anybody's: bytes that must be there, and elements of one type into values of
// another. Thread-safe: reads at offsets, moves no file position.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_ELEMENT_READER_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_ELEMENT_READER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/storage/storage.h"
#include "layout/dtype.h"
#include "layout/values.h"

namespace tessera {

// Tells one state of files from another: a hash of what is mixed in, in order.
class FileIdentity {
 public:
  void MixBytes(absl::string_view bytes);
  void MixWord(uint64_t word);
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

// A regular file that is open for reading. Move-only.
struct OpenFile {
  std::unique_ptr<ReadableFile> file;
  std::string path;
  int64_t size_bytes = 0;
  uint64_t changed = 0;  // Of the time of its last change.
};

// Never waits, also where `path` is a pipe.
// Errors: NotFound; PermissionDenied; InvalidArgument  no regular file. The message names the path.
absl::StatusOr<OpenFile> OpenRegularFile(const std::string& path);

// Errors: DataLoss  the file ends before; the file system's.
absl::Status ReadBytes(const OpenFile& file, int64_t at_bytes, int64_t size_bytes, void* into);

// A whole file. Errors: as above; InvalidArgument  it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const OpenFile& file, int64_t max_bytes);

// into.size() elements of `dtype`, a floating-point type, little-endian; they are rounded or
// widened to what `into` is. Errors: as ReadBytes.
absl::Status ReadElements(const OpenFile& file, int64_t at_bytes, DType dtype, Values into);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_ELEMENT_READER_H_
