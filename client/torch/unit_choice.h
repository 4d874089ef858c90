// Which Sharded<> modules of a tree are units, and which of them one unit together: what a
// WrapPolicy says, checked against the tree. Pure; thread-compatible.
#ifndef TESSERA_CLIENT_TORCH_UNIT_CHOICE_H_
#define TESSERA_CLIENT_TORCH_UNIT_CHOICE_H_

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/torch/attach_options.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"
#include "tessera/torch/units.h"

namespace tessera {

using TensorSet = std::unordered_set<const c10::TensorImpl*>;

// Modules of one unit, in the order that the policy names them.
struct UnitGroup {
  std::string name;  // "norm, output"
  std::vector<const torch::nn::Module*> modules;
};

struct UnitChoice {
  static constexpr int kAlone = -1;

  // Of each module below the root that is a unit, or part of one: its group, if it has one.
  std::unordered_map<const ShardedBase*, int> chosen;
  std::vector<UnitGroup> groups;
  TensorSet ignored;         // Parameters and buffers.
  bool root_is_unit = true;  // Some parameter is left to it.

  bool Has(const ShardedBase* module) const { return chosen.count(module) > 0; }
};

// Errors: InvalidArgument  (naming the module) a group without modules, or one that names no
//   module below the root, one that is not a Sharded<>, one that is in a group already, or one
//   inside of another; `ignored` gives both lists, an empty pointer or tensor, the root, or a unit.
absl::StatusOr<UnitChoice> ChooseUnits(torch::nn::Module& root, const WrapPolicy& policy,
                                       const IgnoredStates& ignored,
                                       const MixedPrecision& precision);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_UNIT_CHOICE_H_
