#include "checkpoint/dcp/optimizer_ids.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::dcp {
namespace {

using Numbers = OptimizerState::Numbers;

// The id that a key is; nothing: it is none.
std::optional<size_t> IdOf(const std::string& key) {
  uint32_t id = 0;
  // Written back and compared: "01" and "+1" are names, not ids.
  if (!absl::SimpleAtoi(key, &id) || absl::StrCat(id) != key) return std::nullopt;
  return id;
}

// How many parameters each group of the folder has, by their ids; those without are left out.
std::vector<size_t> GroupSizes(const OptimizerState& state) {
  std::map<size_t, const Numbers*> group_of;
  // Callers have checked that all keys are ids.
  for (const auto& [key, numbers] : state.numbers) group_of[*IdOf(key)] = numbers.get();
  std::vector<size_t> sizes;
  const Numbers* last = nullptr;
  for (const auto& [id, group] : group_of) {
    // A group's members share one object (GiveGroups in dcp_optimizer.cc), so the pointer tells.
    if (sizes.empty() || group != last) sizes.push_back(0);
    ++sizes.back();
    last = group;
  }
  return sizes;
}

absl::Status CheckNames(const NamesOfIds& names) {
  std::set<std::string> seen;
  for (const std::vector<std::string>& group : names) {
    for (const std::string& name : group) {
      if (seen.insert(name).second) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer state: '", name, "' is given for two ids"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const NamesOfIds& names, const OptimizerState& state) {
  std::vector<size_t> given;
  for (const std::vector<std::string>& group : names) {
    if (!group.empty()) given.push_back(group.size());
  }
  const std::vector<size_t> sizes = GroupSizes(state);
  if (sizes == given && !given.empty()) return absl::OkStatus();
  const std::string folders = absl::StrCat("optimizer state: it is by ids, in param groups of ",
                                           absl::StrJoin(sizes, ", "), " parameters, ");
  if (given.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        folders, "and does not say whose they are: give names_of_ids, the parameters of each ",
        "group in the order in which the optimizer got them"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(folders, "and there are names for groups of ", absl::StrJoin(given, ", ")));
}

}  // namespace

bool MayBeIds(const OptimizerState& state) {
  const auto is_id = [](const auto& item) { return IdOf(item.first).has_value(); };
  return !(state.parameters.empty() && state.numbers.empty()) &&
         std::all_of(state.parameters.begin(), state.parameters.end(), is_id) &&
         std::all_of(state.numbers.begin(), state.numbers.end(), is_id);
}

absl::Status NameIds(const NamesOfIds& names, OptimizerState* state) {
  // Nothing is changed unless all of it fits.
  RETURN_IF_ERROR(CheckNames(names));
  RETURN_IF_ERROR(CheckSizes(names, *state));
  std::vector<std::string> of_ids;
  for (const std::vector<std::string>& group : names)
    of_ids.insert(of_ids.end(), group.begin(), group.end());
  OptimizerState named;
  const auto put = [&of_ids](auto* from, auto* to) {
    for (auto& [key, value] : *from) {
      const size_t id = *IdOf(key);
      if (id >= of_ids.size()) {
        return absl::NotFoundError(
            absl::StrCat("optimizer state, '", key, "': it is in none of the param groups"));
      }
      to->emplace(of_ids[id], std::move(value));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(put(&state->parameters, &named.parameters));
  RETURN_IF_ERROR(put(&state->numbers, &named.numbers));
  *state = std::move(named);
  return absl::OkStatus();
}

}  // namespace tessera::dcp
