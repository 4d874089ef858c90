#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tessera/hand_over.h"
#include "tessera/torch/attach_options.h"

namespace tessera {
namespace {

// Shapes and dtypes are those that the module was declared with, so they fit.
void SetBuffers(const torch::nn::Module& root, const std::vector<NamedTensor>& buffers) {
  const torch::NoGradGuard no_grad;
  const auto named = root.named_buffers();
  for (const NamedTensor& from : buffers) {
    const torch::Tensor* found = named.find(from.name);
    // The module's own values stay where what came does not fit.
    if (found == nullptr || found->is_meta() || from.values.size() != found->nbytes()) continue;
    const bool is_bool = found->scalar_type() == torch::kBool;
    torch::Tensor values =
        torch::empty(found->sizes(), is_bool ? torch::kByte : found->scalar_type());
    if (!from.values.empty()) memcpy(values.data_ptr(), from.values.data(), from.values.size());
    if (is_bool) values = values.ne(0);  // A bool's byte must be 0 or 1.
    torch::Tensor target = *found;
    target.copy_(values);
  }
}

}  // namespace

std::function<absl::Status(Session* session)> TakeOverModel(std::shared_ptr<torch::nn::Module> root,
                                                            TakeOverOptions options,
                                                            TakenOver* taken) {
  options.take_buffers = [root = std::move(root), also = std::move(options.take_buffers)](
                             const std::vector<NamedTensor>& buffers) {
    SetBuffers(*root, buffers);
    if (also != nullptr) also(buffers);
  };
  return [options = std::move(options), taken](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(TakenOver own, TakeOver(session, options));
    // They are in the module, and are not kept twice.
    own.buffers.clear();
    if (taken != nullptr) *taken = std::move(own);
    return absl::OkStatus();
  };
}

}  // namespace tessera
