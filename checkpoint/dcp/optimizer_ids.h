// Parameters of an optimizer that are by id, as the state_dict() of torch.optim itself has them.
//
//   param_groups[0].params = [0, 1], param_groups[1].params = [2]     the ids
//   {{"in.weight", "out.weight"}, {"in.bias"}}                        what they may stand for
//
// An id counts the parameters that the optimizer was given, one param group after the other: of
// model.parameters() in the order in which the module registered them. A folder says neither names
// nor that order. Stateless; thread-safe.
#ifndef TESSERA_CHECKPOINT_DCP_OPTIMIZER_IDS_H_
#define TESSERA_CHECKPOINT_DCP_OPTIMIZER_IDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/dcp/dcp_optimizer.h"

namespace tessera::dcp {

// Of the parameters of each param group, in their order.
using NamesOfIds = std::vector<std::vector<std::string>>;

// Whether all keys are such numbers, and there is one.
bool MayBeIds(const OptimizerState& state);

// Puts names in place of ids: MayBeIds(*state).
// Errors: InvalidArgument     a name is given for two ids, named
//         FailedPrecondition  the folder's groups are of other sizes than these (of none: no names
//                             are given)
//         NotFound            an id beyond those of the groups, named.
// `state` is undefined then.
absl::Status NameIds(const NamesOfIds& names, OptimizerState* state);

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_OPTIMIZER_IDS_H_
