// Which units of an attached model a module stands for. Thread-compatible.
#ifndef TESSERA_CLIENT_TORCH_UNIT_LOOKUP_H_
#define TESSERA_CLIENT_TORCH_UNIT_LOOKUP_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/torch/module_units.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

// The units of which a module is `module` or, with `recurse`, below it. None is not an error.
std::vector<int> UnitsBelow(const ModuleUnits& units, const torch::nn::Module& module,
                            bool recurse);

// The same. Errors: InvalidArgument  there is none; names the module.
absl::StatusOr<std::vector<int>> SomeUnitsBelow(const ModuleUnits& units,
                                                const torch::nn::Module& module, bool recurse);

// Errors: InvalidArgument  `module` is not a unit of this model; names it.
absl::StatusOr<int> UnitOf(const ModuleUnits& units, const torch::nn::Module& module);

// One unit for each. Errors: also InvalidArgument  a module of the list is null.
absl::StatusOr<std::vector<int>> UnitsOf(const ModuleUnits& units,
                                         const std::vector<const torch::nn::Module*>& modules);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_UNIT_LOOKUP_H_
