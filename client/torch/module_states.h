// The states with which the ranks of a new job begin: from rank 0, compared, or filled in by slice.
#ifndef TESSERA_CLIENT_TORCH_MODULE_STATES_H_
#define TESSERA_CLIENT_TORCH_MODULE_STATES_H_

#include "absl/status/status.h"
#include "client/torch/module_units.h"
#include "tessera/session.h"
#include "tessera/torch/attach_options.h"

namespace tessera {

// Gives a job that has none its initial values, and with sync_module_states the module its buffers.
// Collective. Errors:
//   FailedPrecondition  ranks begin with different parameters or buffers (named, with two ranks);
//                       parameters are on the meta device and no function is given for them (all
//                       named); a buffer is on the meta device
//   those of initialize_meta; Aborted
absl::Status InitializeJob(Session* session, const ModuleUnits& units,
                           const torch::nn::Module& root, const AttachOptions& attach);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_MODULE_STATES_H_
