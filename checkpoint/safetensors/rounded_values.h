// Values in the dtype that they are saved in, rounded to nearest, ties to even. Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_ROUNDED_VALUES_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_ROUNDED_VALUES_H_

#include <string>

#include "absl/status/statusor.h"
#include "layout/dtype.h"
#include "layout/values.h"

namespace tessera {

// What a parameter in full precision `full` is saved as where `wanted` is asked for: the smaller.
DType SavedDType(DType full, DType wanted);

// The bytes of `values` in `dtype`: bf16, fp16 or fp32. fp64 goes to a half by way of fp32, as
// elsewhere. NaN stays NaN, and what is infinite stays so.
// Errors: OutOfRange  a finite value is too large for it, which would make it infinite: the message
//         has the value; InvalidArgument  another dtype.
absl::StatusOr<std::string> RoundValues(ConstValues values, DType dtype);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_ROUNDED_VALUES_H_
