// What tensors somebody's model has: names, shapes and dtypes, wherever they are stored. Plain
// values and pure functions.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_TENSOR_TABLE_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_TENSOR_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/stored_dtype.h"

namespace tessera {

struct TensorInfo {
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;  // Empty: 0-d, one element. A 0 in it: no elements.
};

struct NamedTensorInfo {
  std::string name;
  TensorInfo info;
};

// By name.
using TensorTable = std::map<std::string, TensorInfo>;

// Whether elements [begin_elements, begin_elements + count) of a tensor, row-major, can be read as
// floating-point values: what they are stored as.
// Errors: NotFound  no such tensor; InvalidArgument  outside of it, or a tensor that is not of
//         floating-point values or that Tessera has no type for. The message names the tensor.
absl::StatusOr<DType> CheckSlice(const TensorTable& tensors, const std::string& name,
                                 int64_t begin_elements, int64_t count);

struct StoredSlice {
  int64_t begin_bytes = 0, size_bytes = 0;  // Of the tensor's bytes, row-major.
};
// Where elements [begin_elements, begin_elements + count) of a tensor of any type are.
// Errors: NotFound  no such tensor; InvalidArgument  outside of it, or not between bytes. The
//         message names the tensor.
absl::StatusOr<StoredSlice> CheckStoredSlice(const TensorTable& tensors, const std::string& name,
                                             int64_t begin_elements, int64_t count);

// Errors: InvalidArgument  a negative dimension, or the product overflows int64.
absl::StatusOr<int64_t> NumelOf(const TensorInfo& info);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_TENSOR_TABLE_H_
