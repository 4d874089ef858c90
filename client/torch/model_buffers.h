// The buffers of a module tree as a part of the job's state, in the dtype that they had before
// attaching: of rank 0 those who read the live state get them, of each rank its next trainer does.
//
//   DeclareBuffers ──► ModelSpec::buffers ──► Session::Open ──► KeepBuffers
//   module ── before each version, what has changed ──► state
//   module ◄── what was put or loaded; all, as a step began, where it is done again ── state
//
// Of a buffer of at most kMaxComparedBytes, bytes are compared: kernels write to a batch norm's
// statistics without a trace. A larger one counts as changed when its version counter or its memory
// has, so who writes to one through a pointer calls bump_version() on it (c10::TensorImpl). Of such
// a one, which another rank's trainer than rank 0's has not changed since it attached, the state
// has nothing: its successor's module is as good. Confined to the thread that trains.
#ifndef TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_
#define TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "client/cpp/session.h"
#include "client/torch/ignored_states.h"
#include "client/torch/libtorch.h"
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

// From now on `session` has these in its state, as they were declared, and writes to them what was
// put or loaded; of a job that others began SessionBuffers::Resume() does so at once. A buffer on
// the meta device is left out. An operation that makes a version fails with FailedPrecondition, and
// the buffer's name, where one has got another shape, or a dtype that is not floating-point in
// place of one that is, or the other way round.
void KeepBuffers(Session* session, std::vector<torch::Tensor> buffers);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_
