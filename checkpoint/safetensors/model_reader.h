// A safetensors file that is read slice by slice, each rank what it needs.
//
//   ASSIGN_OR_RETURN(ModelReader file, ModelReader::Open(path));
//   file.ReadSlice("block0.up.weight", begin_elements, values);
//
// Its header is checked whole before anything is read by it. Move-only; ReadSlice is thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_MODEL_READER_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_MODEL_READER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors/element_reader.h"
#include "checkpoint/safetensors/model_source.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "layout/values.h"

namespace tessera {

class ModelReader final : public ModelSource {
 public:
  // Errors: InvalidArgument  what DecodeHeader refuses, or no regular file; NotFound;
  //         PermissionDenied; DataLoss  it became shorter meanwhile. The message names the path.
  static absl::StatusOr<ModelReader> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }

  const TensorTable& tensors() const override { return tensors_; }
  uint64_t identity() const override { return identity_; }
  absl::Status ReadSlice(const std::string& tensor, int64_t begin_elements,
                         Values into) const override;
  absl::Status ReadStored(const std::string& tensor, int64_t begin_elements, int64_t count,
                          char* into) const override;

 private:
  ModelReader(OpenFile file, SafetensorsHeader header, uint64_t identity);

  OpenFile file_;
  SafetensorsHeader header_;
  TensorTable tensors_;
  uint64_t identity_;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_MODEL_READER_H_
