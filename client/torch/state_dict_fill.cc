// StateDictLoader: the values that this rank takes.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "client/torch/state_dict_loader.h"
#include "client/torch/state_parts.h"
#include "client/torch/summon_full_params.h"

namespace tessera {

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
  absl::Status fits;
  for (const std::string& name : names) {
    // Ranks may ignore different parameters.
    const auto state = states.find(name);
    torch::Tensor value;
    std::vector<int64_t> bytes = {0};
    if (session_->rank() == 0) {
      value = dict[name].tensor.detach().to(torch::kCPU, state->second.scalar_type()).contiguous();
      bytes[0] = value.nbytes();
    }
    RETURN_IF_ERROR(exchange_.Share(&bytes));
    // Negative sizes would wrap around below.
    if (bytes[0] < 0) return absl::InternalError("rank 0 announced a negative size");
    std::vector<char> buffer(bytes[0]);
    if (session_->rank() == 0 && bytes[0] > 0) memcpy(buffer.data(), value.data_ptr(), bytes[0]);
    RETURN_IF_ERROR(exchange_.Share(absl::MakeSpan(buffer)));
    // Taken off the wire all the same, so that the next broadcast matches.
    if (state == states.end()) continue;
    if (bytes[0] != static_cast<int64_t>(state->second.nbytes())) {
      // Noted only: an early return would leave the other ranks in the next broadcast.
      fits = absl::InvalidArgumentError(absl::StrCat("state dict, '", name, "': rank 0's has ",
                                                     bytes[0], " bytes, this rank's ",
                                                     state->second.nbytes()));
      continue;
    }
    torch::Tensor own = torch::empty(state->second.sizes(), state->second.scalar_type());
    if (bytes[0] > 0) memcpy(own.data_ptr(), buffer.data(), bytes[0]);
    plain_.emplace_back(state->second, own);
  }
  return exchange_.AgreeOn(fits);
}

}  // namespace tessera
