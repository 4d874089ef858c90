// Which tensor of a stored model goes into which parameter of a model. Pure; thread-safe.
//
// A parameter takes the tensor of its name or, where there is none, of one of its aliases' (tied
// weights are written once or more than once, as the writer liked). Tensors are whole parameters,
// so the model says nothing of ranks, strategies or units.
#ifndef TESSERA_WORKER_EXECUTOR_LOAD_PLAN_H_
#define TESSERA_WORKER_EXECUTOR_LOAD_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/tensor_table.h"
#include "layout/model_layout.h"

namespace tessera {

struct LoadPlan {
  // By unit and parameter: the tensor; empty: none.
  std::vector<std::vector<std::string>> tensors;
  std::vector<std::string> missing;     // Parameters without a tensor.
  std::vector<std::string> unexpected;  // Tensors that are nobody's.
};

// `strict`: what is missing or unexpected is an error.
// Errors: InvalidArgument  naming the tensor and both sides: another shape, or elements that are no
//                          floating-point type of Tessera's; with `strict`, all that is missing or
//                          unexpected, up to a dozen names.
absl::StatusOr<LoadPlan> PlanLoad(const TensorTable& stored, const ModelLayout& layout,
                                  bool strict);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_LOAD_PLAN_H_
