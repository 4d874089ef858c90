#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/torch/units.h"

namespace tessera {
namespace {

bool Anywhere(const WrapCandidate&) { return true; }

}  // namespace

WrapPolicy AlwaysWrap() { return WrapIf(Anywhere); }

WrapPolicy WrapIf(WrapPredicate wrap) { return {Anywhere, std::move(wrap)}; }

WrapPolicy WrapBySize(SizeRule rule) {
  // A module without parameters cannot be a unit.
  const int64_t min_numel = std::max<int64_t>(rule.min_numel, 1);
  return {[min_numel, leaf = std::move(rule.leaf)](const WrapCandidate& candidate) {
            return candidate.numel >= min_numel && !leaf(candidate);
          },
          [min_numel, excluded = std::move(rule.excluded)](const WrapCandidate& candidate) {
            return candidate.numel >= min_numel && !excluded(candidate);
          }};
}

WrapPolicy WrapTogether(std::vector<std::vector<std::string>> groups, WrapPolicy policy) {
  std::move(groups.begin(), groups.end(), std::back_inserter(policy.groups));
  return policy;
}

WrapPolicy AnyPolicy(std::vector<WrapPolicy> policies) {
  const auto any = [policies](WrapPredicate WrapPolicy::*question) {
    return [policies, question](const WrapCandidate& candidate) {
      return std::any_of(policies.begin(), policies.end(),
                         [&](const WrapPolicy& policy) { return (policy.*question)(candidate); });
    };
  };
  const auto strategy = [policies](const WrapCandidate& candidate) -> std::optional<Strategy> {
    for (const WrapPolicy& policy : policies) {
      if (policy.strategy == nullptr) continue;
      if (const auto named = policy.strategy(candidate)) return named;
    }
    return std::nullopt;
  };
  WrapPolicy policy = {any(&WrapPolicy::descend), any(&WrapPolicy::wrap), strategy};
  for (const WrapPolicy& one : policies)
    policy.groups.insert(policy.groups.end(), one.groups.begin(), one.groups.end());
  return policy;
}

}  // namespace tessera
