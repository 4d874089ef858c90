// What stands in a parameter's grad() once the job has its gradient: a tensor of the same shape,
// dtype and device whose elements cannot be reached. What would read or write them, torch's
// clip_grad_norm_ and optimizers too, throws StatusException (FailedPrecondition) with the
// parameter's name, where it would else find no gradient and do nothing.
#ifndef TESSERA_CLIENT_TORCH_KEPT_GRADIENT_H_
#define TESSERA_CLIENT_TORCH_KEPT_GRADIENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/module_units.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

torch::Tensor KeptGradient(const torch::Tensor& parameter, std::string name);
// False where it is not defined, too.
bool IsKeptGradient(const torch::Tensor& gradient);
// Whether grad() has a gradient that can be read: one that the user set.
inline bool HasOwnGradient(const torch::Tensor& parameter) {
  return parameter.grad().defined() && !IsKeptGradient(parameter.grad());
}

// Those of a model's parameters since the last step. Confined to the thread that trains.
class KeptGradients {
 public:
  // Session and units outlive this.
  KeptGradients(const Session* session, const ModuleUnits* units);

  // The job took what was in grad().
  void Put(int unit, int parameter);
  // Before autograd adds to grad().
  // Errors: as Check
  absl::Status Remove(int unit, int parameter);
  // Before a step.
  // Errors: FailedPrecondition  a grad() was reset, which drops nothing: the parameter is named.
  absl::Status Check() const;
  void StepBegins();  // The job uses them; grad() stays as it is.
  void Drop();
  void Drop(int unit);

 private:
  absl::Status Check(int unit, int parameter) const;

  const Session* const session_;
  const ModuleUnits* const units_;
  struct Kept {
    torch::Tensor tensor;  // Made when it is needed first.
    bool put = false;
  };
  std::vector<std::vector<Kept>> kept_;  // By unit and parameter.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_KEPT_GRADIENT_H_
