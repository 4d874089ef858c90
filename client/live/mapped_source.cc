#include "client/live/mapped_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_codec.h"
#include "shm/shared_file.h"

namespace tessera {
namespace {

constexpr int64_t kWordBytes = 8;
constexpr int64_t kCountBytes = 4;
constexpr int64_t kNumbersOfGroup = 6;

// Written so that no sum can overflow.
bool IsInside(int64_t offset_bytes, int64_t size_bytes, int64_t region_bytes) {
  return size_bytes >= 0 && offset_bytes >= 0 && size_bytes <= region_bytes &&
         offset_bytes <= region_bytes - size_bytes;
}

bool AreWords(int64_t offset_bytes, int64_t count, int64_t word_bytes, int64_t region_bytes) {
  // Aligned, since they are read as atomics, and few enough that the product cannot overflow.
  return offset_bytes % word_bytes == 0 && count <= region_bytes / word_bytes &&
         IsInside(offset_bytes, count * word_bytes, region_bytes);
}

absl::Status CheckNumbers(const v1::LiveMapGiven& given, const v1::LiveMapNumbers& numbers,
                          int64_t region_bytes) {
  int64_t num_counts = 0;
  for (const int64_t parameter : given.parameters()) {
    if (parameter < 0) return absl::DataLossError(absl::StrCat("parameter ", parameter, " came"));
    num_counts = std::max(num_counts, parameter + 1);
  }
  if (AreWords(numbers.trained_step_offset_bytes(), 1, kWordBytes, region_bytes) &&
      AreWords(numbers.update_counts_offset_bytes(), num_counts, kCountBytes, region_bytes) &&
      AreWords(numbers.groups_offset_bytes(), kNumbersOfGroup * given.own_groups_size(), kWordBytes,
               region_bytes))
    return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("numbers at ", numbers.trained_step_offset_bytes(), ", ",
                                          numbers.update_counts_offset_bytes(), " and ",
                                          numbers.groups_offset_bytes(), " of ", region_bytes,
                                          " bytes"));
}

}  // namespace

absl::Status CheckPlaces(const v1::LiveMapGiven& given, const std::vector<int64_t>& region_sizes) {
  // All offsets come from another process. They are checked once, before any is used.
  if (region_sizes.empty() || given.ranks().empty())
    return absl::DataLossError("the worker gave no words for the version");
  for (const int64_t size_bytes : region_sizes)
    if (size_bytes < 1) return absl::DataLossError("the worker gave an empty region");
  for (const v1::LiveMapRank& rank : given.ranks()) {
    if (AreWords(rank.applied_offset_bytes(), 1, kWordBytes, region_sizes[0]) &&
        AreWords(rank.writing_offset_bytes(), 1, kWordBytes, region_sizes[0]))
      continue;
    return absl::DataLossError(absl::StrCat("words at ", rank.applied_offset_bytes(), " and ",
                                            rank.writing_offset_bytes(), " of ", region_sizes[0],
                                            " bytes"));
  }
  RETURN_IF_ERROR(CheckNumbers(given, given.even(), region_sizes[0]));
  RETURN_IF_ERROR(CheckNumbers(given, given.odd(), region_sizes[0]));
  for (const v1::LiveMapSlice& slice : given.slices()) {
    const bool has_region =
        slice.region() >= 0 && slice.region() < static_cast<int>(region_sizes.size());
    const int64_t region_bytes = has_region ? region_sizes[slice.region()] : -1;
    if (IsInside(slice.even_offset_bytes(), slice.size_bytes(), region_bytes) &&
        IsInside(slice.odd_offset_bytes(), slice.size_bytes(), region_bytes) &&
        slice.size_bytes() > 0)
      continue;
    return absl::DataLossError(absl::StrCat(
        slice.size_bytes(), " bytes at ", slice.even_offset_bytes(), " and ",
        slice.odd_offset_bytes(), " of region ", slice.region(), " of ", region_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MappedSource>> MappedSource::Map(
    v1::LiveMapGiven given, absl::Span<const UniqueFd> regions) {
  std::unique_ptr<MappedSource> mapped(new MappedSource(std::move(given)));
  std::vector<int64_t> sizes;
  for (const UniqueFd& region : regions) {
    // Sealed against shrinking: else the worker could cut it under this mapping.
    ASSIGN_OR_RETURN(sizes.emplace_back(), SizeOfSealed(region.get()));
  }
  RETURN_IF_ERROR(CheckPlaces(mapped->given_, sizes));
  for (size_t i = 0; i < regions.size(); ++i) {
    ASSIGN_OR_RETURN(mapped->regions_.emplace_back(),
                     Mapping::Create(regions[i].get(), 0, sizes[i], Access::kReadOnly));
  }
  return mapped;
}

absl::string_view MappedSource::Slice(int number, int64_t step) const {
  const v1::LiveMapSlice& slice = given_.slices(number);
  const int64_t offset_bytes = step % 2 == 0 ? slice.even_offset_bytes() : slice.odd_offset_bytes();
  return {reinterpret_cast<const char*>(regions_[slice.region()].data()) + offset_bytes,
          static_cast<size_t>(slice.size_bytes())};
}

template <typename Value>
Value MappedSource::Load(int64_t offset_bytes, std::memory_order order) const {
  // Of a read-only mapping. The alignment was checked.
  return reinterpret_cast<const std::atomic<Value>*>(regions_[0].data() + offset_bytes)
      ->load(order);
}

MappedNumbers MappedSource::Numbers(int64_t step) const {
  const v1::LiveMapNumbers& places = step % 2 == 0 ? given_.even() : given_.odd();
  MappedNumbers numbers;
  // Relaxed: Stands is asked afterwards, with a fence.
  numbers.trained_step = Load<int64_t>(places.trained_step_offset_bytes());
  for (const int64_t parameter : given_.parameters()) {
    numbers.update_counts.push_back(
        Load<uint32_t>(places.update_counts_offset_bytes() + kCountBytes * parameter));
  }
  int64_t at = places.groups_offset_bytes();
  const auto next = [&] { return Load<double>(std::exchange(at, at + kWordBytes)); };
  for (const v1::ParamGroup& own : given_.own_groups()) {
    HyperParameters& group = numbers.groups.emplace_back(DecodeHyperParameters(own));
    // The page's numbers mean nothing before the first step.
    if (numbers.trained_step <= 0) continue;  // No step has any yet.
    for (double* number : {&group.learning_rate, &group.beta1, &group.beta2, &group.epsilon,
                           &group.weight_decay, &group.momentum})
      *number = next();
  }
  return numbers;
}

int64_t MappedSource::Newest() const {
  int64_t newest = 0;
  for (const v1::LiveMapRank& rank : given_.ranks())
    // Acquire: pairs with the release in PublishApplied, so the version's values are visible.
    newest =
        std::max(newest, Load<int64_t>(rank.applied_offset_bytes(), std::memory_order_acquire));
  return newest;
}

bool MappedSource::IsWhole(int64_t step) const {
  return std::all_of(
      given_.ranks().begin(), given_.ranks().end(), [&](const v1::LiveMapRank& rank) {
        return Load<int64_t>(rank.applied_offset_bytes(), std::memory_order_acquire) >= step;
      });
}

bool MappedSource::Stands(int64_t step) const {
  // What was read before is read before the words are: the writer's side is in state_hold.cc.
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::all_of(given_.ranks().begin(), given_.ranks().end(),
                     [&](const v1::LiveMapRank& rank) {
                       // Seqlock: if the writer had begun before this look, what was read is not
                       // used (docs/adr/0052).
                       const auto writing = Load<int64_t>(rank.writing_offset_bytes());
                       return writing < 2 || writing - 2 < step;  // Whatever it says.
                     });
}

}  // namespace tessera
