#include "worker/engine/remote_slices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "shm/region.h"

namespace tessera {
namespace {

int FewestRanksOfAHost(const RankTopology& topology) {
  int fewest = topology.NumRanks(0);
  for (int host = 1; host < topology.num_hosts(); ++host)
    fewest = std::min(fewest, topology.NumRanks(host));
  return fewest;
}

}  // namespace

RemoteSlices::RemoteSlices(const Options& options)
    : options_(options),
      gathered_(options.layout->units.size(), -1),
      counted_(options.layout->units.size(), -1),
      open_(options.layout->units.size(), 0),
      ahead_(options.layout->units.size(), 0) {
  const int fewest = FewestRanksOfAHost(*options_.topology);
  for (size_t unit = 0; unit < options_.layout->units.size(); ++unit) {
    each_window_.push_back(Spans(unit) && tessera::GathersEachWindow(
                                              *options_.layout, *options_.config, fewest, unit));
  }
}

bool RemoteSlices::Spans(int unit) const {
  return options_.topology->num_hosts() > 1 &&
         options_.layout->units[unit].shards.num_shards() == options_.config->world_size;
}

int64_t RemoteSlices::CountGatheredBytes(int unit, int64_t step) {
  if (!Spans(unit)) return 0;
  const int64_t counted = std::exchange(counted_[unit], step);
  // Within a step a unit that stays gathered is fetched once.
  if (!each_window_[unit] && counted == step) return 0;
  const int64_t slices = options_.topology->ServedBy(options_.rank.value()).size();
  return slices * options_.layout->units[unit].shards.shard_numel() *
         SizeBytes(options_.memory->units()[unit].compute_dtype);
}

absl::Status RemoteSlices::Gather(int unit, int64_t step) {
  const UnitMemory& placed = options_.memory->units()[unit];
  const UnitLayout& layout = options_.layout->units[unit];
  const UnitParameters& parameters = (*options_.parameters)[unit];
  const int64_t slice_bytes = layout.shards.shard_numel() * SizeBytes(placed.compute_dtype);
  std::byte* own = parameters.unsharded + options_.rank.value() * slice_bytes;
  // Before it succeeds: an error ends the epoch, and this object with it.
  gathered_[unit] = step;
  // A unit in a slot has its own slice elsewhere, where it stays while other units are in the
  // slot.
  if (own != parameters.own_slice) {
    options_.kernels->Copy(own, parameters.own_slice, slice_bytes);
    RETURN_IF_ERROR(options_.kernels->Finish());
  }
  if (options_.config->fake_all_gather) return absl::OkStatus();
  RETURN_IF_ERROR(Annotate(options_.gatherer->AllGatherMapped(parameters.unsharded, slice_bytes),
                           absl::StrCat("unshard unit '", layout.flat.unit_name(), "'")));
  return absl::OkStatus();
}

absl::Status RemoteSlices::GatherAhead(int unit, int64_t step) {
  if (!Spans(unit)) return absl::OkStatus();
  if (!each_window_[unit]) return gathered_[unit] == step ? absl::OkStatus() : Gather(unit, step);
  const uint64_t tag = WindowTag(options_.epoch.value(), step);
  if (ahead_[unit] == tag) return absl::OkStatus();
  // Counted before anything is written there: the last rank that closes gives the pages back.
  OpenWindow(&options_.windows[unit], tag);
  ahead_[unit] = tag;
  return Gather(unit, step);
}

absl::Status RemoteSlices::Open(int unit, int64_t step) {
  RETURN_IF_ERROR(GatherAhead(unit, step));
  // The window that was opened ahead becomes the trainer's.
  open_[unit] = std::exchange(ahead_[unit], 0);
  return absl::OkStatus();
}

void RemoteSlices::Close(int unit) { End(unit, std::exchange(open_[unit], 0)); }

void RemoteSlices::Drop(int unit) { End(unit, std::exchange(ahead_[unit], 0)); }

void RemoteSlices::End(int unit, uint64_t tag) {
  // Only the last window of the host gives memory back. A tag of an older step or epoch does not
  // count.
  if (tag == 0 || !CloseWindow(&options_.windows[unit], tag)) return;
  const int64_t numel = options_.layout->units[unit].shards.shard_numel();
  GiveBack((*options_.parameters)[unit].unsharded,
           numel * SizeBytes(options_.memory->units()[unit].compute_dtype));
}

absl::Status RemoteSlices::Refresh(int unit, int64_t step) {
  if (!Spans(unit)) return absl::OkStatus();
  return Gather(unit, step);
}

void RemoteSlices::GiveBack(std::byte* base, int64_t slice_bytes) {
  // A GPU's pages are not given back: a slot is filled again instead (docs/adr/0039).
  if (!options_.gives_memory_back) return;
  const RankTopology& topology = *options_.topology;
  const int host = topology.HostOf(options_.rank.value());
  const int64_t begin = topology.FirstRank(host), end = begin + topology.NumRanks(host);
  // Of other hosts' slices alone: this host's are what its ranks publish in.
  DiscardPages(base, begin * slice_bytes);
  DiscardPages(base + end * slice_bytes, (topology.world_size() - end) * slice_bytes);
}

void RemoteSlices::StepTaken() {
  // Only the first rank of the host: the others join no gather before it does.
  const int host = options_.topology->HostOf(options_.rank.value());
  const bool first = options_.rank.value() == options_.topology->FirstRank(host);
  for (size_t unit = 0; unit < ahead_.size(); ++unit) {
    // The words are of the step before: WindowTag makes their counts void.
    ahead_[unit] = open_[unit] = 0;
    if (!first || !Spans(unit)) continue;
    const UnitMemory& placed = options_.memory->units()[unit];
    const int64_t numel = options_.layout->units[unit].shards.shard_numel();
    const UnitParameters& parameters = (*options_.parameters)[unit];
    GiveBack(parameters.unsharded, numel * SizeBytes(placed.compute_dtype));
    // Windows in full precision were kept until the step was taken (docs/adr/0016).
    GiveBack(parameters.full, numel * SizeBytes(placed.full_dtype));
  }
}

}  // namespace tessera
