#include "client/torch/unit_windows.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/profiler_range.h"
#include "client/torch/replaced_parameters.h"

namespace tessera {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::Node;
using torch::autograd::variable_list;

uint64_t ThisThread() { return at::RecordFunction::currentThreadId(); }
uint64_t NextNode() { return at::sequence_number::peek(); }

UnitDriver::Options DriverOptions(const ModuleUnits& units) {
  UnitDriver::Options options;
  options.root = units.root_unit();
  for (const auto& modules : units.modules)
    options.num_modules.push_back(static_cast<int>(modules.size()));
  return options;
}

}  // namespace

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

// Hooks of nodes, in graphs that may outlive the windows.
class UnitWindows::BeforeNode : public FunctionPreHook {
 public:
  BeforeNode(UnitWindows* windows, std::shared_ptr<const UnitForward> forward)
      : windows_(windows), alive_(windows->alive_), forward_(std::move(forward)) {}
  variable_list operator()(const variable_list& gradients) override {
    // The windows may have ended while the graph lived on.
    if (*alive_) windows_->BeginNode(forward_);
    // Gradients pass unchanged: the hook only opens the window.
    return gradients;
  }
  // The forward that one of these windows' hooks on the node names; null: none.
  static const UnitForward* Of(const UnitWindows* windows, Node* node) {
    for (const auto& hook : node->pre_hooks()) {
      const auto* before = dynamic_cast<const BeforeNode*>(hook.get());
      if (before != nullptr && before->windows_ == windows && *before->alive_)
        return before->forward_.get();
    }
    return nullptr;
  }

 private:
  UnitWindows* const windows_;
  const std::shared_ptr<const bool> alive_;
  const std::shared_ptr<const UnitForward> forward_;
};

class UnitWindows::AfterNode : public FunctionPostHook {
 public:
  AfterNode(UnitWindows* windows, std::shared_ptr<const UnitForward> forward)
      : windows_(windows), alive_(windows->alive_), forward_(std::move(forward)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    if (*alive_) windows_->EndNode(*forward_);
    return outputs;
  }

 private:
  UnitWindows* const windows_;
  const std::shared_ptr<const bool> alive_;
  const std::shared_ptr<const UnitForward> forward_;
};

// What stands in grad() makes room for the sum.
class UnitWindows::BeforeAccumulation : public FunctionPreHook {
 public:
  BeforeAccumulation(UnitWindows* windows, ParameterIndex index)
      : windows_(windows), alive_(windows->alive_), index_(std::move(index)) {}
  variable_list operator()(const variable_list& gradients) override {
    // An undefined gradient adds nothing, so that the kept one may stay.
    if (*alive_ && gradients[0].defined())
      windows_->BeforeParameterGradient(index_.first, index_.second);
    return gradients;
  }

 private:
  UnitWindows* const windows_;
  const std::shared_ptr<const bool> alive_;
  const ParameterIndex index_;
};

// Runs once in a backward, with the sum of all uses of the parameter in its grad().
class UnitWindows::AfterAccumulation : public FunctionPostHook {
 public:
  AfterAccumulation(UnitWindows* windows, ParameterIndex index)
      : windows_(windows), alive_(windows->alive_), index_(std::move(index)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    if (*alive_) windows_->OnParameterGradient(index_.first, index_.second);
    return outputs;
  }
  static bool IsOn(const UnitWindows* windows, Node* node) {
    for (const auto& hook : node->post_hooks()) {
      const auto* after = dynamic_cast<const AfterAccumulation*>(hook.get());
      if (after != nullptr && after->windows_ == windows && *after->alive_) return true;
    }
    return false;
  }

 private:
  UnitWindows* const windows_;
  const std::shared_ptr<const bool> alive_;
  const ParameterIndex index_;
};

UnitWindows::UnitWindows(Session* session, ModuleUnits* units, const torch::nn::Module* root,
                         bool full_precision_in_eval, Summon summon)
    : SessionUnits(session),
      units_(units),
      root_(root),
      full_precision_in_eval_(full_precision_in_eval),
      summon_(std::move(summon)),
      precisions_(session, units, full_precision_in_eval),
      gradients_(session),
      kept_gradients_(session, units),
      driver_(DriverOptions(*units), WindowRules(session->layout().units, units->root_unit()),
              PrefetchPlan(session->config().backward_prefetch, session->config().forward_prefetch,
                           static_cast<int>(units->modules.size())),
              this),
      thread_(ThisThread()) {
  for (size_t unit = 0; unit < units_->modules.size(); ++unit) {
    IndexParameters(unit);
    const auto& modules = units_->modules[unit];
    for (size_t m = 0; m < modules.size(); ++m) modules[m]->AttachUnit(this, unit, m);
  }
  if (!units_->root_is_unit) units_->root->AttachUnit(this, ShardedBase::kRootWithoutUnit, 0);
  // The last: from here on other threads' backwards ask this object.
  ObserveBackwards(this);
}

UnitWindows::~UnitWindows() {
  // Waits for those that are just being told. Only then may members go.
  StopObserving(this);
  // Graphs that outlive this keep their hooks.
  *alive_ = false;
  for (const auto& modules : units_->modules) {
    for (ShardedBase* module : modules) module->DetachUnit();
  }
  units_->root->DetachUnit();
  // Their memory is the session's, which may be unmapped next.
  for (auto& parameters : units_->parameters) {
    for (torch::Tensor& parameter : parameters)
      parameter.set_data(torch::empty({0}, parameter.options()));
  }
}

void UnitWindows::IndexParameters(int unit) {
  // Backwards of other threads look parameters up meanwhile.
  absl::MutexLock lock(&nodes_mu_);
  for (size_t p = 0; p < units_->parameters[unit].size(); ++p)
    parameters_[units_->parameters[unit][p].unsafeGetTensorImpl()] = {unit, static_cast<int>(p)};
}

void UnitWindows::FollowUses(int unit) {
  FollowStreamOf(session(), unit, units_->parameters[unit].front().device());
}

void UnitWindows::PreForward(int unit) {
  const ProfilerRange range("pre_forward", NameOf(unit));
  absl::MutexLock lock(&mu_);
  if (summoned_) ThrowIfError(absl::FailedPreconditionError("forward inside of SummonFullParams"));
  ThrowIfError(CheckThread());
  // Within a backward it is a recomputation, perhaps on a thread of autograd's.
  if (!driver_.in_backward()) thread_ = ThisThread();
  // Values that the user put in place of parameters count from a new forward on.
  if (driver_.BeginsModel(unit)) BeginModelForward();
  const bool is_unit = unit != ShardedBase::kRootWithoutUnit;
  auto forward =
      driver_.BeginForward(unit, is_unit ? precisions_.Wanted(unit) : Precision::kCompute);
  ThrowIfError(forward.status());
  BeginOwnNodes(*forward);
  forwards_.push_back(*std::move(forward));
}

absl::Status UnitWindows::CheckThread() const {
  // A thread that runs nodes of a backward computes segments again.
  const bool in_own_backward = torch::autograd::get_current_graph_task_exec_info() != nullptr;
  const bool other_backward = driver_.in_backward() && !in_own_backward;
  const bool other_forward =
      !driver_.in_backward() && !forwards_.empty() && thread_ != ThisThread();
  if (!other_backward && !other_forward) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "forward on one thread while another thread is in the model's ",
      other_forward ? "forward" : "backward", ": one thread at a time may use a ShardedModel"));
}

void UnitWindows::BeginModelForward() {
  ThrowIfError(TakeReplaced());
  precisions_.UseOriginalBuffers(full_precision_in_eval_ && !root_->is_training());
}

void UnitWindows::EndModelForward() {
  // No backward follows, on any rank.
  const bool evaluates = !root_->is_training() && !torch::GradMode::is_enabled();
  if (evaluates) ThrowIfError(session()->EndForward());
}

void UnitWindows::PostForward(int unit, int member) {
  const ProfilerRange range("post_forward", NameOf(unit));
  absl::MutexLock lock(&mu_);
  // Moved out, so that an error below leaves nothing behind.
  const std::shared_ptr<UnitForward> forward = std::move(forwards_.back());
  forwards_.pop_back();
  EndOwnNodes();
  const absl::StatusOr<bool> model_ended = driver_.EndForward(forward.get(), member);
  ThrowIfError(model_ended.status());
  if (*model_ended) EndModelForward();
}

void UnitWindows::AbandonForward() {
  absl::MutexLock lock(&mu_);
  driver_.AbandonForward(*forwards_.back());
  forwards_.pop_back();
  EndOwnNodes();
}

void UnitWindows::ZeroGradients(int unit) {
  absl::MutexLock lock(&mu_);
  // Without a unit there are no gradients.
  if (unit == ShardedBase::kRootWithoutUnit) return;
  gradients_.Drop(unit);
  kept_gradients_.Drop(unit);
  ThrowIfError(session()->DropGradients(unit));
}

void UnitWindows::AddWork(Node* node, UnitDriver::BackwardWork* work) {
  if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node)) {
    const auto found = parameters_.find(leaf->variable.unsafeGetTensorImpl());
    if (found == parameters_.end()) return;
    // A leaf is shared by all graphs, so it gets its hooks once.
    if (!AfterAccumulation::IsOn(this, node)) {
      node->add_pre_hook(std::make_unique<BeforeAccumulation>(this, found->second));
      node->add_post_hook(std::make_unique<AfterAccumulation>(this, found->second));
    }
    ++(*work)[found->second.first].gradients;
    return;
  }
  // A node that was run before with retain_graph has its hooks already (docs/adr/0060).
  const UnitForward* hooked = BeforeNode::Of(this, node);
  if (hooked == nullptr) {
    auto forward = owners_.Find(node->thread_id(), node->sequence_nr());
    if (forward == nullptr || forward->unit == UnitDriver::kNoUnit) return;
    hooked = forward.get();
    // The post hook first: `forward` is moved by the next line.
    node->add_post_hook(std::make_unique<AfterNode>(this, forward));
    node->add_pre_hook(std::make_unique<BeforeNode>(this, std::move(forward)));
  }
  ++(*work)[hooked->unit].nodes;
}

bool UnitWindows::BeginBackward(const std::vector<Node*>& nodes) {
  UnitDriver::BackwardWork work;
  NodeOwners::Depths depths;
  // Its own lock: other models' backwards come here too, and mu_ may be held for long.
  {
    absl::MutexLock lock(&nodes_mu_);
    for (Node* node : nodes) AddWork(node, &work);
    depths = owners_.depths();
  }
  // One that has nothing of these units may still compute them again.
  if (work.empty() && thread_ != ThisThread()) return false;
  absl::MutexLock lock(&mu_);
  if (!work.empty() && !driver_.in_backward()) {
    const std::string changed = FirstReplaced(*session(), *units_);
    if (!changed.empty()) {
      ThrowIfError(absl::FailedPreconditionError(
          absl::StrCat("parameter '", changed, "' was changed between forward and backward")));
    }
  }
  depths_.push_back(std::move(depths));
  driver_.BeginBackward(std::move(work));
  return true;
}

void UnitWindows::EndBackward(bool failed) {
  absl::MutexLock lock(&mu_);
  if (failed) {
    // Scopes that hooks opened and did not close, since nodes threw.
    absl::MutexLock nodes_lock(&nodes_mu_);
    owners_.EndDownTo(depths_.back(), ThisThread(), NextNode());
  }
  depths_.pop_back();
  ThrowIfError(driver_.EndBackward(failed));
}

void UnitWindows::BeginOwnNodes(std::shared_ptr<const UnitForward> forward) {
  absl::MutexLock lock(&nodes_mu_);
  owners_.Begin(ThisThread(), NextNode(), std::move(forward));
}

void UnitWindows::EndOwnNodes() {
  absl::MutexLock lock(&nodes_mu_);
  owners_.End(ThisThread(), NextNode());
}

void UnitWindows::BeginNode(const std::shared_ptr<const UnitForward>& forward) {
  const ProfilerRange range("pre_backward", NameOf(forward->unit));
  absl::MutexLock lock(&mu_);
  ThrowIfError(driver_.BeginNode(*forward));
  // Nodes that it makes, for gradients of gradients, read what it reads.
  if (torch::GradMode::is_enabled()) BeginOwnNodes(forward);
}

void UnitWindows::EndNode(const UnitForward& forward) {
  const ProfilerRange range("post_backward", NameOf(forward.unit));
  absl::MutexLock lock(&mu_);
  if (torch::GradMode::is_enabled()) EndOwnNodes();
  ThrowIfError(driver_.EndNode(forward));
}

void UnitWindows::BeforeParameterGradient(int unit, int parameter) {
  absl::MutexLock lock(&mu_);
  ThrowIfError(kept_gradients_.Remove(unit, parameter));
}

void UnitWindows::OnParameterGradient(int unit, int parameter) {
  absl::MutexLock lock(&mu_);
  ThrowIfError(TakeGradient(unit, parameter));
  ThrowIfError(driver_.OnGradient(unit));
}

absl::Status UnitWindows::TakeGradient(int unit, int parameter) {
  // Taken out, so that autograd does not add the next gradient to this one.
  torch::Tensor& left = units_->parameters[unit][parameter].mutable_grad();
  // A checkpointed segment may not use it.
  if (!left.defined() || IsKeptGradient(left)) return absl::OkStatus();
  const torch::Tensor gradient = std::exchange(left, torch::Tensor());
  if (gradient.requires_grad()) {
    return absl::UnimplementedError(
        absl::StrCat("the gradient of parameter '",
                     session()->layout().units[unit].flat.parameters()[parameter].spec.name,
                     "' needs a gradient itself, after backward with create_graph, and the job "
                     "cannot keep that: "
                     "take it by torch::autograd::grad"));
  }
  // Reduces the unit that holds the slot, if another one does.
  RETURN_IF_ERROR(driver_.MakeRoom(unit));
  RETURN_IF_ERROR(gradients_.Add(unit, parameter, gradient));
  // From here on grad() refuses to be read (docs/adr/0061).
  kept_gradients_.Put(unit, parameter);
  return absl::OkStatus();
}

absl::Status UnitWindows::TakeReplaced() {
  std::vector<int> changed;
  RETURN_IF_ERROR(TakeReplacedParameters(session(), units_, &changed));
  // A replaced parameter is another tensor, with another accumulator.
  for (const int unit : changed) IndexParameters(unit);
  return absl::OkStatus();
}

void UnitWindows::BeginStep() {
  absl::MutexLock lock(&mu_);
  driver_.ForgetGroups();
  {
    absl::MutexLock nodes_lock(&nodes_mu_);
    // A step ends all graphs, so nodes of earlier graphs have no owner any more.
    owners_.Forget();
  }
  // Autograd then refuses graphs that were made before the step: they would read the new values.
  for (auto& parameters : units_->parameters) {
    for (torch::Tensor& parameter : parameters) torch::autograd::impl::bump_version(parameter);
  }
}

void UnitWindows::DropGradients() {
  absl::MutexLock lock(&mu_);
  driver_.ForgetGroups();
  gradients_.Drop();
  kept_gradients_.Drop();
}

}  // namespace tessera
