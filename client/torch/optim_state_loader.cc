#include "client/torch/optim_state_loader.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/precision_rules.h"
#include "client/torch/state_parts.h"
#include "client/torch/state_sites.h"
#include "client/torch/torch_status.h"

namespace tessera {
namespace {

constexpr int64_t kNone = -1;

absl::Span<char> BytesOf(std::vector<int64_t>* numbers) {
  return absl::MakeSpan(reinterpret_cast<char*>(numbers->data()),
                        numbers->size() * sizeof(int64_t));
}

absl::Span<char> BytesOf(std::vector<HyperParameters>* numbers) {
  return absl::MakeSpan(reinterpret_cast<char*>(numbers->data()),
                        numbers->size() * sizeof(HyperParameters));
}

}  // namespace

const char* MomentName(OptimizerKind optimizer, StateArray array) {
  if (optimizer == OptimizerKind::kSgd) return "momentum_buffer";
  return array == StateArray::kFirstMoment ? "exp_avg" : "exp_avg_sq";
}

absl::StatusOr<int64_t> StepOfUnit(const Session& session, int unit,
                                   const std::function<int64_t(int p)>& step) {
  const std::vector<PlacedParameter>& placed = session.layout().units[unit].flat.parameters();
  int first = -1;
  for (size_t p = 0; p < placed.size(); ++p) {
    // Frozen parameters are never updated, so their step does not count.
    if (!placed[p].spec.requires_grad) continue;
    if (first < 0) first = p;
    if (step(p) == step(first)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer state: a flat part has one step, but '", placed[first].spec.name,
                     "' has ", std::max<int64_t>(step(first), 0), " and '", placed[p].spec.name,
                     "' ", std::max<int64_t>(step(p), 0)));
  }
  return first < 0 ? -1 : step(first);
}

OptimStateLoader::OptimStateLoader(ShardedModel* model, StateDictType type,
                                   const LoadStateOptions& options, const OptimStateDict* dict)
    : model_(model),
      session_(&model->session()),
      type_(type),
      options_(options),
      dict_(dict),
      arrays_(MomentsOf(model->session().config().optimizer)),
      exchange_(&model->session()) {
  for (const UnitLayout& unit : session_->layout().units) {
    first_.push_back(num_parameters_);
    num_parameters_ += unit.flat.parameters().size();
  }
}

std::optional<int64_t> OptimStateLoader::last_step() const {
  if (plan_.back() == kNone) return std::nullopt;
  return plan_.back();
}

std::string OptimStateLoader::KeyOf(int unit, int p) const {
  return type_ == StateDictType::kLocal ? FlatKeyOf(*model_, unit, "") : SpecOf(unit, p).name;
}

absl::Status OptimStateLoader::PlanParameter(int unit, int p, const OptimParamState& state) {
  const std::string key = KeyOf(unit, p);
  const auto error = [&key](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat("optimizer state, '", key, "': ", what));
  };
  if (state.step < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state, '", key, "': its step is ", state.step));
  const OptimizerKind optimizer = session_->config().optimizer;
  std::set<std::string> known;
  int64_t bits = 0;
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const std::string moment = MomentName(optimizer, arrays_[i]);
    known.insert(moment);
    const auto entry = state.moments.find(moment);
    // A momentum buffer that is not there yet is one of zeroes.
    if (entry == state.moments.end() && optimizer == OptimizerKind::kSgd) continue;
    if (entry == state.moments.end()) return error(absl::StrCat("it has no '", moment, "'"));
    RETURN_IF_ERROR(CheckStateEntry(absl::StrCat(key, "', '", moment), entry->second,
                                    ExpectedOf(*session_, unit, p, type_)));
    // A bit for each moment that the state has.
    bits |= int64_t{1} << i;
  }
  for (const auto& [moment, entry] : state.moments) {
    // Dropped silently it would be lost for good.
    if (known.count(moment) == 0)
      return error(absl::StrCat("the job's optimizer has no '", moment, "'"));
  }
  plan_[first_[unit] + p] = state.step;
  plan_[num_parameters_ + first_[unit] + p] = bits;
  return absl::OkStatus();
}

absl::Status OptimStateLoader::PlanGroups() {
  // Without groups the job's own numbers stay.
  if (dict_->groups.empty()) return absl::OkStatus();
  const size_t wanted = session_->config().groups.size();
  if (dict_->groups.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state: it has ", dict_->groups.size(),
                                                   " param groups, the job has ", wanted));
  }
  for (size_t g = 0; g < wanted; ++g) {
    RETURN_IF_ERROR(ValidateHyperParameters(dict_->groups[g].numbers, g));
    RETURN_IF_ERROR(CheckFormula(dict_->groups[g], FormulaOf(session_->config().optimizer), g));
    groups_.push_back(dict_->groups[g].numbers);
  }
  return absl::OkStatus();
}

absl::Status OptimStateLoader::Plan() {
  std::set<std::string> known;
  for (size_t unit = 0; unit < first_.size(); ++unit) {
    const FlatLayout& flat = session_->layout().units[unit].flat;
    for (size_t p = 0; p < flat.parameters().size(); ++p) {
      const std::string key = KeyOf(unit, p);
      known.insert(key);
      const OptimParamState* state = dict_->state.find(key);
      // Of a unit's part the frozen parameters have none.
      const bool has = type_ != StateDictType::kLocal || flat.parameters()[p].spec.requires_grad;
      if (state != nullptr && has) RETURN_IF_ERROR(PlanParameter(unit, p, *state));
    }
  }
  // Keys that no parameter has are errors: state would be lost.
  for (const auto& item : dict_->state) {
    if (known.count(item.key()) > 0) continue;
    return absl::NotFoundError(absl::StrCat("optimizer state: '", item.key(), "' is not a ",
                                            type_ == StateDictType::kLocal ? "unit" : "parameter",
                                            " of the model"));
  }
  if (dict_->last_step.has_value() && *dict_->last_step < 0)
    return absl::InvalidArgumentError("optimizer state: its last step is negative");
  plan_.back() = dict_->last_step.value_or(kNone);
  return PlanGroups();
}

absl::Status OptimStateLoader::SharePlan() {
  // Together with the plan: ranks must make the same collective calls.
  std::vector<int64_t> num_groups = {static_cast<int64_t>(groups_.size())};
  if (!options_.from_rank0) {
    std::vector<int64_t> all = plan_;
    all.push_back(num_groups[0]);
    return exchange_.CheckAlike(BytesOf(&all),
                                "load optimizer states that differ: load the same "
                                "on all ranks, or from_rank0");
  }
  RETURN_IF_ERROR(exchange_.Share(&plan_));
  RETURN_IF_ERROR(exchange_.Share(&num_groups));
  // Before the vector grows: the number came from another process.
  if (num_groups[0] != 0 && num_groups[0] != static_cast<int64_t>(session_->config().groups.size()))
    return absl::InternalError("rank 0 announced another number of param groups");
  groups_.resize(num_groups[0]);
  return exchange_.Share(BytesOf(&groups_));
}

absl::Status OptimStateLoader::Read() {
  // Steps of all parameters, then bits of all, then the last step.
  plan_.assign(2 * num_parameters_ + 1, kNone);
  std::fill(plan_.begin() + num_parameters_, plan_.end() - 1, 0);
  groups_.clear();
  values_.clear();
  // All ranks agree before the first exchange, so that none waits for one that returned.
  RETURN_IF_ERROR(
      exchange_.AgreeOn(CatchTorch([this] { return reads_dict() ? Plan() : absl::OkStatus(); })));
  RETURN_IF_ERROR(SharePlan());
  for (const StateArray array : arrays_) {
    for (size_t unit = 0; unit < first_.size(); ++unit) {
      RETURN_IF_ERROR(type_ == StateDictType::kLocal ? FillFlat(array, unit) : Fill(array, unit));
    }
  }
  return absl::OkStatus();
}

absl::Status OptimStateLoader::Fill(StateArray array, int unit) {
  const torch::ScalarType dtype = ScalarTypeOf(session_->full_dtype(unit));
  const UnitLayout& layout = session_->layout().units[unit];
  const ShardView view = ViewOf(*session_, unit);
  const size_t bit = array == StateArray::kFirstMoment ? 0 : 1;
  std::vector<torch::Tensor>& values = values_[{array, unit}];
  for (const ParameterSlice& slice : view.slices())
    values.push_back(torch::zeros({slice.in_parameter.size()}, dtype));
  for (size_t p = 0; p < layout.flat.parameters().size(); ++p) {
    if (!Has(unit, p, bit)) continue;
    const TensorSpec& spec = SpecOf(unit, p);
    const char* moment = MomentName(session_->config().optimizer, array);
    StateEntry own;
    if (reads_dict()) own = dict_->state[spec.name].moments.at(moment);
    torch::Tensor whole = own.tensor;
    if (options_.from_rank0) {
      ASSIGN_OR_RETURN(whole, exchange_.Share(own.tensor, spec.shape, dtype));
    } else if (own.kind == StateEntry::Kind::kRows) {
      ASSIGN_OR_RETURN(
          whole, exchange_.GatherRows(own.tensor, spec.shape, dtype, layout.shards.num_shards()));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const ParameterSlice& slice = view.slices()[i];
      if (slice.parameter_index == static_cast<int64_t>(p))
        values[i] = FlatPart(whole, slice.in_parameter, dtype);
    }
  }
  return absl::OkStatus();
}

absl::Status OptimStateLoader::FillFlat(StateArray array, int unit) {
  const torch::ScalarType dtype = ScalarTypeOf(session_->full_dtype(unit));
  const size_t bit = array == StateArray::kFirstMoment ? 0 : 1;
  std::vector<torch::Tensor>& values = values_[{array, unit}];
  const OptimParamState* state = dict_->state.find(KeyOf(unit, 0));
  const ShardView view = ViewOf(*session_, unit);
  int64_t at = 0;
  for (const ParameterSlice& slice : view.slices()) {
    const int64_t size = slice.in_parameter.size();
    if (Has(unit, slice.parameter_index, bit)) {
      const char* moment = MomentName(session_->config().optimizer, array);
      values.push_back(FlatPart(state->moments.at(moment).tensor, {at, at + size}, dtype));
    } else {
      values.push_back(torch::zeros({size}, dtype));
    }
    at += size;
  }
  return absl::OkStatus();
}

}  // namespace tessera
