// Which Sharded<> modules of a tree become units when a ShardedModel attaches. One that is not
// chosen behaves as M does, and its parameters belong to the nearest unit above it.
//
//   ShardedModel::Attach(model, options, WrapModules<BlockImpl>());         by class
//   ShardedModel::Attach(model, options, WrapBySize({/*min_numel=*/1 << 20}));
//   ShardedModel::Attach(model, options, WrapIf([](const WrapCandidate& c) { return ...; }));
//   ShardedModel::Attach(model, options, WrapTogether({{"norm", "output"}}));    one unit of two
//
// Children are asked before their parents, so that a candidate knows what its descendants left to
// it. The root is a unit always and is not asked. A policy must choose alike on every rank: it is
// a function of names, classes and shapes. Pure; thread-compatible.
// Source: torch/distributed/fsdp/wrap.py; groups: fully_shard of a list of modules.
#ifndef TESSERA_TORCH_WRAP_POLICY_H_
#define TESSERA_TORCH_WRAP_POLICY_H_

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layout/strategy.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

struct WrapCandidate {
  std::string name;  // As in named_modules(): "layers.3"; of the root "".
  const torch::nn::Module& module;
  // Distinct elements of the subtree's parameters, frozen ones too. When asked whether to descend:
  // all of them. When asked whether to wrap: those outside inner units.
  int64_t numel = 0;
};

using WrapPredicate = std::function<bool(const WrapCandidate&)>;

struct WrapPolicy {
  // Of any module, the root too: whether it, or anything below it, may be a unit.
  WrapPredicate descend;
  // Of a Sharded<> below the root: whether it is a unit.
  WrapPredicate wrap;
  // Of what became a unit, the root too, numel being that of its subtree: its strategy; null, or
  // nothing: the job's.
  std::function<std::optional<Strategy>(const WrapCandidate&)> strategy = nullptr;
  // Modules that are one unit, by name, whatever the functions above choose: Sharded<> below the
  // root, none inside of another. The unit's window is open from the first one's forward until each
  // had one, so of a group of which one runs none it stays open until the end of backward. Where
  // other units run in between, their gradients are there together: config.gradient_slots = 0. As
  // a candidate such a unit is called "norm, output", and its module is the first of them.
  std::vector<std::vector<std::string>> groups = {};
};

// Whether the candidate is a module of one of these classes, or derived from one.
template <typename... M>
bool IsAnyOf(const WrapCandidate& candidate) {
  return ((dynamic_cast<const M*>(&candidate.module) != nullptr) || ...);
}

WrapPolicy AlwaysWrap();
WrapPolicy WrapIf(WrapPredicate wrap);

template <typename... M>
WrapPolicy WrapModules() {
  return WrapIf(IsAnyOf<M...>);
}

struct SizeRule {
  int64_t min_numel = 100'000'000;
  // Never a unit itself; its descendants may be.
  WrapPredicate excluded = IsAnyOf<torch::nn::ModuleListImpl, torch::nn::ModuleDictImpl>;
  // Neither it nor anything below it is a unit.
  WrapPredicate leaf = IsAnyOf<torch::nn::MultiheadAttentionImpl>;
};

// A unit is what has at least `min_numel` elements, and at least one, outside of inner units.
WrapPolicy WrapBySize(SizeRule rule = {});

// `policy`, and these groups.
WrapPolicy WrapTogether(std::vector<std::vector<std::string>> groups,
                        WrapPolicy policy = AlwaysWrap());

// Descends where one of them does, and wraps what one of them wraps; the first one that names a
// unit's strategy counts. Has the groups of all.
WrapPolicy AnyPolicy(std::vector<WrapPolicy> policies);

}  // namespace tessera

#endif  // TESSERA_TORCH_WRAP_POLICY_H_
