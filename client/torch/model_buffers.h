// The buffers of a module tree as a part of the job's state, in the dtype that they had before
// attaching: rank 0's for readers of the live state, each rank's own for its next trainer.
//
//   DeclareBuffers ──► ModelSpec::buffers ──► Session::Open ──► KeepBuffers
//   module ── before each version, what has changed ──► state
//   module ◄── what was put or loaded; all, as a step began, where it is done again ── state
//
// A buffer of at most kMaxComparedBytes is compared byte by byte: kernels write to a batch norm's
// statistics without a trace. A larger one counts as changed when its version counter or its memory
// has changed, so code that writes to one through a pointer must call bump_version() on it
// (c10::TensorImpl). A large buffer that a trainer of another rank than rank 0 has not changed
// since it attached is not in the state: its successor's module has the same. Confined to the
// thread that trains.
#ifndef TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_
#define TESSERA_CLIENT_TORCH_MODEL_BUFFERS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "client/torch/module_units.h"
#include "layout/stored_dtype.h"
#include "tessera/session.h"
#include "tessera/torch/attach_options.h"
#include "tessera/torch/libtorch.h"

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
