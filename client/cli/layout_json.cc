#include "client/cli/layout_json.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "layout/layout_digest.h"
#include "layout/shard_view.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

// Never throws: a name that is not UTF-8 is written with replacement characters.
std::string Text(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json ParameterJson(const PlacedParameter& parameter, const ParameterShard& shard) {
  Json json = {{"name", parameter.spec.name}, {"in_shard", shard.in_shard}};
  const auto number = [&](int64_t value) { return shard.in_shard ? Json(value) : Json(nullptr); };
  json["offset_in_shard"] = number(shard.offset_in_shard);
  json["numel_in_shard"] = number(shard.numel_in_shard);
  json["intra_param_start"] = number(shard.intra_param_start);
  json["intra_param_end"] = number(shard.intra_param_end);
  return json;
}

absl::StatusOr<Json> RankJson(const UnitLayout& unit, Rank rank) {
  ASSIGN_OR_RETURN(const ShardView view, ShardView::Create(unit.flat, unit.shards, rank));
  Json parameters = Json::array();
  for (size_t i = 0; i < view.parameters().size(); ++i) {
    parameters.push_back(ParameterJson(unit.flat.parameters()[i], view.parameters()[i]));
  }
  return Json{{"rank", rank.value()},
              {"padding_elements", view.padding_elements()},
              {"parameters", std::move(parameters)}};
}

Json UnitHeaderJson(const UnitLayout& unit) {
  Json shared = Json::array();
  for (const Alias& alias : unit.flat.aliases()) {
    shared.push_back({{"name", alias.name}, {"shared_with", alias.primary}});
  }
  return Json{{"name", unit.flat.unit_name()},
              {"dtype", std::string(Name(unit.flat.dtype()))},
              {"unpadded_numel", unit.flat.unpadded_numel()},
              {"padded_numel", unit.shards.padded_numel()},
              {"shard_numel", unit.shards.shard_numel()},
              {"shared", std::move(shared)}};
}

absl::Status WriteUnit(const UnitLayout& unit, std::ostream* out) {
  std::string header = Text(UnitHeaderJson(unit));
  header.pop_back();  // Its closing brace: the ranks belong inside.
  *out << header << ",\"ranks\":[";
  for (int64_t rank = 0; rank < unit.shards.num_shards(); ++rank) {
    ASSIGN_OR_RETURN(const Json json, RankJson(unit, Rank(rank)));
    *out << (rank == 0 ? "\n" : ",\n") << Text(json);
  }
  *out << "]}";
  return absl::OkStatus();
}

Json BuffersJson(const ModelLayout& layout) {
  Json buffers = Json::array();
  for (const BufferSpec& buffer : layout.buffers) {
    buffers.push_back({{"name", buffer.name},
                       {"dtype", std::string(Name(buffer.dtype))},
                       {"shape", buffer.shape},
                       {"bytes", SizeBytes(buffer).value_or(0)}});
  }
  return buffers;
}

absl::StatusOr<Json> MemoryJson(const ModelLayout& layout, const MemoryOptions& options) {
  Json json = Json::object();
  for (const Strategy strategy : PlannedStrategies(options)) {
    ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(layout, strategy, options));
    json[std::string(Name(strategy))] = {
        {"parameter_bytes", plan.parameter_bytes},
        {"gradient_bytes", plan.gradient_bytes},
        {"optimizer_bytes", plan.optimizer_bytes},
        {"unsharded_peak_bytes", plan.unsharded_peak_bytes},
        {"rank_total_bytes", plan.rank_total_bytes},
        {"host_unsharded_parameter_bytes", plan.unsharded_parameter_bytes},
        {"host_total_bytes", plan.host_total_bytes}};
  }
  return json;
}

Json WorkerJson(const JobMemory& mapped, int64_t world_size) {
  return {{"mapped_bytes_per_rank", mapped.MappedBytesOfRank(world_size)},
          {"state_bytes_per_rank", mapped.state_region_bytes()},
          {"gradient_bytes_per_rank", mapped.gradient_region_bytes()},
          {"parameter_bytes_per_host", mapped.parameter_region_bytes()}};
}

Json GpuJson(const WorkerMemory& workers) {
  return {{"mapped_bytes", workers.GpuBytes()},
          {"parameter_bytes", workers.on_gpu.total_bytes()},
          {"parameter_slots", workers.on_gpu.num_slots()},
          {"parameter_slot_bytes", workers.on_gpu.slot_bytes()}};
}

}  // namespace

absl::Status WriteLayoutJson(const ModelLayout& layout, const MemoryOptions& memory,
                             const WorkerMemory& workers, std::ostream* out) {
  // First, because it may fail, and then nothing may have been written.
  ASSIGN_OR_RETURN(const Json memory_json, MemoryJson(layout, memory));
  *out << absl::StrFormat("{\"world_size\":%d,\"layout_digest\":\"%016x\",\"units\":[",
                          layout.world_size, LayoutDigest(layout));
  for (size_t i = 0; i < layout.units.size(); ++i) {
    *out << (i == 0 ? "\n" : ",\n");
    RETURN_IF_ERROR(WriteUnit(layout.units[i], out));
  }
  *out << "],";
  if (!layout.buffers.empty()) *out << "\n\"buffers\":" << Text(BuffersJson(layout)) << ",";
  *out << "\n\"memory\":" << Text(memory_json)
       << ",\n\"cpu_worker\":" << Text(WorkerJson(workers.mapped, layout.world_size))
       << ",\n\"gpu_worker\":" << Text(GpuJson(workers)) << "}\n";
  return absl::OkStatus();
}

}  // namespace tessera::cli
