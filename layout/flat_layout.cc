#include "layout/flat_layout.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "layout/checked_math.h"

namespace tessera {
namespace {

absl::Status ValidateAlignment(absl::string_view which, int64_t alignment_bytes, DType dtype) {
  // Offsets count elements, so an alignment has to be a whole number of them.
  if (alignment_bytes >= 0 && alignment_bytes % SizeBytes(dtype) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(which, " alignment of ", alignment_bytes,
                                                 " bytes is not a multiple of the ",
                                                 SizeBytes(dtype), " bytes of ", Name(dtype)));
}

absl::Status ValidateOptions(const LayoutOptions& options) {
  if (!IsFloatingPoint(options.alignment_dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "alignment dtype ", Name(options.alignment_dtype), " is not a floating-point type"));
  }
  RETURN_IF_ERROR(
      ValidateAlignment("parameter", options.parameter_alignment_bytes, options.alignment_dtype));
  return ValidateAlignment("shard", options.shard_alignment_bytes, options.alignment_dtype);
}

}  // namespace

absl::StatusOr<FlatLayout> FlatLayout::Create(const UnitSpec& unit, const LayoutOptions& options) {
  RETURN_IF_ERROR(ValidateUnit(unit));
  RETURN_IF_ERROR(Annotate(ValidateOptions(options), absl::StrCat("unit \"", unit.name, "\"")));
  FlatLayout layout;
  layout.unit_name_ = unit.name;
  layout.dtype_ = unit.parameters.front().dtype;
  layout.options_ = options;
  layout.parameters_.reserve(unit.parameters.size());
  const int64_t alignment_elements =
      options.parameter_alignment_bytes == 0
          ? 1
          : options.parameter_alignment_bytes / SizeBytes(options.alignment_dtype);
  for (const TensorSpec& spec : unit.parameters) {
    if (!spec.shared_with.empty()) {
      // It takes no room: its elements are its primary's.
      layout.aliases_.push_back({spec.name, spec.shared_with});
      continue;
    }
    ASSIGN_OR_RETURN(const int64_t numel, Numel(spec));
    // Shapes come from outside, so each sum is checked.
    int64_t offset_elements = 0;
    if (!CheckedRoundUp(layout.end_elements_, alignment_elements, &offset_elements) ||
        !CheckedAdd(offset_elements, numel, &layout.end_elements_)) {
      return absl::InvalidArgumentError(absl::StrCat("unit \"", unit.name, "\", parameter \"",
                                                     spec.name,
                                                     "\": the unit's total size overflows int64"));
    }
    layout.unpadded_numel_ += numel;
    layout.parameters_.push_back({spec, offset_elements, numel});
  }
  return layout;
}

}  // namespace tessera
