#include "checkpoint/tensor_table.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "layout/tensor_spec.h"

namespace tessera {

absl::StatusOr<DType> CheckSlice(const TensorTable& tensors, const std::string& name,
                                 int64_t begin_elements, int64_t count) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
  TensorSpec spec;
  spec.shape = it->second.shape;
  ASSIGN_OR_RETURN(const int64_t numel, Numel(spec));
  const std::optional<DType> dtype = LayoutDType(it->second.dtype);
  if (!dtype.has_value() || !IsFloatingPoint(*dtype) || begin_elements < 0 || count < 0 ||
      begin_elements > numel || count > numel - begin_elements) {
    return absl::InvalidArgumentError(absl::StrCat("elements [", begin_elements, ", +", count,
                                                   ") of tensor '", name, "', ", numel, " of ",
                                                   Name(it->second.dtype)));
  }
  return *dtype;
}

}  // namespace tessera
