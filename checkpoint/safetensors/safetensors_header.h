// The header of a safetensors file: where each tensor is. Pure; no I/O.
//
//   u64 LE N | N bytes of JSON, padded with spaces to a multiple of 8 | tensor data ...
//
// Tensors are in the order that the format's reference writer uses (element size descending, then
// name), so each is aligned to its own element size. Offsets are known before a byte of data is.
// Source: huggingface/safetensors README.md (format); its writer (order).
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "layout/stored_dtype.h"
#include "layout/tensor_spec.h"

namespace tessera {

struct StoredTensor {
  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;
  int64_t begin_bytes = 0;  // In the data part.
  int64_t end_bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  int64_t data_offset_bytes = 0;  // Of the data part, in the file.
  int64_t file_bytes = 0;
};

// Places the tensors.
// Errors: InvalidArgument  an empty or duplicate name, overflow, or a tensor that ends within a
//                          byte.
absl::StatusOr<SafetensorsHeader> PlaceInfos(const std::vector<NamedTensorInfo>& tensors,
                                             const std::map<std::string, std::string>& metadata);
// The same of parameters (shared_with and requires_grad are not looked at).
absl::StatusOr<SafetensorsHeader> PlaceTensors(const std::vector<TensorSpec>& tensors,
                                               const std::map<std::string, std::string>& metadata);
NamedTensorInfo InfoOf(const TensorSpec& spec);

// The bytes [0, data_offset_bytes) of the file.
std::string EncodeHeader(const SafetensorsHeader& header);

TensorTable TableOf(const SafetensorsHeader& header);

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

// `prefix` is the file's start, at least 8 bytes and the whole header.
// Errors: InvalidArgument  naming the tensor where there is one: no JSON object, a duplicate key, a
//   dtype that the format does not have, offsets that leave a hole, overlap or do not match shape
//   and dtype, or a file of another size than the header says.
absl::StatusOr<SafetensorsHeader> DecodeHeader(absl::string_view prefix, int64_t file_bytes);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H_
