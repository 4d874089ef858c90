// Which names a module's state has, and where the state is. Reads the tree, changes nothing.
#ifndef TESSERA_CLIENT_TORCH_STATE_SITES_H_
#define TESSERA_CLIENT_TORCH_STATE_SITES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

// One name. Tied parameters have several with the same unit and parameter.
struct StateSite {
  std::string name;  // As seen from the module.
  // Of the session's layout; -1: `tensor` is the state, and the trainer's own: a buffer, or a
  // parameter that is ignored.
  int unit = -1;
  int parameter = -1;
  torch::Tensor tensor;
};

// In the order of the tree: of each module its parameters, then its buffers.
// Errors: InvalidArgument  the module is not in the model's tree.
absl::StatusOr<std::vector<StateSite>> SitesOf(ShardedModel* model,
                                               const torch::nn::Module& module);

// The units that these sites are of, ascending.
std::vector<int> UnitsOfSites(const std::vector<StateSite>& sites);

// The key of the unit's flat part: "_flat_param" of the root, "1._flat_param" of unit 1, as seen
// from a module whose names have `prefix` in the model ("1." or empty).
std::string FlatKeyOf(const ShardedModel& model, int unit, const std::string& prefix);

// "1." of module "1", empty of the root. Errors: as SitesOf.
absl::StatusOr<std::string> PrefixOf(const ShardedModel& model, const torch::nn::Module& module);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_STATE_SITES_H_
