// What a user does to a unit's gradient on its way: before it travels, and after it was reduced.
//
//   AddGradient ... ──► before ──► compress ──► mean over the ranks ──► after ──► vote, step
//                       the rank's own, whole   (in full)               the rank's shard
//
// Both are called by the trainer's thread, with what they need to remember in their captures. The
// reduction itself stays the executors'. An error ends the step on every rank, as any error of the
// step's code does. Ranks whose gradients travel in different dtypes are told so; what `before` and
// `after` do, nobody compares.
// Source: register_comm_hook and the compression hooks of torch/distributed.
#ifndef TESSERA_COMM_HOOK_H_
#define TESSERA_COMM_HOOK_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "layout/dtype.h"
#include "layout/values.h"

namespace tessera {

struct CommHook {
  // What the gradient travels in, whatever the unit's reduce dtype is: bf16, fp16 or, for the full
  // dtype, fp32.
  std::optional<DType> compress;
  // The unit's gradient of this rank with all that was accumulated, laid out as its flat parameter,
  // once for each reduction. Elements outside parameters, and of parameters without a gradient, are
  // 0 and become 0 again.
  std::function<absl::Status(int unit, Values gradient)> before;
  // This rank's shard of the mean, with all that was reduced since the last step, once in a step.
  // Not of a gradient that the user set as a whole (Session::WriteGradients).
  std::function<absl::Status(int unit, Values shard)> after;

  bool empty() const { return !compress.has_value() && !before && !after; }
};

inline CommHook Fp16Compression() { return {DType::kFp16, nullptr, nullptr}; }
inline CommHook Bf16Compression() { return {DType::kBf16, nullptr, nullptr}; }

}  // namespace tessera

#endif  // TESSERA_COMM_HOOK_H_
