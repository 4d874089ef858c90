#include "client/torch/sharded_model.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/torch/checkpoint.h"
#include "client/torch/module_units.h"

namespace tessera {
namespace {

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

// Runs after a leaf's gradient was accumulated in a backward, which happens once, with the sum of
// all its uses.
class AfterAccumulation : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> done) : done_(std::move(done)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    done_();
    return outputs;
  }

 private:
  const std::function<void()> done_;
};

class ShardedModelImpl : public ShardedModel, public UnitObserver {
 public:
  ShardedModelImpl(std::shared_ptr<torch::nn::Module> root, ModuleUnits units,
                   std::unique_ptr<Session> session)
      : root_(std::move(root)),
        units_(std::move(units)),
        session_(std::move(session)),
        backward_(units_.modules.size()) {}
  ~ShardedModelImpl() override;

  absl::Status Open();
  Session& session() override { return *session_; }
  absl::Status RunStep(const std::function<absl::Status()>& step_body, int* redone) override;
  absl::StatusOr<StepResult> StepWithResult(const StepOptions& options) override {
    return session_->Step(options);
  }
  bool SetSync(bool sync) override { return std::exchange(sync_, sync); }

  void PreForward(int unit) override;
  void WatchInput(int unit, const torch::Tensor& input) override;
  void WatchOutput(int unit, const torch::Tensor& output) override;
  void PostForward(int unit) override;

 private:
  struct UnitBackward {
    int inputs_left = 0;       // Inputs whose gradient is still to come.
    int parameters_ready = 0;  // Whose gradient came in this backward.
    bool reduced = false;
  };

  absl::Status InitializeFromModule();
  void UseClusterMemory();
  void HookParameters();
  void PreBackward(int unit);
  void OnParameterGradient(int unit, int parameter);
  void OnUnitGradient(int unit);
  void MaybeReshard(int unit);
  void EndOfBackward();
  void Forget();

  const std::shared_ptr<torch::nn::Module> root_;
  ModuleUnits units_;
  std::unique_ptr<Session> session_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // Keep the hooks alive.
  bool sync_ = true;
  bool in_backward_ = false;
  std::vector<int> forward_order_;  // Of this iteration.
  std::vector<UnitBackward> backward_;
  std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // For hooks in graphs that outlive this.
};

ShardedModelImpl::~ShardedModelImpl() {
  *alive_ = false;
  for (ShardedBase* module : units_.modules) module->AttachUnit(nullptr, -1);
  for (auto& parameters : units_.parameters) {
    for (torch::Tensor& parameter : parameters)
      parameter.set_data(torch::empty({0}, parameter.options()));
  }
}

absl::Status ShardedModelImpl::Open() {
  while (!session_->initialized()) {
    const absl::Status status = InitializeFromModule();
    if (!absl::IsAborted(status)) RETURN_IF_ERROR(status);
    if (absl::IsAborted(status)) RETURN_IF_ERROR(session_->Recover());
  }
  UseClusterMemory();
  HookParameters();
  for (size_t unit = 0; unit < units_.modules.size(); ++unit)
    units_.modules[unit]->AttachUnit(this, unit);
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::InitializeFromModule() {
  return session_->Initialize([this](int unit, int parameter, absl::Span<float> values) {
    if (values.empty()) return;
    const torch::Tensor source =
        units_.parameters[unit][parameter].detach().to(torch::kFloat32).contiguous();
    memcpy(values.data(), source.data_ptr<float>(), values.size() * sizeof(float));
  });
}

void ShardedModelImpl::UseClusterMemory() {
  const auto dtype =
      session_->config().compute_dtype == DType::kBf16 ? torch::kBFloat16 : torch::kFloat32;
  for (size_t unit = 0; unit < units_.parameters.size(); ++unit) {
    for (size_t p = 0; p < units_.parameters[unit].size(); ++p) {
      torch::Tensor& parameter = units_.parameters[unit][p];
      void* address = const_cast<std::byte*>(session_->parameter(unit, p));
      parameter.set_data(
          torch::from_blob(address, parameter.sizes(), torch::TensorOptions().dtype(dtype)));
    }
  }
}

void ShardedModelImpl::HookParameters() {
  for (size_t unit = 0; unit < units_.parameters.size(); ++unit) {
    for (size_t p = 0; p < units_.parameters[unit].size(); ++p) {
      const torch::Tensor& parameter = units_.parameters[unit][p];
      if (!parameter.requires_grad()) continue;
      auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      accumulator->add_post_hook(
          std::make_unique<AfterAccumulation>([this, alive = alive_, unit, p] {
            if (*alive) OnParameterGradient(unit, p);
          }));
      accumulators_.push_back(std::move(accumulator));
    }
  }
}

void ShardedModelImpl::PreForward(int unit) {
  if (in_backward_ || Recomputing()) return PreBackward(unit);
  if (unit == 0) forward_order_.clear();
  if (!session_->unsharded(unit)) ThrowIfError(session_->Unshard(unit));
  forward_order_.push_back(unit);
}

void ShardedModelImpl::WatchInput(int unit, const torch::Tensor& input) {
  if (in_backward_ || !torch::GradMode::is_enabled() || !input.defined() || !input.requires_grad())
    return;
  ++backward_[unit].inputs_left;
  input.register_hook([this, alive = alive_, unit](const torch::Tensor&) {
    if (!*alive) return;
    --backward_[unit].inputs_left;
    MaybeReshard(unit);
  });
}

void ShardedModelImpl::WatchOutput(int unit, const torch::Tensor& output) {
  if (in_backward_ || !torch::GradMode::is_enabled() || !output.defined() ||
      !output.requires_grad())
    return;
  output.register_hook([this, alive = alive_, unit](const torch::Tensor&) {
    if (*alive) PreBackward(unit);
  });
}

void ShardedModelImpl::PostForward(int unit) {
  // The root is needed first in backward, so it stays; so do all units of the other strategies.
  if (in_backward_ || unit == 0 || session_->config().strategy != Strategy::kFullShard) return;
  ThrowIfError(session_->Reshard(unit));
}

void ShardedModelImpl::PreBackward(int unit) {
  if (!in_backward_) {
    in_backward_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback([this, alive = alive_] {
      if (*alive) EndOfBackward();
    });
  }
  if (!session_->unsharded(unit)) ThrowIfError(session_->Unshard(unit));
  if (!session_->config().backward_prefetch) return;
  const auto here = std::find(forward_order_.rbegin(), forward_order_.rend(), unit);
  if (here == forward_order_.rend() || here + 1 == forward_order_.rend()) return;
  const int next = *(here + 1);
  if (session_->closed(next)) ThrowIfError(session_->UnshardAsync(next));
}

void ShardedModelImpl::OnParameterGradient(int unit, int parameter) {
  torch::Tensor& tensor = units_.parameters[unit][parameter];
  if (tensor.grad().defined()) {  // A checkpointed segment may not use it.
    torch::Tensor gradient = tensor.grad().detach().to(torch::kFloat32).contiguous();
    ThrowIfError(session_->AddGradient(
        unit, parameter, absl::MakeConstSpan(gradient.data_ptr<float>(), gradient.numel())));
    tensor.mutable_grad().reset();
  }
  int trainable = 0;
  for (const torch::Tensor& other : units_.parameters[unit]) trainable += other.requires_grad();
  if (++backward_[unit].parameters_ready == trainable) OnUnitGradient(unit);
}

void ShardedModelImpl::OnUnitGradient(int unit) {
  if (sync_ && session_->has_gradient(unit)) ThrowIfError(session_->Reduce(unit));
  backward_[unit].reduced = true;
  MaybeReshard(unit);
}

void ShardedModelImpl::MaybeReshard(int unit) {
  const UnitBackward& state = backward_[unit];
  // What backward still has to compute of the unit's input may read its parameters.
  if (!in_backward_ || !state.reduced || state.inputs_left > 0 || unit == 0) return;
  if (session_->config().strategy == Strategy::kNoShard) return;
  if (!session_->closed(unit)) ThrowIfError(session_->Reshard(unit));
}

void ShardedModelImpl::EndOfBackward() {
  in_backward_ = false;
  for (int unit = session_->num_units() - 1; unit >= 0; --unit) {
    // Units of which some parameter got no gradient.
    if (sync_ && session_->has_gradient(unit)) ThrowIfError(session_->Reduce(unit));
    backward_[unit] = UnitBackward();
    if (session_->config().strategy != Strategy::kNoShard && !session_->closed(unit)) {
      ThrowIfError(session_->Reshard(unit));
    }
  }
}

void ShardedModelImpl::Forget() {
  in_backward_ = false;
  forward_order_.clear();
  backward_.assign(backward_.size(), UnitBackward());
  for (auto& parameters : units_.parameters) {
    for (torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
}

absl::Status ShardedModelImpl::RunStep(const std::function<absl::Status()>& step_body,
                                       int* redone) {
  return session_->RunStep(
      [&]() -> absl::Status {
        Forget();
        try {
          return step_body();
        } catch (const StatusException& e) {
          return e.status();
        } catch (const c10::Error& e) {
          return absl::UnknownError(e.what_without_backtrace());
        } catch (const std::exception& e) {
          return absl::UnknownError(e.what());
        }
      },
      redone);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Attach(
    std::shared_ptr<torch::nn::Module> root, SessionOptions options, const WrapPolicy& policy) {
  ASSIGN_OR_RETURN(ModuleUnits units, FindUnits(*root, policy));
  options.model = units.model;
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Open(options));
  auto model =
      std::make_unique<ShardedModelImpl>(std::move(root), std::move(units), std::move(session));
  RETURN_IF_ERROR(model->Open());
  return model;
}

}  // namespace tessera
