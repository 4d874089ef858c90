// The state of an optimizer that PyTorch's Distributed Checkpoint (DCP) saved, as the job's own.
//
//   {"model": model_state_dict, "optim": optim_state_dict}     what was saved
//
//   LoadOptions model;                                         and how it is loaded
//   model.names.renames = {{"model.", ""}};
//   model.names.exclude = {"optim.*"};
//   RETURN_IF_ERROR(LoadModel(&session, folder, model).status());
//   ASSIGN_OR_RETURN(StepOptions::groups, LoadOptimizerState(&session, folder));
//
// Moments by parameter name, so world size, strategy and units may be others than those that wrote
// it. Each rank reads the bytes of its own shards alone, straight into its gradient slots. Nothing
// of the folder is executed (docs/adr/0024).
//
// Collective, as WriteOptimizerState: on all ranks or on none, repeated where another rank's
// process dies. Parameters and the number of the job's last step stay. Not within RunStep. One
// thread.
#ifndef TESSERA_LOAD_OPTIMIZER_STATE_H_
#define TESSERA_LOAD_OPTIMIZER_STATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest/name_selection.h"
#include "job/job_config.h"
#include "tessera/session.h"

namespace tessera {

struct LoadOptimizerOptions {
  // What the names of the optimizer's items begin with: the key that it was saved under, and a dot.
  std::string prefix = "optim.";
  // Of a parameter's name as the optimizer has it; the first that applies. Not of ids; numbers that
  // become names of the job's parameters by it are names.
  std::vector<NameSelection::Rename> renames = {};
  // What ids stand for where the folder has those, as the state_dict() of torch.optim itself does:
  // the names of each of its param groups, in the order in which the optimizer got them. The
  // folder's groups must be as large. Of model.parameters() that is the order in which the module
  // registered them, which is not that of the job's units: the root's own come first there, also
  // those that are registered last. Nothing tells them apart where shapes are alike, so nothing is
  // guessed: a folder with ids is refused without names.
  std::vector<std::vector<std::string>> names_of_ids = {};
  // A trainable parameter without state in the folder, and a state without a parameter, are an
  // error. Otherwise the former has no state afterwards, as a new one, and the latter is not
  // read. An SGD's momentum may be missing in any case: it is one of zeroes.
  bool strict = true;
};

// Returns the numbers (StepOptions::groups) that the folder says, by the job's param groups: the
// job's own where it says none. They belong to steps, and nothing goes by them until given to one.
// The folder's groups may be others, if their numbers are the same within each of the job's.
// Errors: NotFound            nothing under the prefix; with `strict`, naming the parameter
//         InvalidArgument     no absolute path to a folder of DCP's; what dcp::ReadOptimizerState
//                             refuses; a moment of another shape or no floating-point one, or a
//                             number that is out of range, named; a name for two
//                             ids
//         FailedPrecondition  the folder has other moments than the job's optimizer, or other
//                             numbers within one of its groups, named; the ranks see different
//                             folders or ask for different things; no initial values; ids,
//                             and no names_of_ids, or those of groups of another size
//         Unimplemented       numbers that the job's optimizer has no formula for (nesterov, ...)
//         PermissionDenied, DataLoss  the files, as some rank sees them
absl::StatusOr<std::vector<HyperParameters>> LoadOptimizerState(
    Session* session, const std::string& folder, const LoadOptimizerOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_LOAD_OPTIMIZER_STATE_H_
