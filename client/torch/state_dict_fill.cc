// StateDictLoader: the values that this rank takes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "client/torch/state_dict_loader.h"
#include "client/torch/state_parts.h"
#include "client/torch/summon_full_params.h"

namespace tessera {
namespace {

// More than any node's memory.
constexpr int64_t kMostBytes = int64_t{1} << 40;

// The size that rank 0 announces for a state; `own`: this rank's, if it has that state.
absl::Status CheckAnnounced(const std::string& name, int64_t size_bytes, const torch::Tensor* own) {
  if (size_bytes < 0 || size_bytes > kMostBytes) {
    return absl::InternalError(
        absl::StrCat("state dict, '", name, "': rank 0 announced ", size_bytes, " bytes"));
  }
  if (own == nullptr || size_bytes == static_cast<int64_t>(own->nbytes())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("state dict, '", name, "': rank 0's has ",
                                                 size_bytes, " bytes, this rank's ",
                                                 own->nbytes()));
}

}  // namespace

std::vector<char> StateDictLoader::GivenBytes() const {
  std::vector<char> given;
  for (const auto& [unit, keys] : keys_) {
    for (const std::string& key : keys) given.push_back(key.empty() ? 0 : 1);
  }
  return given;
}

absl::Status StateDictLoader::ComparePlans() {
  return exchange_.CheckAlike(GivenBytes(),
                              "load state dicts that give different parameters: load the same on "
                              "all ranks, or from_rank0");
}

absl::Status StateDictLoader::SharePlan() {
  std::vector<char> given = GivenBytes();
  RETURN_IF_ERROR(exchange_.Share(absl::MakeSpan(given)));
  RETURN_IF_ERROR(exchange_.Share(&report_.missing));
  RETURN_IF_ERROR(exchange_.Share(&report_.unexpected));
  // Rank 0's plan is complete.
  if (session_->rank() == 0) return absl::OkStatus();
  size_t at = 0;
  for (auto& [unit, keys] : keys_) {
    for (size_t p = 0; p < keys.size(); ++p) {
      // Any name will do: rank 0 sends the values.
      if (given[at++] != 0) keys[p] = SpecOf(unit, p).name;
    }
  }
  return absl::OkStatus();
}

absl::Status StateDictLoader::FillUnit(const StateDict& dict, int unit) {
  const std::vector<std::string>& keys = keys_.at(unit);
  slices_[unit] = ViewOf(*session_, unit).slices();
  values_[unit].resize(slices_[unit].size());
  // The unit is written as a whole, so what the dictionary leaves out is read.
  if (std::count(keys.begin(), keys.end(), "") > 0) {
    RETURN_IF_ERROR(session_->ReadParameters(unit, [&](int p, ConstValues values) {
      if (keys[p].empty()) Take(unit, p, TensorOf(values, SpecOf(unit, p).shape));
    }));
  }
  if (type_ == StateDictType::kLocal) {
    TakeFlat(unit, dict[keys[0]].tensor);
    return absl::OkStatus();
  }
  for (size_t p = 0; p < keys.size(); ++p) {
    if (keys[p].empty()) continue;
    const torch::Tensor own = reads_dict() ? dict[keys[p]].tensor : torch::Tensor();
    torch::Tensor whole = own;
    // A copy of rank 0's goes to each rank, also to those that hold no part.
    if (options_.from_rank0) {
      ASSIGN_OR_RETURN(whole, exchange_.Share(own, SpecOf(unit, p).shape, FullTypeOf(unit)));
    } else if (dict[keys[p]].kind == StateEntry::Kind::kRows) {
      ASSIGN_OR_RETURN(whole, exchange_.GatherRows(own, SpecOf(unit, p).shape, FullTypeOf(unit),
                                                   ChunksOf(unit)));
    }
    Take(unit, p, whole);
  }
  return absl::OkStatus();
}

void StateDictLoader::Take(int unit, int p, const torch::Tensor& whole) {
  const std::vector<ParameterSlice>& slices = slices_.at(unit);
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].parameter_index != p) continue;
    values_[unit][i] = FlatPart(whole, slices[i].in_parameter, FullTypeOf(unit));
  }
}

void StateDictLoader::TakeFlat(int unit, const torch::Tensor& flat) {
  int64_t at = 0;
  for (size_t i = 0; i < slices_.at(unit).size(); ++i) {
    const int64_t size = slices_[unit][i].in_parameter.size();
    values_[unit][i] = FlatPart(flat, {at, at + size}, FullTypeOf(unit));
    at += size;
  }
}

absl::Status StateDictLoader::SharePlain(const StateDict& dict) {
  std::map<std::string, torch::Tensor> states;
  std::vector<std::string> names;
  for (const StateSite& site : sites_) {
    if (site.unit >= 0) continue;
    states[site.name] = site.tensor;
    if (session_->rank() == 0 && dict.contains(site.name)) names.push_back(site.name);
  }
  RETURN_IF_ERROR(exchange_.Share(&names));
  std::vector<torch::Tensor> values(names.size());
  std::vector<int64_t> sizes(names.size());
  for (size_t i = 0; session_->rank() == 0 && i < names.size(); ++i) {
    values[i] = dict[names[i]]
                    .tensor.detach()
                    .to(torch::kCPU, states[names[i]].scalar_type())
                    .contiguous()
                    .clone();
    sizes[i] = values[i].nbytes();
  }
  RETURN_IF_ERROR(exchange_.Share(&sizes));
  // All sizes before the first value, and before memory is made for any.
  absl::Status fits;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto state = states.find(names[i]);
    fits.Update(
        CheckAnnounced(names[i], sizes[i], state == states.end() ? nullptr : &state->second));
  }
  RETURN_IF_ERROR(exchange_.AgreeOn(fits));
  for (size_t i = 0; i < names.size(); ++i) {
    // Ranks may ignore different parameters. What this rank has no place for is dropped.
    const auto state = states.find(names[i]);
    const bool has = state != states.end();
    if (session_->rank() != 0 && has)
      values[i] = torch::empty(state->second.sizes(), state->second.scalar_type());
    RETURN_IF_ERROR(
        exchange_.Share(sizes[i], has ? static_cast<char*>(values[i].data_ptr()) : nullptr));
    if (has) plain_.emplace_back(state->second, values[i]);
  }
  return absl::OkStatus();
}

}  // namespace tessera
