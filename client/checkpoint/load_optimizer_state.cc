#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "checkpoint/dcp/dcp_model.h"
#include "checkpoint/dcp/dcp_optimizer.h"
#include "checkpoint/dcp/optimizer_ids.h"
#include "checkpoint/safetensors/element_reader.h"
#include "checkpoint/storage/storage_path.h"
#include "client/session/session_setup.h"
#include "client/session/state_access.h"
#include "job/param_groups.h"
#include "layout/shard_view.h"
#include "layout/stored_dtype.h"
#include "tessera/optimizer_state.h"
#include "tessera/stored_model.h"

namespace tessera {
namespace {

using Numbers = dcp::OptimizerState::Numbers;

// As PyTorch calls the job's arrays.
std::string MomentName(OptimizerKind optimizer, StateArray array) {
  if (optimizer == OptimizerKind::kSgd) return "momentum_buffer";
  return array == StateArray::kFirstMoment ? "exp_avg" : "exp_avg_sq";
}

absl::Status Wrong(absl::StatusCode code, absl::string_view item, absl::string_view why) {
  return absl::Status(code, absl::StrCat("optimizer state, '", item, "': ", why));
}

// What one parameter of the job gets: of each array the tensor in the folder, if there is one.
struct ParameterPlan {
  int64_t update_count = 0;
  std::map<StateArray, std::string> tensors;
};

// What this rank gets of the folder, found out before anything is changed.
class Plan {
 public:
  absl::Status Make(const Session& session, const std::string& path,
                    const LoadOptimizerOptions& options) {
    ASSIGN_OR_RETURN(const std::string folder, PlainPath(path));
    if (!IsAbsolutePath(folder))
      return absl::InvalidArgumentError(
          absl::StrCat("folder '", folder, "' is not an absolute path"));
    if (!session.initialized())
      return absl::FailedPreconditionError("optimizer state of a job without initial values");
    ASSIGN_OR_RETURN(dcp::DcpModel model, dcp::DcpModel::Open(folder));
    model_ = std::make_unique<dcp::DcpModel>(std::move(model));
    ASSIGN_OR_RETURN(dcp::OptimizerState state,
                     dcp::ReadOptimizerState(folder, *model_, options.prefix));
    RETURN_IF_ERROR(HasIds(session, options, state) ? dcp::NameIds(options.names_of_ids, &state)
                                                    : RenameAll(options.renames, &state));
    RETURN_IF_ERROR(PlanParameters(session, state, options.strict));
    return PlanGroups(session, state);
  }

  const ModelSource& model() const { return *model_; }
  // In the order of the job's units.
  const std::vector<std::vector<ParameterPlan>>& units() const { return units_; }
  const std::vector<HyperParameters>& groups() const { return groups_; }

 private:
  // Whether its keys are ids: numbers of which none, as the job has it, is a parameter's name.
  static bool HasIds(const Session& session, const LoadOptimizerOptions& options,
                     const dcp::OptimizerState& state) {
    if (!dcp::MayBeIds(state)) return false;
    std::set<std::string> keys;
    for (const auto& [key, parameter] : state.parameters)
      keys.insert(NameInModel(options.renames, key));
    for (const auto& [key, numbers] : state.numbers) keys.insert(NameInModel(options.renames, key));
    for (const UnitLayout& unit : session.layout().units) {
      for (const PlacedParameter& placed : unit.flat.parameters()) {
        for (const std::string& name : NamesOf(unit, placed.spec.name)) {
          if (keys.count(name) > 0) return false;
        }
      }
    }
    return true;
  }

  static absl::Status RenameAll(const std::vector<NameSelection::Rename>& renames,
                                dcp::OptimizerState* state) {
    dcp::OptimizerState renamed;
    for (auto& [name, parameter] : state->parameters) {
      const std::string in_model = NameInModel(renames, name);
      if (!renamed.parameters.emplace(in_model, std::move(parameter)).second)
        return Wrong(absl::StatusCode::kInvalidArgument, name, "renamed as another one");
    }
    for (auto& [name, numbers] : state->numbers)
      renamed.numbers.emplace(NameInModel(renames, name), std::move(numbers));
    *state = std::move(renamed);
    return absl::OkStatus();
  }

  // A parameter with tied weights is stored under whichever of its names.
  static std::vector<std::string> NamesOf(const UnitLayout& unit, const std::string& parameter) {
    std::vector<std::string> names = {parameter};
    for (const Alias& alias : unit.flat.aliases()) {
      if (alias.primary == parameter) names.push_back(alias.name);
    }
    return names;
  }
  // What is stored under one of the names; null: nothing is.
  template <typename T>
  static absl::StatusOr<const T*> FindAny(const std::map<std::string, T>& stored,
                                          const std::vector<std::string>& names) {
    const T* found = nullptr;
    for (const std::string& name : names) {
      const auto one = stored.find(name);
      if (one == stored.end()) continue;
      // Which of the two is the right one cannot be told.
      if (found != nullptr) {
        return Wrong(absl::StatusCode::kInvalidArgument, name,
                     absl::StrCat("'", names[0], "' is there under another name, too"));
      }
      found = &one->second;
    }
    return found;
  }

  absl::Status PlanParameters(const Session& session, const dcp::OptimizerState& state,
                              bool strict) {
    // Everything is checked before anything is written, so that an error changes nothing.
    std::set<std::string> known;
    for (const UnitLayout& unit : session.layout().units) {
      units_.emplace_back();
      for (const PlacedParameter& placed : unit.flat.parameters()) {
        ParameterPlan& plan = units_.back().emplace_back();
        const TensorSpec& spec = placed.spec;
        const std::vector<std::string> names = NamesOf(unit, spec.name);
        known.insert(names.begin(), names.end());
        // What is not trained has no state here, whatever the folder has.
        if (!spec.requires_grad) continue;
        ASSIGN_OR_RETURN(const auto* stored, FindAny(state.parameters, names));
        if (stored != nullptr) {
          RETURN_IF_ERROR(PlanParameter(session, spec, *stored, &plan));
        } else if (strict && session.config().optimizer != OptimizerKind::kSgd) {
          // Of SGD none is no error: it has state only with momentum, from its first update on.
          return Wrong(absl::StatusCode::kNotFound, spec.name, "the folder has none of it");
        }
      }
    }
    for (const auto& [name, parameter] : state.parameters) {
      if (strict && known.count(name) == 0)
        return Wrong(absl::StatusCode::kNotFound, name, "no parameter of the model");
    }
    return absl::OkStatus();
  }

  absl::Status PlanParameter(const Session& session, const TensorSpec& spec,
                             const dcp::OptimizerState::Parameter& stored, ParameterPlan* plan) {
    const OptimizerKind optimizer = session.config().optimizer;
    const auto wrong = [&spec](const std::string& why) {
      return Wrong(absl::StatusCode::kFailedPrecondition, spec.name, why);
    };
    std::set<std::string> known;
    for (const StateArray array : MomentsOf(optimizer)) {
      const std::string moment = MomentName(optimizer, array);
      known.insert(moment);
      const auto tensor = stored.moments.find(moment);
      if (tensor == stored.moments.end()) {
        if (optimizer == OptimizerKind::kSgd) continue;
        return wrong(absl::StrCat("it has no '", moment, "'"));
      }
      RETURN_IF_ERROR(CheckTensor(spec, tensor->second));
      plan->tensors[array] = tensor->second;
    }
    for (const auto& [moment, tensor] : stored.moments) {
      if (known.count(moment) == 0)
        return wrong(absl::StrCat("the job's optimizer has no '", moment, "'"));
    }
    if (!stored.step.has_value() && optimizer != OptimizerKind::kSgd)
      return wrong("it has no 'step'");
    // PyTorch's SGD counts nothing; it has a momentum from its first update on.
    plan->update_count = stored.step.value_or(plan->tensors.empty() ? 0 : 1);
    return absl::OkStatus();
  }

  absl::Status CheckTensor(const TensorSpec& spec, const std::string& tensor) const {
    const TensorInfo& info = model_->tensors().at(tensor);
    if (info.shape != spec.shape) {
      return Wrong(absl::StatusCode::kInvalidArgument, tensor,
                   absl::StrCat("of shape [", absl::StrJoin(info.shape, ", "), "], '", spec.name,
                                "' has [", absl::StrJoin(spec.shape, ", "), "]"));
    }
    // Whole numbers have a dtype of the layout, too: buffers are of such.
    const std::optional<DType> dtype = LayoutDType(info.dtype);
    if (!dtype.has_value() || !IsFloatingPoint(*dtype))
      return Wrong(absl::StatusCode::kInvalidArgument, tensor, "of no floating-point type");
    return absl::OkStatus();
  }

  absl::Status PlanGroups(const Session& session, const dcp::OptimizerState& state) {
    const JobConfig& config = session.config();
    // The first parameter of each group that the folder says numbers of.
    std::vector<std::string> first(config.groups.size());
    groups_.assign(config.groups.begin(), config.groups.end());
    const ParamGroups group_of(config);
    for (const UnitLayout& unit : session.layout().units) {
      for (const PlacedParameter& placed : unit.flat.parameters()) {
        const std::string& name = placed.spec.name;
        ASSIGN_OR_RETURN(const auto* numbers, FindAny(state.numbers, NamesOf(unit, name)));
        if (numbers == nullptr) continue;
        const int group = group_of[name];
        HyperParameters said = config.groups[group];
        RETURN_IF_ERROR(Translate(config.optimizer, name, **numbers, &said));
        RETURN_IF_ERROR(ValidateHyperParameters(said, group));
        if (first[group].empty()) {
          first[group] = name;
          groups_[group] = said;
        } else if (!Same(said, groups_[group])) {
          // PyTorch may have different numbers for parameters of one group. This job cannot.
          return Wrong(absl::StatusCode::kFailedPrecondition, name,
                       absl::StrCat("its numbers are not those of '", first[group],
                                    "', which is in the same param group of the job"));
        }
      }
    }
    return absl::OkStatus();
  }

  static bool Same(const HyperParameters& a, const HyperParameters& b) {
    return a.learning_rate == b.learning_rate && a.beta1 == b.beta1 && a.beta2 == b.beta2 &&
           a.epsilon == b.epsilon && a.weight_decay == b.weight_decay && a.momentum == b.momentum;
  }

  static absl::Status Translate(OptimizerKind optimizer, const std::string& name,
                                const Numbers& from, HyperParameters* to) {
    const auto take = [&from](const char* key, size_t count, size_t i, double* into) {
      const auto numbers = from.find(key);
      // What is not there, or has another form, keeps the job's number.
      if (numbers != from.end() && numbers->second.size() == count) *into = numbers->second[i];
    };
    take("lr", 1, 0, &to->learning_rate);
    take("betas", 2, 0, &to->beta1);
    take("betas", 2, 1, &to->beta2);
    take("eps", 1, 0, &to->epsilon);
    take("weight_decay", 1, 0, &to->weight_decay);
    take("momentum", 1, 0, &to->momentum);
    for (const char* other : {"nesterov", "maximize", "amsgrad", "dampening"}) {
      double number = 0;
      take(other, 1, 0, &number);
      if (number != 0) {
        // Ignoring it would train something else than before.
        return Wrong(absl::StatusCode::kUnimplemented, name,
                     absl::StrCat("no optimizer here has '", other, "'"));
      }
    }
    double decoupled = optimizer == OptimizerKind::kAdamW ? 1 : 0;
    const double own = decoupled;
    take("decoupled_weight_decay", 1, 0, &decoupled);
    if (decoupled != own && to->weight_decay != 0) {
      return Wrong(absl::StatusCode::kFailedPrecondition, name,
                   absl::StrCat("its weight decay is ", own != 0 ? "not " : "",
                                "decoupled, other than the job's"));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<dcp::DcpModel> model_;
  std::vector<std::vector<ParameterPlan>> units_;
  std::vector<HyperParameters> groups_;
};

class Loader {
 public:
  Loader(Session* session, const std::string& folder, const LoadOptimizerOptions& options)
      : session_(*session), folder_(folder), options_(options), access_(session) {}

  absl::StatusOr<std::vector<HyperParameters>> Run() {
    if (session_.within_step())
      return absl::FailedPreconditionError("optimizer state: within a step");
    // Counts writes, to tell whether one that was interrupted was decided.
    const int64_t writes = session_.num_writes();
    while (true) {
      const absl::Status status = Try();
      if (status.ok()) return plan_.groups();
      RETURN_IF_ERROR(session_.Recover());  // If the epoch is over, by any rank's error.
      if (!absl::IsAborted(status)) return status;
      // It was decided before the epoch ended, so it is done.
      if (session_.num_writes() > writes) return plan_.groups();
    }
  }

 private:
  absl::Status Try() {
    plan_ = Plan();
    // All ranks agree before any of them stages, so that an error changes nothing.
    RETURN_IF_ERROR(SessionSetup(&session_).AgreeOn(plan_.Make(session_, folder_, options_)));
    RETURN_IF_ERROR(CheckAlike());
    const int64_t epoch = access_.epoch();
    absl::Status status = Write();
    // Another rank's error was told when its epoch was over, and this rank is in the next one.
    const bool has_ended = access_.epoch() != epoch;
    // An error of this rank alone ends the epoch, or the others would wait.
    return status.ok() || has_ended ? status : EndEpoch(std::move(status));
  }

  // So that no two ranks take parts of different states.
  // By contents and times of files, not by paths: nodes may have different folders there.
  absl::Status CheckAlike() {
    FileIdentity identity;
    identity.MixWord(plan_.model().identity());
    for (const std::vector<ParameterPlan>& unit : plan_.units()) {
      for (const ParameterPlan& parameter : unit) {
        identity.MixWord(parameter.update_count);
        for (const auto& [array, tensor] : parameter.tensors) identity.MixBytes(tensor);
      }
    }
    for (const HyperParameters& group : plan_.groups()) {
      for (const double number : {group.learning_rate, group.beta1, group.beta2, group.epsilon,
                                  group.weight_decay, group.momentum}) {
        uint64_t bits = 0;
        memcpy(&bits, &number, sizeof(bits));
        identity.MixWord(bits);
      }
    }
    const uint64_t own = identity.value();
    std::vector<uint64_t> all(session_.config().world_size, own);
    RETURN_IF_ERROR(SessionSetup(&session_).AllGather(
        absl::MakeConstSpan(reinterpret_cast<const char*>(&own), sizeof(own)),
        reinterpret_cast<char*>(all.data())));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("optimizer state: ranks 0 and ", rank,
                       " see different folders or ask for different things"));
    }
    return absl::OkStatus();
  }

  absl::Status Write() {
    ASSIGN_OR_RETURN(TrainingProgress progress, ReadProgress(&session_));
    size_t i = 0;
    for (const std::vector<ParameterPlan>& unit : plan_.units()) {
      for (const ParameterPlan& parameter : unit)
        progress.update_counts[i++] = parameter.update_count;
    }
    for (const StateArray array : MomentsOf(session_.config().optimizer)) {
      for (int unit = 0; unit < session_.num_units(); ++unit) {
        RETURN_IF_ERROR(access_.StageSlice(
            unit, array, [&](Values slice) { return ReadSlice(array, unit, slice); }));
      }
    }
    // Only now, when every array is staged: what is staged becomes the state at once.
    return access_.FinishState(progress);
  }

  absl::Status ReadSlice(StateArray array, int unit, Values slice) {
    // Parameters without state, and padding, are zero.
    memset(slice.data(), 0, slice.size_bytes());
    const UnitLayout& layout = session_.layout().units[unit];
    ASSIGN_OR_RETURN(const ShardView view,
                     ShardView::Create(layout.flat, layout.shards,
                                       Rank(session_.rank() % layout.shards.num_shards())));
    for (const ParameterSlice& part : view.slices()) {
      const ParameterPlan& plan = plan_.units()[unit][part.parameter_index];
      const auto tensor = plan.tensors.find(array);
      if (tensor == plan.tensors.end()) continue;
      char* at = static_cast<char*>(slice.data()) + part.in_shard.begin * SizeBytes(slice.dtype());
      RETURN_IF_ERROR(plan_.model().ReadSlice(tensor->second, part.in_parameter.begin,
                                              Values(at, part.in_parameter.size(), slice.dtype())));
    }
    return absl::OkStatus();
  }

  // What was staged is dropped on every rank, and all get the error of the first that has one.
  absl::Status EndEpoch(absl::Status own) {
    if (!absl::IsAborted(own)) RETURN_IF_ERROR(session_.Fail(own));
    const absl::Status of_all = SessionSetup(&session_).AgreeOn(own);
    return absl::IsAborted(own) || absl::IsAborted(of_all) ? of_all : own;
  }

  Session& session_;
  const std::string& folder_;
  const LoadOptimizerOptions& options_;
  StateAccess access_;
  Plan plan_;
};

}  // namespace

absl::StatusOr<std::vector<HyperParameters>> LoadOptimizerState(
    Session* session, const std::string& folder, const LoadOptimizerOptions& options) {
  return Loader(session, folder, options).Run();
}

}  // namespace tessera
