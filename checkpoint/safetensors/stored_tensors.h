// All tensors that are stored at a path, to list and to read as bytes: a model of whatever form
// (open_model.h), or a checkpoint of ours, by its manifest.
//
//   model.safetensors, an index, a folder         part "model"
//   step-00000042/  model.safetensors, or several part "model"
//                   optimizer.safetensors         part "optimizer"
//                   trainer-00000.bin             part "trainer", one entry without a dtype
//
// Checksums of headers are checked, those of data are not: that is verify_checkpoint.h's. All of it
// may be anybody's. Reading is thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_STORED_TENSORS_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_STORED_TENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/stored_dtype.h"

namespace tessera {

// Part and name: an optimizer's state may have the name of a parameter.
using StoredKey = std::pair<std::string, std::string>;

struct StoredEntry {
  std::optional<StoredDType> dtype;  // Nothing: bytes, numel of them.
  std::vector<int64_t> shape;
  int64_t numel = 0, size_bytes = 0;
};

class StoredTensors {
 public:
  virtual ~StoredTensors() = default;

  // `path` may be relative. A folder with a manifest.json is a checkpoint.
  // Errors: as OpenModel and CheckedFile::Open, and those of the manifest. They name the file.
  static absl::StatusOr<std::unique_ptr<StoredTensors>> Open(const std::string& path);

  const std::map<StoredKey, StoredEntry>& entries() const { return entries_; }

  // Elements [begin_elements, begin_elements + count) of an entry, row-major, as they are stored.
  // Errors: NotFound  no such entry; InvalidArgument  outside of it, or not between bytes;
  //         DataLoss  a file became shorter; what ModelSource::ReadStored refuses.
  virtual absl::Status Read(const StoredKey& key, int64_t begin_elements, int64_t count,
                            char* into) const = 0;

 protected:
  std::map<StoredKey, StoredEntry> entries_;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_STORED_TENSORS_H_
