#include "client/torch/state_parts.h"

#include <utility>

#include "base/check.h"

namespace tessera {
namespace {

// How many elements of the unit's parameters, without padding, are before this rank's shard.
int64_t ElementsBefore(const Session& session, int unit) {
  const UnitLayout& layout = session.layout().units[unit];
  return tessera::ElementsBefore(layout, layout.shards.RangeOf(Rank(session.rank())));
}

}  // namespace

ShardView ViewOf(const Session& session, int unit) {
  const UnitLayout& layout = session.layout().units[unit];
  // Replicas hold the same shard.
  absl::StatusOr<ShardView> view = ShardView::Create(
      layout.flat, layout.shards, Rank(session.rank() % layout.shards.num_shards()));
  TESSERA_CHECK(view.ok());
  return *std::move(view);
}

StateEntry PartOf(const Session& session, int unit, const torch::Tensor& whole,
                  StateDictType type) {
  const UnitLayout& layout = session.layout().units[unit];
  // A scalar has no rows.
  if (type == StateDictType::kFull || ShardsNothing(layout) || whole.dim() == 0)
    return StateEntry::Whole(whole);
  const int64_t chunks = layout.shards.num_shards();
  return RowsEntry(whole, chunks, session.rank() % chunks);
}

StateEntry FlatPartOf(const Session& session, int unit, const std::vector<torch::Tensor>& wholes) {
  // An empty part first: cat of nothing is an error.
  std::vector<torch::Tensor> parts = {torch::empty({0}, wholes[0].options())};
  const ShardView view = ViewOf(session, unit);
  for (const ParameterSlice& slice : view.slices()) {
    parts.push_back(wholes[slice.parameter_index].reshape({-1}).slice(0, slice.in_parameter.begin,
                                                                      slice.in_parameter.end));
  }
  StateEntry entry;
  entry.tensor = torch::cat(parts);
  entry.kind = StateEntry::Kind::kFlat;
  entry.shape = {session.layout().units[unit].flat.unpadded_numel()};
  entry.begin = ElementsBefore(session, unit);
  return entry;
}

ExpectedEntry ExpectedOf(const Session& session, int unit, int parameter, StateDictType type) {
  const UnitLayout& layout = session.layout().units[unit];
  ExpectedEntry expected;
  if (type == StateDictType::kLocal) {
    const ShardView view = ViewOf(session, unit);
    int64_t numel = 0;
    for (const ParameterSlice& slice : view.slices()) numel += slice.in_parameter.size();
    const int64_t begin = ElementsBefore(session, unit);
    return {StateEntry::Kind::kFlat, {layout.flat.unpadded_numel()}, {begin, begin + numel}};
  }
  expected.shape = layout.flat.parameters()[parameter].spec.shape;
  if (type == StateDictType::kFull || ShardsNothing(layout) || expected.shape.empty())
    return expected;
  const int64_t chunks = layout.shards.num_shards();
  expected.kind = StateEntry::Kind::kRows;
  expected.part = RowsOf(expected.shape[0], chunks, session.rank() % chunks);
  return expected;
}

}  // namespace tessera
