// A safetensors file that is read slice by slice, each rank what it needs.
//
//   ASSIGN_OR_RETURN(ModelReader file, ModelReader::Open(path));
//   file.ReadSlice("block0.up.weight", begin_elements, values);
//
// What a slice is stored in is rounded or widened to what `values` are. The file may be anybody's:
// its header is checked whole before anything is read by it. Move-only; ReadSlice is thread-safe.
#ifndef TESSERA_CHECKPOINT_MODEL_READER_H_
#define TESSERA_CHECKPOINT_MODEL_READER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "checkpoint/safetensors_header.h"
#include "layout/values.h"

namespace tessera {

class ModelReader {
 public:
  // Errors: InvalidArgument  what DecodeHeader refuses, or no regular file; NotFound;
  //         PermissionDenied; DataLoss  it became shorter meanwhile. The message names the path.
  static absl::StatusOr<ModelReader> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  // Of the file's header, size and time of its last change: whoever opened another file, or this
  // one in another state, has another number, unless all three are the same.
  uint64_t identity() const { return identity_; }

  // Elements [begin_elements, begin_elements + into.size()) of a floating-point tensor.
  // Errors: NotFound  no such tensor; InvalidArgument  outside of it, or a tensor of integers;
  //         DataLoss  the file became shorter.
  absl::Status ReadSlice(const std::string& tensor, int64_t begin_elements, Values into) const;

 private:
  ModelReader(UniqueFd fd, std::string path, SafetensorsHeader header, uint64_t identity)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        header_(std::move(header)),
        identity_(identity) {}

  UniqueFd fd_;
  std::string path_;
  SafetensorsHeader header_;
  uint64_t identity_;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_MODEL_READER_H_
