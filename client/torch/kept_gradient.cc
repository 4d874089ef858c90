#include "client/torch/kept_gradient.h"

#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tessera/torch/sharded.h"

namespace tessera {
namespace {

// A key that libtorch leaves to other projects; the last of these, which is used least.
constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse3;

class KeptGradientImpl : public c10::TensorImpl {
 public:
  KeptGradientImpl(c10::IntArrayRef shape, caffe2::TypeMeta dtype, c10::Device device,
                   std::shared_ptr<const std::string> name)
      : TensorImpl(c10::DispatchKeySet(kKey), dtype, device), name_(std::move(name)) {
    // See docs/adr/0061.
    key_set_ = c10::DispatchKeySet(kKey);  // Without autograd's, so that every kernel is Refuse.
    set_sizes_contiguous(shape);
    // Kernels of libtorch 2 compare tensors' storages without asking whether there are any.
    storage_ = c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device));
  }

  [[noreturn]] void Refuse() const {
    throw StatusException(absl::FailedPreconditionError(absl::StrCat(
        "the gradient of parameter '", *name_,
        "' cannot be read or changed in grad(): the job has it, as part of the mean over the "
        "ranks. To clip, call ClipGradNorm; to drop it, zero_grad() of the Sharded<> module; to "
        "change it, register a CommHook; to read it, SummonFullParams with with_grads; for an "
        "optimizer of torch, see ShardOptimizer")));
  }

  bool has_storage() const override { Refuse(); }
  const c10::Storage& storage() const override { Refuse(); }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&,
                                                         bool) const override {
    return Copy();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&,
                                                         bool) const override {
    return Copy();
  }

 private:
  c10::intrusive_ptr<TensorImpl> Copy() const {
    return c10::make_intrusive<KeptGradientImpl>(sizes(), dtype(), device(), name_);
  }

  const std::shared_ptr<const std::string> name_;
};

const KeptGradientImpl* KeptIn(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined())
    // By its implementation: asking the tensor anything else would throw.
    return dynamic_cast<const KeptGradientImpl*>(value.toTensor().unsafeGetTensorImpl());
  if (!value.isList()) return nullptr;
  for (const c10::IValue& element : value.toListRef()) {
    if (const KeptGradientImpl* kept = KeptIn(element)) return kept;
  }
  return nullptr;
}

// Every operation that has such a tensor among its arguments.
void RefuseOperation(const c10::OperatorHandle& operation, c10::Stack* stack) {
  for (const c10::IValue& argument : *stack) {
    if (const KeptGradientImpl* kept = KeptIn(argument)) kept->Refuse();
  }
  TORCH_CHECK(false, operation.schema().name(), ": no kernel for ", c10::toString(kKey));
}

TORCH_LIBRARY_IMPL(_, PrivateUse3, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&RefuseOperation>());
}

}  // namespace

torch::Tensor KeptGradient(const torch::Tensor& parameter, std::string name) {
  return torch::Tensor(c10::make_intrusive<KeptGradientImpl>(
      parameter.sizes(), parameter.dtype(), parameter.device(),
      std::make_shared<const std::string>(std::move(name))));
}

bool IsKeptGradient(const torch::Tensor& gradient) {
  return gradient.defined() &&
         dynamic_cast<const KeptGradientImpl*>(gradient.unsafeGetTensorImpl()) != nullptr;
}

KeptGradients::KeptGradients(const Session* session, const ModuleUnits* units)
    : session_(session), units_(units) {
  for (const auto& parameters : units->parameters) kept_.emplace_back(parameters.size());
}

void KeptGradients::Put(int unit, int parameter) {
  Kept& kept = kept_[unit][parameter];
  const torch::Tensor& tensor = units_->parameters[unit][parameter];
  if (!kept.tensor.defined()) {
    kept.tensor =
        KeptGradient(tensor, session_->layout().units[unit].flat.parameters()[parameter].spec.name);
  }
  kept.put = true;
  tensor.mutable_grad() = kept.tensor;
}

absl::Status KeptGradients::Remove(int unit, int parameter) {
  RETURN_IF_ERROR(Check(unit, parameter));
  const torch::Tensor& tensor = units_->parameters[unit][parameter];
  // Only this kind is removed: a gradient of the user's own is added to.
  if (IsKeptGradient(tensor.grad())) tensor.mutable_grad().reset();
  return absl::OkStatus();
}

absl::Status KeptGradients::Check(int unit, int parameter) const {
  // The user reset it: the job's gradient would still count.
  if (!kept_[unit][parameter].put || units_->parameters[unit][parameter].grad().defined())
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "grad() of parameter '",
      session_->layout().units[unit].flat.parameters()[parameter].spec.name,
      "' was reset, but the job has its gradient: zero_grad() of the Sharded<> module drops it"));
}

absl::Status KeptGradients::Check() const {
  for (size_t unit = 0; unit < kept_.size(); ++unit) {
    for (size_t p = 0; p < kept_[unit].size(); ++p) RETURN_IF_ERROR(Check(unit, p));
  }
  return absl::OkStatus();
}

void KeptGradients::StepBegins() {
  for (auto& unit : kept_) {
    for (Kept& kept : unit) kept.put = false;
  }
}

void KeptGradients::Drop() {
  for (size_t unit = 0; unit < kept_.size(); ++unit) Drop(unit);
}

void KeptGradients::Drop(int unit) {
  for (size_t p = 0; p < kept_[unit].size(); ++p) {
    kept_[unit][p].put = false;
    units_->parameters[unit][p].mutable_grad().reset();
  }
}

}  // namespace tessera
