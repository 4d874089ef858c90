// A module continues in a job of another size, from the memory of the previous one; so do buffers.
//
//   AttachOptions attach;
//   TakenOver taken;
//   attach.first_values = TakeOverModel(model, {"old"}, &taken);
//   ShardedModel::Attach(model, options, policy, attach);     taken.step is the last that was taken
//
// As TakeOver (hand_over.h). Buffers of the old job's rank 0 go into the module on all
// ranks, by name, all that the old job published or, where anything is in the way, none; those that
// it did not are in TakenOver::missing_buffers, and stay. A trainer that replaces another one after
// that keeps its module's own, as of any job.
#ifndef TESSERA_TORCH_MODEL_TAKE_OVER_H_
#define TESSERA_TORCH_MODEL_TAKE_OVER_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "tessera/hand_over.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

// For AttachOptions::first_values. `taken`, if not null, outlives the attaching; its buffers are in
// the module, and not in there. Errors of what is returned: as TakeOver.
std::function<absl::Status(Session* session)> TakeOverModel(std::shared_ptr<torch::nn::Module> root,
                                                            TakeOverOptions options,
                                                            TakenOver* taken = nullptr);

}  // namespace tessera

#endif  // TESSERA_TORCH_MODEL_TAKE_OVER_H_
