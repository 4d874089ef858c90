// What autograd has computed of units' parameters, on its way to the session.
//
//   on the CPU         Add ──► Session::AddGradient
//   on a GPU           Add ──► kept ──Flush──► DeviceGradients::Add, after autograd's stream
//
// On a GPU a unit's gradients stay until the next unit's are flushed: autograd runs ahead of the
// GPU by a unit, and no farther.
//
// Thread-compatible.
#ifndef TESSERA_CLIENT_TORCH_UNIT_GRADIENTS_H_
#define TESSERA_CLIENT_TORCH_UNIT_GRADIENTS_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

class UnitGradients {
 public:
  // `session` outlives this.
  explicit UnitGradients(Session* session)
      : session_(session),
        kept_(static_cast<size_t>(session->num_units())),
        streams_(static_cast<size_t>(session->num_units())) {}
  ~UnitGradients() { Drop(); }

  // Of the unit's parameter; shape, dtype and layout are as autograd left them.
  // Errors: those of Session::AddGradient
  absl::Status Add(int unit, int parameter, const torch::Tensor& gradient);
  // All that was added of the unit is the session's. Before its Reduce, or its step.
  // Errors: those of DeviceGradients::Add
  absl::Status Flush(int unit);
  void Drop();          // What was not flushed, ...
  void Drop(int unit);  // ... and of one unit.

 private:
  Session* const session_;
  using Gradients = std::vector<std::pair<int, torch::Tensor>>;  // By parameter.
  std::vector<Gradients> kept_;                                  // By unit.
  std::vector<std::vector<c10::Stream>> streams_;  // By unit: of the threads that added to it.
  Gradients reading_;                              // Of the unit that was flushed last.
};

// What the calling thread's stream of the GPU was given so far may still read the unit: the end of
// its window comes after that. `device`: of its parameters.
void FollowStreamOf(Session* session, int unit, const torch::Device& device);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_UNIT_GRADIENTS_H_
