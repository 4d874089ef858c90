#include "client/dashboard/unit_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "base/status_macros.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "job/memory_options.h"
#include "layout/dtype.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"
#include "layout/strategy.h"
#include "nlohmann/json.hpp"

namespace tessera::dashboard {
namespace {

using Json = nlohmann::ordered_json;

struct PlannedUnit {
  std::string name;
  DType dtype = DType::kFp32;
  Strategy strategy = Strategy::kFullShard;
  int64_t num_elements = 0;
  MemoryPlan plan;

  absl::int128 resident_bytes() const {
    return absl::int128(plan.parameter_bytes) + plan.gradient_bytes + plan.optimizer_bytes;
  }
};

Json SizesJson(int64_t num_elements, const MemoryPlan& plan) {
  return {{"num_elements", num_elements},
          {"parameter_bytes", plan.parameter_bytes},
          {"gradient_bytes", plan.gradient_bytes},
          {"optimizer_bytes", plan.optimizer_bytes}};
}

Json UnitJson(const PlannedUnit& unit) {
  Json json = {{"name", unit.name},
               {"dtype", std::string(Name(unit.dtype))},
               {"strategy", std::string(Name(unit.strategy))}};
  json.update(SizesJson(unit.num_elements, unit.plan));
  return json;
}

}  // namespace

absl::StatusOr<std::string> UnitMemoryJson(const v1::Job& job, size_t max_units) {
  ASSIGN_OR_RETURN(const ModelSpec model, DecodeModel(job.model()));
  ASSIGN_OR_RETURN(const JobConfig config, DecodeJobConfig(job.config()));
  ASSIGN_OR_RETURN(ModelLayout layout, LayOut(model, config));
  const MemoryOptions options = MemoryOptionsOf(config);
  ASSIGN_OR_RETURN(const MemoryPlan total, PlanMemory(layout, options));
  int64_t num_elements = 0;
  std::vector<PlannedUnit> units;
  for (UnitLayout& unit : layout.units) {
    PlannedUnit planned = {unit.flat.unit_name(), unit.full_dtype(), unit.strategy,
                           unit.flat.unpadded_numel()};
    num_elements += planned.num_elements;
    ModelLayout alone;
    alone.world_size = layout.world_size;
    alone.units.push_back(std::move(unit));
    ASSIGN_OR_RETURN(planned.plan, PlanMemory(alone, options));
    units.push_back(std::move(planned));
  }
  std::stable_sort(units.begin(), units.end(), [](const PlannedUnit& a, const PlannedUnit& b) {
    return a.resident_bytes() > b.resident_bytes();
  });
  Json rows = Json::array();
  for (size_t i = 0; i < std::min(units.size(), max_units); ++i) rows.push_back(UnitJson(units[i]));
  const Json json = {{"job_id", job.job_id()},
                     {"generation", job.generation()},
                     {"num_units", units.size()},
                     {"total", SizesJson(num_elements, total)},
                     {"units", std::move(rows)}};
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

}  // namespace tessera::dashboard
