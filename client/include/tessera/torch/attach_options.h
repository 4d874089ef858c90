// How a module is attached, in addition to the session's options and the policy.
//
//   AttachOptions attach;
//   attach.sync_module_states = true;                          all ranks begin as rank 0 does
//   attach.initialize_meta = InitializedBy(Initializer::Normal(0, 0.02), seed);
//
// A module whose parameters are on the meta device has shapes and no values; MoveToMeta makes it so
// and gives their memory back. Attached, each rank fills in its own slices alone, so a model may be
// larger than any trainer's memory.
// Source: ignored_modules, sync_module_states and param_init_fn of torch/distributed/fsdp.
#ifndef TESSERA_TORCH_ATTACH_OPTIONS_H_
#define TESSERA_TORCH_ATTACH_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "layout/tensor_spec.h"
#include "layout/values.h"
#include "tessera/initializer.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/units.h"

namespace tessera {

class Session;
struct TakeOverOptions;
struct TakenOver;

// Writes elements [begin_elements, begin_elements + values.size()) of a parameter: the same values
// for every rank that requests that part. If the function is the same on all ranks, its error is
// every rank's.
using SliceInitializer =
    std::function<absl::Status(const TensorSpec& parameter, int64_t begin_elements, Values values)>;

// One distribution for all parameters (initializer.h).
SliceInitializer InitializedBy(const Initializer& initializer, uint64_t seed);

// What stays out of sharding: plain tensors of the user's module, on every rank whole, which the
// user's own optimizer updates and the user reduces, if at all.
//
//   AttachOptions attach;
//   attach.ignored.modules = {model->experts};      the subtree, but units below it stay units
//   attach.ignored.parameters = {model->scale};     or single parameters; not both at once
//
// Ranks may ignore different things, as long as what is left is alike. What is named need not be in
// the tree. Source: ignored_modules and ignored_states of torch/distributed/fsdp.
struct IgnoredStates {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<torch::Tensor> parameters;
};

struct AttachOptions {
  IgnoredStates ignored;
  // Initial parameters and all buffers, but those of ignored modules, are rank 0's. Only where the
  // job is new; a trainer that replaces another one takes the job's parameters and keeps its
  // buffers.
  bool sync_module_states = false;
  // Where they are not synchronised: ranks compare them, by digest, and differences are an error
  // that names the first tensor and two ranks.
  bool check_module_states = true;
  // Of parameters on the meta device.
  SliceInitializer initialize_meta;
  MixedPrecision precision;
  // The module's buffers are a part of the job's state: readers get rank 0's,
  // puts set them on all ranks, and a rank's next trainer continues from them. The same on all
  // ranks; the buffers have the same names, dtypes and shapes on all, which do not change.
  bool publish_buffers = true;
  // Gives a new job its values instead of the module: TakeOver (hand_over.h) from another job, for
  // instance, or LoadCheckpoint. The module's parameters may be on the meta device then.
  // Collective; called again where it returns Aborted and the job has no values.
  std::function<absl::Status(Session* session)> first_values;
};

// Every parameter of the tree becomes one of the same name, shape and dtype on the meta device, in
// place: all holders of the tensor see it. Buffers stay.
void MoveToMeta(torch::nn::Module& module);

// --- TakeOverModel ---
//
// A module continues in a job of another size, from the memory of the previous one; so do buffers.
//
//   AttachOptions attach;
//   TakenOver taken;
//   attach.first_values = TakeOverModel(model, {"old"}, &taken);
//   ShardedModel::Attach(model, options, policy, attach);     taken.step is the last that was taken
//
// As TakeOver; include tessera/hand_over.h. Buffers of the old job's rank 0 go into the module on all
// ranks, by name, all that the old job published or, where anything is in the way, none; those that
// it did not are in TakenOver::missing_buffers, and stay. A trainer that replaces another one after
// that keeps its module's own, as of any job.

// For AttachOptions::first_values. `taken`, if not null, outlives the attaching; its buffers are in
// the module, and not in there. Errors of what is returned: as TakeOver.
std::function<absl::Status(Session* session)> TakeOverModel(std::shared_ptr<torch::nn::Module> root,
                                                            TakeOverOptions options,
                                                            TakenOver* taken = nullptr);

}  // namespace tessera

#endif  // TESSERA_TORCH_ATTACH_OPTIONS_H_
