// The state of libtorch's own optimizers as an OptimStateDict, and back.
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/state_entry_check.h"
#include "client/torch/torch_status.h"
#include "tessera/torch/optim_state_dicts.h"

namespace tessera {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

using StateKey = std::decay_t<decltype(std::declval<Optimizer&>().state())>::key_type;

// libtorch keeps states by the address of the parameter; older versions by its digits.
template <typename Key>
Key KeyOf(const torch::Tensor& parameter) {
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream digits;
    digits << parameter.unsafeGetTensorImpl();
    return digits.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

absl::StatusOr<std::vector<torch::Tensor>> ParametersOf(const Optimizer& optimizer,
                                                        const std::vector<std::string>& names) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (parameters.size() == names.size()) return parameters;
  return absl::InvalidArgumentError(absl::StrCat("the optimizer has ", parameters.size(),
                                                 " parameters, and there are ", names.size(),
                                                 " names"));
}

absl::Status AmsgradError() {
  return absl::UnimplementedError("optimizer state: amsgrad's maxima are not kept");
}

template <typename State>
absl::StatusOr<OptimParamState> FromAdam(const State& state) {
  // A dictionary has no place for it, and without it training would not continue as it was.
  if (state.max_exp_avg_sq().defined()) return AmsgradError();
  OptimParamState from;
  from.step = state.step();
  // Copies, because the next step changes the optimizer's own.
  from.moments["exp_avg"] = StateEntry::Whole(state.exp_avg().detach().clone());
  from.moments["exp_avg_sq"] = StateEntry::Whole(state.exp_avg_sq().detach().clone());
  return from;
}

absl::StatusOr<OptimParamState> FromTorch(const OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state))
    return FromAdam(*adamw);
  if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state))
    return FromAdam(*adam);
  const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state);
  if (sgd == nullptr)
    return absl::UnimplementedError("optimizer state: only of libtorch's Adam, AdamW and SGD");
  OptimParamState from;
  if (sgd->momentum_buffer().defined())
    from.moments["momentum_buffer"] = StateEntry::Whole(sgd->momentum_buffer().detach().clone());
  return from;
}

template <typename Options>
HyperParameters NumbersOfAdam(const Options& options) {
  HyperParameters numbers;
  numbers.learning_rate = options.lr();
  std::tie(numbers.beta1, numbers.beta2) = options.betas();
  numbers.epsilon = options.eps();
  numbers.weight_decay = options.weight_decay();
  return numbers;
}

HyperParameters NumbersOf(const OptimizerOptions& options) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return NumbersOfAdam(*adamw);
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    return NumbersOfAdam(*adam);
  HyperParameters numbers;
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    numbers.learning_rate = sgd->lr();
    numbers.momentum = sgd->momentum();
    numbers.weight_decay = sgd->weight_decay();
  }
  return numbers;
}

template <typename Options>
void SetAdamNumbers(const HyperParameters& numbers, Options* options) {
  options->lr(numbers.learning_rate)
      .betas({numbers.beta1, numbers.beta2})
      .eps(numbers.epsilon)
      .weight_decay(numbers.weight_decay);
}

OptimFormula FormulaOf(const OptimizerOptions& options) {
  OptimFormula formula;
  formula.decoupled_weight_decay =
      dynamic_cast<const torch::optim::AdamWOptions*>(&options) != nullptr;
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    formula.nesterov = sgd->nesterov();
    formula.dampening = sgd->dampening();
  }
  return formula;
}

void SetNumbers(const OptimParamGroup& group, OptimizerOptions* options) {
  const HyperParameters& numbers = group.numbers;
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(options))
    SetAdamNumbers(numbers, adamw);
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(options)) SetAdamNumbers(numbers, adam);
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(options)) {
    sgd->lr(numbers.learning_rate).momentum(numbers.momentum).weight_decay(numbers.weight_decay);
    if (group.formula.has_value())
      sgd->nesterov(group.formula->nesterov).dampening(group.formula->dampening);
  }
}

std::vector<std::string> MomentNames(const Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return {"momentum_buffer"};
  return {"exp_avg", "exp_avg_sq"};
}

template <typename State>
std::unique_ptr<OptimizerParamState> ToAdam(int64_t step,
                                            const std::map<std::string, torch::Tensor>& moments) {
  auto state = std::make_unique<State>();
  state->step(step);
  state->exp_avg(moments.at("exp_avg"));
  state->exp_avg_sq(moments.at("exp_avg_sq"));
  return state;
}

absl::StatusOr<std::unique_ptr<OptimizerParamState>> ToTorch(const Optimizer& optimizer,
                                                             const std::string& name,
                                                             const OptimParamState& from,
                                                             const torch::Tensor& parameter) {
  std::map<std::string, torch::Tensor> moments;
  for (const std::string& moment : MomentNames(optimizer)) {
    const auto entry = from.moments.find(moment);
    if (entry == from.moments.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer state, '", name, "': there is no '", moment, "'"));
    }
    RETURN_IF_ERROR(
        CheckStateEntry(absl::StrCat(name, "', '", moment), entry->second,
                        {StateEntry::Kind::kWhole, parameter.sizes().vec(), ElementRange()}));
    // A copy also where nothing is converted: the dictionary stays the caller's.
    moments[moment] = entry->second.tensor.detach().to(parameter.options()).clone();
  }
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr)
    return ToAdam<torch::optim::AdamWParamState>(from.step, moments);
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr)
    return ToAdam<torch::optim::AdamParamState>(from.step, moments);
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(moments.at("momentum_buffer"));
  return state;
}

bool UsesAmsgrad(const Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.has_options()) continue;
    const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&group.options());
    const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&group.options());
    if ((adam != nullptr && adam->amsgrad()) || (adamw != nullptr && adamw->amsgrad())) return true;
  }
  return false;
}

// Also where it has no state yet.
absl::Status CheckKnown(const Optimizer& optimizer) {
  const bool known = dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr ||
                     dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr ||
                     dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr;
  if (!known)
    return absl::UnimplementedError("optimizer state: only of libtorch's Adam, AdamW and SGD");
  return UsesAmsgrad(optimizer) ? AmsgradError() : absl::OkStatus();
}

// Numbers are taken only with as many groups: else the user's stay.
bool TakesNumbers(const OptimStateDict& dict, const Optimizer& optimizer) {
  return dict.groups.size() == optimizer.param_groups().size();
}

// SGD takes over what another SGD had.
absl::Status CheckGroups(const OptimStateDict& dict, const Optimizer& optimizer) {
  for (size_t g = 0; TakesNumbers(dict, optimizer) && g < dict.groups.size(); ++g) {
    OptimFormula own = FormulaOf(optimizer.param_groups()[g].options());
    const bool is_sgd = dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr;
    if (is_sgd && dict.groups[g].formula.has_value()) {
      own.nesterov = dict.groups[g].formula->nesterov;
      own.dampening = dict.groups[g].formula->dampening;
    }
    RETURN_IF_ERROR(CheckFormula(dict.groups[g], own, g));
  }
  return absl::OkStatus();
}

using States = std::unordered_map<StateKey, std::unique_ptr<OptimizerParamState>>;

// By libtorch's key.
absl::StatusOr<States> StatesFrom(const OptimStateDict& dict, const std::vector<std::string>& names,
                                  const Optimizer& optimizer) {
  RETURN_IF_ERROR(CheckKnown(optimizer));
  RETURN_IF_ERROR(CheckGroups(dict, optimizer));
  ASSIGN_OR_RETURN(const std::vector<torch::Tensor> parameters, ParametersOf(optimizer, names));
  // A state that has no parameter would be lost silently.
  const std::set<std::string> known(names.begin(), names.end());
  for (const auto& item : dict.state) {
    if (known.count(item.key()) == 0) {
      return absl::NotFoundError(
          absl::StrCat("optimizer state: '", item.key(), "' is not a parameter of the optimizer"));
    }
  }
  States states;
  for (size_t i = 0; i < names.size(); ++i) {
    const OptimParamState* from = dict.state.find(names[i]);
    if (from == nullptr) continue;
    ASSIGN_OR_RETURN(states[KeyOf<StateKey>(parameters[i])],
                     ToTorch(optimizer, names[i], *from, parameters[i]));
  }
  return states;
}

absl::StatusOr<OptimStateDict> ReadState(const Optimizer& optimizer,
                                         const std::vector<std::string>& names) {
  RETURN_IF_ERROR(CheckKnown(optimizer));
  ASSIGN_OR_RETURN(const std::vector<torch::Tensor> parameters, ParametersOf(optimizer, names));
  OptimStateDict dict;
  size_t next = 0;
  for (const auto& group : optimizer.param_groups()) {
    OptimParamGroup& to = dict.groups.emplace_back();
    if (group.has_options()) {
      to.numbers = NumbersOf(group.options());
      to.formula = FormulaOf(group.options());
    }
    for (size_t i = 0; i < group.params().size(); ++i) to.params.push_back(names[next++]);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const auto state = optimizer.state().find(KeyOf<StateKey>(parameters[i]));
    if (state == optimizer.state().end()) continue;
    ASSIGN_OR_RETURN(OptimParamState of_parameter, FromTorch(*state->second));
    dict.state.insert(names[i], std::move(of_parameter));
  }
  return dict;
}

absl::Status SetState(const OptimStateDict& dict, const std::vector<std::string>& names,
                      Optimizer* optimizer) {
  // All states are made before any is replaced: an error leaves the optimizer as it was.
  ASSIGN_OR_RETURN(States states, StatesFrom(dict, names, *optimizer));
  // Parameters that the dictionary leaves out begin without state.
  optimizer->state().clear();
  for (auto& [key, state] : states) optimizer->state()[key] = std::move(state);
  auto& groups = optimizer->param_groups();
  for (size_t g = 0; TakesNumbers(dict, *optimizer) && g < groups.size(); ++g)
    SetNumbers(dict.groups[g], &groups[g].options());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OptimStateDict> OptimStateOf(const Optimizer& optimizer,
                                            const std::vector<std::string>& names) {
  return CatchTorch([&] { return ReadState(optimizer, names); });
}

absl::Status CheckOptimState(const OptimStateDict& dict, const std::vector<std::string>& names,
                             const Optimizer& optimizer) {
  return CatchTorch([&] { return StatesFrom(dict, names, optimizer).status(); });
}

absl::Status SetOptimState(const OptimStateDict& dict, const std::vector<std::string>& names,
                           Optimizer* optimizer) {
  return CatchTorch([&] { return SetState(dict, names, optimizer); });
}

}  // namespace tessera
