// How many bytes of other ranks' one rank reads in a step of one forward and one backward.
//
//   gathered  to see a whole unit: W - 1 slices, as often as the unit is unsharded
//   reduced   to sum its slice of the gradients: W - 1 slices of every unit that is trained; of one
//             with frozen parameters, what is trainable in them, of the rank that has most of it
//
// Where all ranks are on one host, gathering only makes memory readable and copies none of it.
// Quantities are BYTES. Pure values; thread-compatible.
#ifndef TESSERA_LAYOUT_STEP_TRAFFIC_H_
#define TESSERA_LAYOUT_STEP_TRAFFIC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "layout/dtype.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"

namespace tessera {

struct StepTraffic {
  int64_t gathered_bytes = 0;
  int64_t reduced_bytes = 0;
};

// Units that reshard after forward, all but the root, are unsharded twice, the others once. Of a
// hybrid unit a rank also reads the other groups' sums of its slice, in full precision.
// The dtypes are those of units that name none of their own.
// Errors: InvalidArgument  the sum of bytes overflows int64.
absl::StatusOr<StepTraffic> PlanTraffic(const ModelLayout& layout, DType compute_dtype,
                                        DType reduce_dtype);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_STEP_TRAFFIC_H_
