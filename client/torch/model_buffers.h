// The buffers of a module tree, as those who read the job's live state get them: rank 0's, in the
// dtype that they had before attaching, at each version of the state.
//
//   DeclareBuffers ──► ModelSpec::buffers ──► Session::Open ──► PublishBuffers: before each
//   version,
//                                                               those that have changed
//
// Of a buffer of at most kMaxComparedBytes, bytes are compared: kernels write to a batch norm's
// statistics without a trace. A larger one counts as changed when its version counter or its memory
// has, so who writes to one through a pointer calls bump_version() on it (c10::TensorImpl).
// Confined to the thread that trains.
#ifndef TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_
#define TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "client/cpp/session.h"
#include "client/torch/ignored_states.h"
#include "client/torch/module_units.h"
#include "layout/stored_dtype.h"

namespace tessera {

constexpr int64_t kMaxComparedBytes = 1 << 20;

// As a file calls it; nothing where files have no such type.
std::optional<StoredDType> StoredDTypeOf(torch::ScalarType type);

// Adds to units->model the buffers of the tree, but those below modules that are ignored, which
// ranks may have each their own of, and those of a dtype that no file has. Returns their tensors.
std::vector<torch::Tensor> DeclareBuffers(const torch::nn::Module& root,
                                          const IgnoredStates& ignored, ModuleUnits* units);

// From now on `session` publishes these, as they were declared, where it is rank 0's. A buffer on
// the meta device is left out. An operation that makes a version fails with FailedPrecondition, and
// the buffer's name, where one has got another shape, or a dtype that is not floating-point in
// place of one that is, or the other way round.
void PublishBuffers(Session* session, std::vector<torch::Tensor> buffers);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_
