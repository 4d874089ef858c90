#include "layout/shard_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

ParameterShard ComputeParameterShard(const PlacedParameter& parameter, const ElementRange& range) {
  const int64_t first = parameter.offset_elements;
  const int64_t last = first + parameter.numel - 1;  // Inclusive; first - 1 if empty.
  if (range.empty() || range.begin > last || range.end <= first) return {};
  ParameterShard shard;
  shard.in_shard = true;
  shard.offset_in_shard = std::max(first, range.begin) - range.begin;
  shard.intra_param_start = std::max(first, range.begin) - first;
  shard.intra_param_end = std::min(last, range.end - 1) - first;
  shard.numel_in_shard = shard.intra_param_end - shard.intra_param_start + 1;
  return shard;
}

}  // namespace

std::vector<ParameterShard> ComputeParameterShards(const FlatLayout& layout,
                                                   const ElementRange& range) {
  std::vector<ParameterShard> shards;
  shards.reserve(layout.parameters().size());
  for (const PlacedParameter& parameter : layout.parameters()) {
    shards.push_back(ComputeParameterShard(parameter, range));
  }
  return shards;
}

absl::StatusOr<ShardView> ShardView::Create(const FlatLayout& layout, const ShardMap& shards,
                                            Rank rank) {
  if (rank.value() < 0 || rank.value() >= shards.num_shards()) {
    return absl::InvalidArgumentError(absl::StrCat("unit \"", layout.unit_name(), "\": rank ",
                                                   rank.value(), " is not in [0, ",
                                                   shards.num_shards(), ")"));
  }
  ShardView view;
  view.rank_ = rank;
  view.range_ = shards.RangeOf(rank);
  view.parameters_ = ComputeParameterShards(layout, view.range_);
  view.padding_elements_ = view.range_.size();
  for (size_t i = 0; i < view.parameters_.size(); ++i) {
    const ParameterShard& shard = view.parameters_[i];
    if (shard.numel_in_shard == 0) continue;
    view.padding_elements_ -= shard.numel_in_shard;
    view.slices_.push_back({static_cast<int64_t>(i),
                            {shard.intra_param_start, shard.intra_param_end + 1},
                            {shard.offset_in_shard, shard.offset_in_shard + shard.numel_in_shard}});
  }
  return view;
}

}  // namespace tessera
