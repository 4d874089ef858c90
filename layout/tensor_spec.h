// What a model is, as the layout sees it: units of named parameters, and buffers. Plain values.
#ifndef TESSERA_LAYOUT_TENSOR_SPEC_H_
#define TESSERA_LAYOUT_TENSOR_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "layout/dtype.h"
#include "layout/stored_dtype.h"
#include "layout/strategy.h"

namespace tessera {

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // Empty: 0-d, one element. A 0 in it: no elements.
  DType dtype = DType::kFp32;
  bool requires_grad = true;
  std::string shared_with;  // Empty, or the name of the primary, met earlier in the same unit.
};

struct UnitSpec {
  std::string name;
  std::vector<TensorSpec> parameters;  // In module-walk order.
  // Instead of the job's, where given.
  std::optional<DType> compute_dtype = std::nullopt;
  std::optional<DType> reduce_dtype = std::nullopt;
  std::optional<Strategy> strategy = std::nullopt;
};

// A model's state besides parameters, whole on each rank: a batch norm's statistics, a table.
struct BufferSpec {
  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;  // As of a TensorSpec.
};

struct ModelSpec {
  std::vector<UnitSpec> units;  // Unit 0 is the root.
  std::vector<BufferSpec> buffers;
};

// Errors: InvalidArgument  a negative dimension, or the product overflows int64.
absl::StatusOr<int64_t> Numel(const TensorSpec& spec);
absl::StatusOr<int64_t> Numel(const BufferSpec& spec);
// Of a buffer. Errors: the same, and InvalidArgument  the bytes overflow, or the dtype's elements
// are not whole bytes.
absl::StatusOr<int64_t> SizeBytes(const BufferSpec& spec);

// Errors: InvalidArgument  (naming unit and parameter) no parameter; an empty or duplicate name;
//   integer or mixed dtypes; `shared_with` that names no earlier primary of this unit, or one of
//   another shape or requires_grad; overflow.
absl::Status ValidateUnit(const UnitSpec& unit);

// Errors: InvalidArgument  (naming unit and parameter, or the buffer) no unit; two units of one
//   name; a parameter name that two units use; what ValidateUnit refuses; a buffer without a name,
//   or with that of another buffer or a parameter, or whose bytes, alone or all together, overflow
//   or are none.
absl::Status ValidateModel(const ModelSpec& model);

// OK, or InvalidArgument that says what differs first, as "rank A: ..., rank B: ...", naming the
// unit and the parameter.
absl::Status CompareModels(const ModelSpec& a, absl::string_view name_a, const ModelSpec& b,
                           absl::string_view name_b);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_TENSOR_SPEC_H_
