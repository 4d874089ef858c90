// Where each parameter of a unit is in the unit's flat parameter. Independent of ranks.
//
//   | wq ...... |gap| bq | gap | wk ...... |          all quantities in ELEMENTS, half-open
//   0           ^ parameters start on a multiple of the alignment
//
// Immutable value; thread-compatible; cheap to move. Aliases (shared parameters) take no room.
// Behaviour as torch/distributed/fsdp/_flat_param.py: with parameter_alignment_bytes = 0 nothing
// is between parameters, with 16 every one but the first is preceded by padding up to 16 bytes.
#ifndef TESSERA_LAYOUT_FLAT_LAYOUT_H_
#define TESSERA_LAYOUT_FLAT_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/dtype.h"
#include "layout/tensor_spec.h"

namespace tessera {

struct LayoutOptions {
  int64_t parameter_alignment_bytes = 16;  // In `alignment_dtype`; 0: none.
  int64_t shard_alignment_bytes = 128;     // Start of each rank's slice; 0: one element.
  DType alignment_dtype = DType::kFp32;    // The compute dtype: 16 bytes are 8 bf16 elements.
};

struct PlacedParameter {
  TensorSpec spec;
  int64_t offset_elements = 0;
  int64_t numel = 0;
};

struct Alias {
  std::string name;     // As the module tree calls it again.
  std::string primary;  // The parameter whose elements it shares.
};

class FlatLayout {
 public:
  // Errors: InvalidArgument  what ValidateUnit refuses; an alignment that is negative or not a
  //                          multiple of the element size; an integer alignment_dtype; total size
  //                          overflows int64.
  static absl::StatusOr<FlatLayout> Create(const UnitSpec& unit, const LayoutOptions& options);

  const std::string& unit_name() const { return unit_name_; }
  DType dtype() const { return dtype_; }
  const LayoutOptions& options() const { return options_; }
  const std::vector<PlacedParameter>& parameters() const { return parameters_; }
  const std::vector<Alias>& aliases() const { return aliases_; }
  // Sum of the parameters' elements, aliases once, no padding.
  int64_t unpadded_numel() const { return unpadded_numel_; }
  // One past the last element, alignment gaps included, tail padding (the ranks' matter) not.
  int64_t end_elements() const { return end_elements_; }

 private:
  std::string unit_name_;
  DType dtype_ = DType::kFp32;
  LayoutOptions options_;
  std::vector<PlacedParameter> parameters_;
  std::vector<Alias> aliases_;
  int64_t unpadded_numel_ = 0;
  int64_t end_elements_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_LAYOUT_FLAT_LAYOUT_H_
