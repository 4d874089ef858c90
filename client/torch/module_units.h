// Which parameter of a module tree belongs to which unit. Reads the tree, changes nothing.
#ifndef TESSERA_CLIENT_TORCH_MODULE_UNITS_H_
#define TESSERA_CLIENT_TORCH_MODULE_UNITS_H_

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/tensor_spec.h"
#include "tessera/torch/attach_options.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"
#include "tessera/torch/units.h"

namespace tessera {

// A floating-point buffer, and the dtype that it has while the model is attached.
struct CastBuffer {
  torch::Tensor tensor;
  torch::ScalarType dtype;
};

// Where a module tree holds a parameter.
struct ParameterSite {
  torch::nn::Module* module = nullptr;
  std::string key;  // In its own parameters.
};

struct ModuleUnits {
  ModelSpec model;
  // By unit: its modules, more than one where the policy groups them, and its parameters without
  // aliases, as in its FlatLayout.
  std::vector<std::vector<ShardedBase*>> modules;
  std::unordered_map<const ShardedBase*, int> unit_of_module;
  std::vector<std::vector<torch::Tensor>> parameters;
  std::vector<std::vector<ParameterSite>> sites;  // Of the first name of each.
  // By unit: what its parameters are seen in, and what forward's arguments are cast to.
  std::vector<torch::ScalarType> compute_dtypes;
  std::vector<std::optional<torch::ScalarType>> input_dtypes;
  std::vector<bool> casts_results_back;  // To the dtype that an argument was cast from.
  std::vector<CastBuffer> buffers;       // Of the model; only those that are cast.
  // By unit: whether its tensors show the memory of windows in full precision at the moment.
  std::vector<bool> in_full_precision;

  // All modules below the root, since the user may take one out of the tree while sites name it.
  std::vector<std::shared_ptr<torch::nn::Module>> tree;
  std::unordered_set<const c10::TensorImpl*> ignored;  // Parameters and buffers.
  ShardedBase* root = nullptr;
  // Whether the root is unit 0. It is none where all parameters are in inner units; then its
  // forward, which begins and ends the model's, opens no window.
  bool root_is_unit = true;
  std::optional<torch::ScalarType> root_input_dtype;  // As input_dtypes, of a root without unit.

  int root_unit() const { return root_is_unit ? 0 : ShardedBase::kRootWithoutUnit; }
};

// `root` is unit 0, unless all parameters are in inner units; every Sharded<> below it that
// `policy` chooses is a unit, or part of one that the policy groups, in walk order of the first
// module; a parameter belongs to the innermost unit that encloses the module that registered it.
// A module without parameters of its own is not a unit. What `ignored` names is left to the user:
// it is outside all units. What `precision` keeps in full precision is a unit too, whatever the
// policy says.
// Errors: InvalidArgument  the root is not a Sharded<>; a module that is kept in full precision is
//   not in a Sharded<> that holds nothing else (naming it); no parameter at all; a parameter in two
//   units (naming both names and units); a dtype that cannot be trained; a group of which only a
//   part is kept in full precision; all of ValidateModel's and ChooseUnits' (unit_choice.h).
//         FailedPrecondition  some Sharded<> of the tree is attached already (naming it), or a parameter
//   is in another job's memory.
absl::StatusOr<ModuleUnits> FindUnits(torch::nn::Module& root, const WrapPolicy& policy,
                                      const IgnoredStates& ignored = {},
                                      const MixedPrecision& precision = {});

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_MODULE_UNITS_H_
