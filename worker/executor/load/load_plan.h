// Which tensor of a stored model goes into which parameter of a model. Pure; thread-safe.
//
// A parameter takes the tensor of its name or, where there is none, of one of its aliases' (tied
// weights are written once or more than once, as the writer liked). Tensors are whole parameters,
// so the model says nothing of ranks, strategies or units. What the rules leave out stays as it is:
// no tensor is looked for or checked against it.
#ifndef TESSERA_WORKER_EXECUTOR_LOAD_LOAD_PLAN_H_
#define TESSERA_WORKER_EXECUTOR_LOAD_LOAD_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "layout/model_layout.h"
#include "layout/name_selection.h"

namespace tessera {

struct LoadRules {
  bool strict = true;  // What is missing or unexpected is an error.
  NameSelection names = {};
  bool optimizer_only = false;  // Of a checkpoint: the model's tensors may be missing.
};

struct LoadPlan {
  // Of the trainer's own tensors: which of them the file has.
  struct Buffer {
    NamedTensorInfo wanted;  // As the trainer calls it.
    std::string tensor;      // As the file does.
  };
  // By unit and parameter: the tensor as the file calls it; empty: none.
  std::vector<std::vector<std::string>> tensors;
  std::vector<Buffer> buffers;
  std::vector<std::string> missing;     // Parameters and buffers without a tensor.
  std::vector<std::string> unexpected;  // Tensors that are nobody's, as the file calls them.
  std::vector<std::string> left_out;    // Parameters that are not wanted.
};

// The names that a parameter has in the model; its own is the first, then its aliases'.
std::vector<std::string> NamesOf(const UnitLayout& unit, const std::string& parameter);

// `buffers`: what the trainer requests in addition to the parameters.
// Errors: InvalidArgument  naming the tensor and both sides: another shape, or elements that are
//                          not a floating-point type of Tessera's; of a buffer, another dtype,
//                          unless both are floating-point; two tensors of one name; a pattern of
//                          `include` that no parameter or buffer has; if strict, all that is
//                          missing or unexpected, up to a dozen names.
absl::StatusOr<LoadPlan> PlanLoad(const TensorTable& stored, const ModelLayout& layout,
                                  const LoadRules& rules,
                                  const std::vector<NamedTensorInfo>& buffers = {});

// Of a plan that gives a job its first values.
// Errors: FailedPrecondition  something is left out: naming it.
absl::Status CheckGivesAll(const LoadPlan& plan);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_LOAD_LOAD_PLAN_H_
