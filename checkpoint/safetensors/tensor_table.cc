#include "checkpoint/safetensors/tensor_table.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "layout/tensor_spec.h"

namespace tessera {
namespace {

// Written so that no sum can overflow.
bool IsOutside(int64_t begin, int64_t count, int64_t numel) {
  return begin < 0 || count < 0 || begin > numel || count > numel - begin;
}

absl::Status NoSlice(int64_t begin_elements, int64_t count, const std::string& name, int64_t numel,
                     const TensorInfo& info) {
  return absl::InvalidArgumentError(absl::StrCat("elements [", begin_elements, ", +", count,
                                                 ") of tensor '", name, "', ", numel, " of ",
                                                 Name(info.dtype)));
}

}  // namespace

absl::StatusOr<int64_t> NumelOf(const TensorInfo& info) {
  TensorSpec spec;
  spec.shape = info.shape;
  return Numel(spec);
}

absl::StatusOr<DType> CheckSlice(const TensorTable& tensors, const std::string& name,
                                 int64_t begin_elements, int64_t count) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
  ASSIGN_OR_RETURN(const int64_t numel, NumelOf(it->second));
  const std::optional<DType> dtype = LayoutDType(it->second.dtype);
  if (!dtype.has_value() || !IsFloatingPoint(*dtype) || IsOutside(begin_elements, count, numel))
    return NoSlice(begin_elements, count, name, numel, it->second);
  return *dtype;
}

absl::StatusOr<StoredSlice> CheckStoredSlice(const TensorTable& tensors, const std::string& name,
                                             int64_t begin_elements, int64_t count) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
  ASSIGN_OR_RETURN(const int64_t numel, NumelOf(it->second));
  if (IsOutside(begin_elements, count, numel))
    return NoSlice(begin_elements, count, name, numel, it->second);
  // Below a byte a slice may begin or end within one.
  const std::optional<int64_t> begin_bytes = SizeBytes(it->second.dtype, begin_elements);
  const std::optional<int64_t> size_bytes = SizeBytes(it->second.dtype, count);
  if (!begin_bytes.has_value() || !size_bytes.has_value())
    return NoSlice(begin_elements, count, name, numel, it->second);
  return StoredSlice{*begin_bytes, *size_bytes};
}

}  // namespace tessera
