// What the user put in place of a unit's parameters and gradients between steps.
//
//   model->head->weight.set_data(values);        other data in the tensor that Tessera placed
//   parameters_["weight"] = fresh;               another tensor, registered under the old name
//   model->head->weight.mutable_grad() = g;      after backward
//
// Collective: all ranks change the same parameters; of the values each rank's own slice counts.
// Ranks that change others do other operations, which is an error on all of them that names both.
// Source: the writeback check of torch/distributed/fsdp/_flat_param.py.
#ifndef TESSERA_CLIENT_TORCH_REPLACED_PARAMETERS_H_
#define TESSERA_CLIENT_TORCH_REPLACED_PARAMETERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/kept_gradient.h"
#include "client/torch/module_units.h"
#include "tessera/session.h"

namespace tessera {

// The name of the first parameter that is no longer in the job's memory; else empty.
std::string FirstReplaced(const Session& session, const ModuleUnits& units);

// Writes the values of all such parameters into the shards, and gives the tensors that are
// registered now the job's memory. `changed`: units in which a tensor is another one or changed
// its dtype, so that hooks are lost.
// Errors: FailedPrecondition  a parameter of another shape, or that needs a gradient where it did
//                             not, or the reverse: named, and nothing is written
//         Session::ReadParameters and WriteParameters.
absl::Status TakeReplacedParameters(Session* session, ModuleUnits* units,
                                    std::vector<int>* changed);

// A parameter that came into the tree after attaching is in no unit, and would not be trained.
// `root` is the model's; what is below `ignored` is the user's own.
// Errors: FailedPrecondition  a parameter that needs a gradient is in no unit: named.
absl::Status CheckNoneAdded(const torch::nn::Module& root, const ModuleUnits& units,
                            const IgnoredStates& ignored);

// Makes each grad() that the user set the reduced gradient, and puts in its place what says so.
// Errors: FailedPrecondition  a gradient of another shape, named; Session::WriteGradients.
absl::Status TakeReplacedGradients(Session* session, const ModuleUnits& units, KeptGradients* kept);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_REPLACED_PARAMETERS_H_
