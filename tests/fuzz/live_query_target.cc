// What a client asks for of a state: the coordinator and a worker that is asked itself plan it.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "job/live_plan.h"
#include "proto/live_state.pb.h"
#include "tests/fuzz/fuzz_targets.h"

namespace tessera::fuzz {
namespace {

constexpr int kWorldSize = 3;

// Tied, frozen, empty and without dimensions; and buffers.
ModelSpec Model() {
  ModelSpec model;
  model.units.push_back(
      {"root", {{"a", {20, 3}}, {"b", {3}, DType::kFp32, false}, {"none", {0, 4}}}});
  TensorSpec tied = model.units[0].parameters[0];
  tied.name = "tied";
  tied.shared_with = "a";
  model.units[0].parameters.push_back(tied);
  model.units.push_back({"top", {{"d", {7}, DType::kFp64}, {"s", {}, DType::kFp64}}});
  model.buffers = {{"count", StoredDType::kI64, {}}, {"mask", StoredDType::kBool, {5}}};
  return model;
}

JobConfig Config() {
  JobConfig config;
  config.world_size = kWorldSize;
  config.layout.shard_alignment_bytes = 0;
  return config;
}

}  // namespace

// What was planned is given whole: each entry's extents have all of its bytes, and all entries
// together as many as are said.
void LiveQueries(absl::string_view bytes) {
  static const ModelSpec* const model = new ModelSpec(Model());
  static const JobConfig* const config = new JobConfig(Config());
  v1::LiveStateQuery query;
  if (!query.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto plan = PlanLiveRead(*model, *config, query);
  if (!plan.ok()) return;
  const auto infos = InfosWithExtents(*plan, std::vector<int>(kWorldSize, 0));
  TESSERA_CHECK(infos.ok());
  TESSERA_CHECK(infos->size() == plan->num_entries() && !infos->empty());
  int64_t all_bytes = 0;
  for (size_t entry = 0; entry < infos->size(); ++entry) {
    const v1::LiveTensorInfo& info = (*infos)[entry];
    TESSERA_CHECK(!info.name().empty());
    TESSERA_CHECK((plan->FirstOf(entry).array == LiveArray::kBuffer) ==
                  (info.array() == v1::LIVE_STATE_ARRAY_BUFFER));
    int64_t numel = 1, extents_numel = 0;
    for (const v1::LiveExtent& extent : info.extents()) extents_numel += extent.numel();
    for (const int64_t dimension : info.shape()) numel *= dimension;
    TESSERA_CHECK(extents_numel == numel);
    const int64_t size_bytes = numel * plan->ElementBytesOf(plan->entries[entry]);
    TESSERA_CHECK(plan->SizeBytesOf(entry) == size_bytes);
    all_bytes += size_bytes;
  }
  TESSERA_CHECK(plan->TotalBytes() == all_bytes);
}

}  // namespace tessera::fuzz
