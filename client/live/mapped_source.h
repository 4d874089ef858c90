// What one worker has of a state, mapped: its descriptors, and the places in them. All that
// came is checked before any of it is touched. Immutable once it is there: thread-safe.
#ifndef TESSERA_CLIENT_LIVE_MAPPED_SOURCE_H_
#define TESSERA_CLIENT_LIVE_MAPPED_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "job/job_config.h"
#include "proto/live_map.pb.h"
#include "shm/region.h"

namespace tessera {

// Whether all places of `given` are inside of regions of these sizes. Errors: DataLoss.
absl::Status CheckPlaces(const v1::LiveMapGiven& given, const std::vector<int64_t>& region_sizes);

// Of a version.
struct MappedNumbers {
  int64_t trained_step = 0;
  std::vector<int64_t> update_counts;   // By requested parameter.
  std::vector<HyperParameters> groups;  // By param group.
};

class MappedSource {
 public:
  // `regions` are what `given` is about.
  // Errors: DataLoss           what came is not what was said to come
  //         ResourceExhausted  no memory
  static absl::StatusOr<std::unique_ptr<MappedSource>> Map(v1::LiveMapGiven given,
                                                           absl::Span<const UniqueFd> regions);

  const v1::LiveMapGiven& given() const { return given_; }
  // Requires a number of given().slices; of the version of `step`, or another one's in its place.
  absl::string_view Slice(int number, int64_t step) const;
  // The same of the version's numbers.
  MappedNumbers Numbers(int64_t step) const;

  int64_t Newest() const;  // That a rank has come to.
  // Whether each rank has come to `step`.
  bool IsWhole(int64_t step) const;
  // Whether nothing of that version, which is not negative, was overwritten before this call.
  bool Stands(int64_t step) const;

 private:
  explicit MappedSource(v1::LiveMapGiven given) : given_(std::move(given)) {}
  // In the first region.
  template <typename Value>
  Value Load(int64_t offset_bytes, std::memory_order order = std::memory_order_relaxed) const;

  const v1::LiveMapGiven given_;
  std::vector<Mapping> regions_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_MAPPED_SOURCE_H_
