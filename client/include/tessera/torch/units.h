// How a module tree becomes units of sharded training: which of its modules are units, in which
// dtypes they compute and their gradients travel, and what training them takes.
//
//   ShardedModel::Attach(model, options, WrapModules<BlockImpl>());         by class
//   ShardedModel::Attach(model, options, WrapBySize({/*min_numel=*/1 << 20}));
//   ShardedModel::Attach(model, options, WrapIf([](const WrapCandidate& c) { return ...; }));
//   ShardedModel::Attach(model, options, WrapTogether({{"norm", "output"}}));    one unit of two
//
//   AttachOptions attach;
//   attach.precision.param_dtype = DType::kBf16;
//   ShardedModel::Attach(model, options, policy, attach);
//
//   auto plan = PlanUnits(*model, config, policy, attach.precision);        a dry run
//
// A Sharded<> module that is not chosen behaves as M does, and its parameters belong to the nearest
// unit above it. Children are asked before their parents, so that a candidate knows what its
// descendants left to it. The root is a unit always and is not asked. A policy must choose alike on
// every rank: it is a function of names, classes and shapes. Pure; thread-compatible.
// Source: torch/distributed/fsdp/wrap.py; groups: fully_shard of a list of modules.
#ifndef TESSERA_TORCH_UNITS_H_
#define TESSERA_TORCH_UNITS_H_

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/dtype.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"
#include "layout/step_traffic.h"
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

// --- MixedPrecision ---
//
// Shards and optimizer are fp32, or fp64 where the module's parameters are; "fp32" below means
// that. Where a cast happens, for floating-point tensors only:
//
//   forward's arguments ──► compute dtype      at the root, or at each unit that says so
//   buffers             ──► buffer dtype       in place, when attaching
//   the result          ──► unchanged, but for modules kept in full precision: back to what came in
//
// Gradients of arguments come back in the arguments' dtype.
// Source: torch.distributed.fsdp.MixedPrecision.

// What may differ from unit to unit. Dtypes are kFp32, kBf16 or kFp16.
struct UnitPrecision {
  std::optional<DType> param_dtype;   // None: fp32, or the job's compute_dtype.
  std::optional<DType> reduce_dtype;  // None: param_dtype, and without one the job's.
  std::optional<DType> buffer_dtype;  // None: as they are.
  bool cast_forward_inputs = false;   // To param_dtype. Of the root cast_root_forward_inputs says.
};

struct MixedPrecision : UnitPrecision {
  bool cast_root_forward_inputs = true;
  // The optimizer gets gradients rounded to the reduce dtype.
  bool keep_low_precision_grads = false;
  // After model->eval() parameters are fp32, buffers as they were, and nothing is cast; gradients
  // of such a forward travel in fp32. All ranks evaluate together. Checked at each forward.
  bool full_precision_in_eval = false;
  // Modules that compute in fp32 whatever the rest does. Each is, or is all that is in, a
  // Sharded<>, which is a unit whatever the policy says (libtorch's own norms cannot be derived
  // from, so they are put in one). Its buffers stay as they are, its arguments are cast to fp32,
  // its result back.
  WrapPredicate full_precision =
      IsAnyOf<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl>;
  // Of each other unit, the root too: its precision, given the model's. None: the model's. It
  // chooses alike on every rank; the candidate's numel is that of the unit.
  std::function<UnitPrecision(const WrapCandidate& unit, const UnitPrecision& of_model)> per_unit;
};

// --- PlanUnits ---
//
// A dry run: which units a module tree would have, and what training them would take. No server,
// and no memory but the module's own.
//
//   auto plan = PlanUnits(*model, config, WrapBySize({/*min_numel=*/1 << 20}));
//   std::cout << plan->text;
//
//   units (ranks: 8, compute bf16)
//     unit      parameters       elements    padding         size    of a rank
//     root               3       38597376          0     73.6 MiB      9.2 MiB
//     layers.0          12        7087872          0     13.5 MiB      1.7 MiB
//   ...

struct UnitPlan {
  ModelSpec model;  // For `tessera layout`, or Session::Open without libtorch.
  ModelLayout layout;
  MemoryPlan memory;  // What config.strategy needs, all ranks on one host.
  // What a worker maps for one rank of the job: both versions of the shards' state, the gradient
  // slots, and the rank's part of the parameters, in whole pages.
  int64_t mapped_bytes = 0;
  StepTraffic traffic;
  std::string text;  // All of this, human-readable.
};

// Errors: InvalidArgument     the root is not a Sharded<>; a module that is kept in full precision is
//                             not in a Sharded<> that holds nothing else (naming it); no parameter
//                             at all; a parameter in two units (naming both names and units); a
//                             dtype that cannot be trained; a group of which only a part is kept in
//                             full precision; what the policy names does not exist; as
//                             ValidateModel, ValidateJobConfig and PlanMemory
//         FailedPrecondition  some Sharded<> of the tree is attached already (naming it)
absl::StatusOr<UnitPlan> PlanUnits(torch::nn::Module& root, const JobConfig& config,
                                   const WrapPolicy& policy = AlwaysWrap(),
                                   const MixedPrecision& precision = {});

}  // namespace tessera

#endif  // TESSERA_TORCH_UNITS_H_
