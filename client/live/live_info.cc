#include "client/live/live_info.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_codec.h"

namespace tessera {

absl::StatusOr<StoredDType> StoredDTypeOf(const v1::LiveTensorInfo& info) {
  if (info.stored_dtype().empty()) {
    ASSIGN_OR_RETURN(const DType dtype, DecodeDType(info.dtype()));
    return StoredAs(dtype);
  }
  const std::optional<StoredDType> dtype = ParseStoredDType(info.stored_dtype());
  // Elements are addressed by bytes.
  if (dtype.has_value() && SizeBits(*dtype) % 8 == 0) return *dtype;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", info.name(), "' is in an unknown '", info.stored_dtype(), "'"));
}

absl::StatusOr<NamedTensorInfo> TensorInfoOf(const v1::LiveTensorInfo& info) {
  NamedTensorInfo tensor;
  tensor.name = info.name();
  tensor.info.shape.assign(info.shape().begin(), info.shape().end());
  ASSIGN_OR_RETURN(tensor.info.dtype, StoredDTypeOf(info));
  return tensor;
}

}  // namespace tessera
