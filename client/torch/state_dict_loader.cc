#include "client/torch/state_dict_loader.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/torch/collective_call.h"
#include "client/torch/state_entry_check.h"
#include "client/torch/state_parts.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_status.h"

namespace tessera {
namespace {

ExpectedEntry ExpectedOfSite(const Session& session, const StateSite& site, StateDictType type) {
  if (site.unit >= 0) return ExpectedOf(session, site.unit, site.parameter, type);
  ExpectedEntry expected;
  expected.shape = site.tensor.sizes().vec();
  return expected;
}

}  // namespace

std::string StateDictLoader::KeyOf(const StateSite& site) const {
  const bool flat = site.unit >= 0 && type_ == StateDictType::kLocal;
  return flat ? FlatKeyOf(*model_, site.unit, prefix_) : site.name;
}

absl::Status StateDictLoader::Plan(const StateDict& dict) {
  std::set<std::string> known;
  for (const StateSite& site : sites_) {
    const std::string key = KeyOf(site);
    const bool first = known.insert(key).second;
    const StateEntry* entry = dict.find(key);
    if (entry == nullptr) {
      // A tied state is missing once.
      if (first) report_.missing.push_back(key);
      continue;
    }
    if (first)
      RETURN_IF_ERROR(CheckStateEntry(key, *entry, ExpectedOfSite(*session_, site, type_)));
    // Of tied parameters the last name counts, as where each is copied in turn.
    if (site.unit < 0) continue;
    std::vector<std::string>& keys = keys_[site.unit];
    if (type_ == StateDictType::kLocal) std::fill(keys.begin(), keys.end(), key);
    keys[site.parameter] = key;
  }
  for (const auto& item : dict) {
    if (known.count(item.key()) == 0) report_.unexpected.push_back(item.key());
  }
  return CheckKeys();
}

absl::Status StateDictLoader::CheckKeys() const {
  if (!options_.strict || (report_.missing.empty() && report_.unexpected.empty()))
    return absl::OkStatus();
  std::string text = "state dict:";
  if (!report_.missing.empty())
    absl::StrAppend(&text, " missing keys '", absl::StrJoin(report_.missing, "', '"), "'");
  if (!report_.missing.empty() && !report_.unexpected.empty()) text += ";";
  if (!report_.unexpected.empty())
    absl::StrAppend(&text, " unexpected keys '", absl::StrJoin(report_.unexpected, "', '"), "'");
  return absl::NotFoundError(text);
}

absl::Status StateDictLoader::Try(const StateDict& dict) {
  // From nothing, each time: a try that was aborted left parts of all of these.
  report_ = LoadStateReport();
  keys_.clear();
  slices_.clear();
  values_.clear();
  plain_.clear();
  for (const int unit : UnitsOfSites(sites_))
    keys_[unit].resize(session_->layout().units[unit].flat.parameters().size());
  // Exceptions, too, become a status that all ranks agree on.
  RETURN_IF_ERROR(
      exchange_.AgreeOn(CatchTorch([&] { return reads_dict() ? Plan(dict) : absl::OkStatus(); })));
  RETURN_IF_ERROR(options_.from_rank0 ? SharePlan() : ComparePlans());
  for (const auto& [unit, keys] : keys_) {
    const bool any =
        std::any_of(keys.begin(), keys.end(), [](const std::string& key) { return !key.empty(); });
    // A unit of which nothing is given is not written.
    if (any) RETURN_IF_ERROR(FillUnit(dict, unit));
  }
  if (options_.from_rank0) {
    RETURN_IF_ERROR(SharePlain(dict));
  } else {
    TakePlain(dict);
  }
  return Write();
}

absl::StatusOr<LoadStateReport> StateDictLoader::Load(const StateDict& dict) {
  RETURN_IF_ERROR(RunCollective(model_, [&] { return Try(dict); }));
  // Only after the write was decided: before, an error must leave the module as it was.
  const torch::NoGradGuard no_grad;
  for (PlainValue& plain : plain_) plain.first.copy_(plain.second);
  return report_;
}

void StateDictLoader::TakePlain(const StateDict& dict) {
  for (const StateSite& site : sites_) {
    const StateEntry* entry = site.unit < 0 ? dict.find(site.name) : nullptr;
    if (entry != nullptr) plain_.emplace_back(site.tensor, entry->tensor);
  }
}

absl::Status StateDictLoader::Write() {
  std::vector<int> units;
  for (const auto& [unit, values] : values_) units.push_back(unit);
  if (units.empty()) return absl::OkStatus();
  return session_->WriteParameters(units, [this](int unit, int p, Values values) {
    const std::vector<ParameterSlice>& slices = slices_.at(unit);
    const int64_t element_bytes = SizeBytes(values.dtype());
    for (size_t i = 0; i < slices.size(); ++i) {
      if (slices[i].parameter_index != p) continue;
      char* at = static_cast<char*>(values.data()) + slices[i].in_parameter.begin * element_bytes;
      CopyValues(values_.at(unit)[i], Values(at, slices[i].in_parameter.size(), values.dtype()));
    }
  });
}

}  // namespace tessera
