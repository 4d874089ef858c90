// A model in several safetensors files, read through its index. Move-only; ReadSlice is
// thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_INDEXED_MODEL_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_INDEXED_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/model_reader.h"
#include "checkpoint/safetensors/model_source.h"

namespace tessera {

class IndexedModel final : public ModelSource {
 public:
  // Opens the index and all files that it names; they stay open, a descriptor each.
  // Errors: what DecodeModelIndex, ModelReader::Open and CheckAgainstFiles refuse; they name the
  //         file. ResourceExhausted  more files than this process may open.
  static absl::StatusOr<IndexedModel> Open(const std::string& index_path);

  const TensorTable& tensors() const override { return tensors_; }
  uint64_t identity() const override { return identity_; }
  absl::Status ReadSlice(const std::string& tensor, int64_t begin_elements,
                         Values into) const override;
  absl::Status ReadStored(const std::string& tensor, int64_t begin_elements, int64_t count,
                          char* into) const override;

 private:
  IndexedModel(std::string path, ModelIndex index, std::map<std::string, ModelReader> files,
               uint64_t identity);

  std::string path_;
  ModelIndex index_;
  std::map<std::string, ModelReader> files_;  // By name in the index.
  TensorTable tensors_;
  uint64_t identity_;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_INDEXED_MODEL_H_
