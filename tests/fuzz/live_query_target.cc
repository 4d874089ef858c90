// What a client asks for of a state: the coordinator and a worker that is asked itself plan it.
#include <cstdint>
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

// What was planned is given whole: each tensor's slices have all of its elements, and all tensors
// together have as many bytes as are said.
void LiveQueries(absl::string_view bytes) {
  static const ModelSpec* const model = new ModelSpec(Model());
  static const JobConfig* const config = new JobConfig(Config());
  v1::LiveStateQuery query;
  if (!query.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto plan = PlanLiveRead(*model, *config, query);
  if (!plan.ok()) return;
  TESSERA_CHECK(!plan->tensors.empty());
  std::vector<int64_t> given_numel(plan->tensors.size(), 0);
  const absl::Status visited =
      ForEachLiveSlice(*plan->layout, plan->tensors, 0, kWorldSize, [&](const LiveSlice& slice) {
        given_numel[slice.tensor] += slice.numel;
        return absl::OkStatus();
      });
  TESSERA_CHECK(visited.ok());
  int64_t all_bytes = 0;
  for (size_t tensor = 0; tensor < plan->tensors.size(); ++tensor) {
    const v1::LiveTensorInfo info = plan->InfoOf(tensor);
    TESSERA_CHECK(!info.name().empty());
    TESSERA_CHECK((plan->tensors[tensor].array == LiveArray::kBuffer) ==
                  (info.array() == v1::LIVE_STATE_ARRAY_BUFFER));
    int64_t numel = 1;
    for (const int64_t dimension : info.shape()) numel *= dimension;
    TESSERA_CHECK(given_numel[tensor] == numel);
    const int64_t size_bytes = numel * plan->ElementBytesOf(tensor);
    TESSERA_CHECK(plan->SizeBytesOf(tensor) == size_bytes);
    all_bytes += size_bytes;
  }
  TESSERA_CHECK(plan->TotalBytes() == all_bytes);
}

}  // namespace tessera::fuzz
