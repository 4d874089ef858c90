// What one worker has of a state, mapped: its descriptors, and where in them things lie. All that
// came is checked before any of it is touched. Thread-compatible; IsWhole, Stands and Slice are
// thread-safe.
#ifndef TESSERA_CLIENT_CPP_MAPPED_SOURCE_H_
#define TESSERA_CLIENT_CPP_MAPPED_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/live_map.pb.h"
#include "worker/memory/fd_passing.h"
#include "worker/memory/region.h"

namespace tessera {

// Whether all places of `given` are inside of regions of these sizes. Errors: DataLoss.
absl::Status CheckPlaces(const v1::LiveMapGiven& given, const std::vector<int64_t>& region_sizes);

class MappedSource {
 public:
  // Errors, naming the worker:
  //   FailedPrecondition  it is not on this host, or another user's
  //   DataLoss            what came is not what was said to come
  //   Unavailable         it does not answer
  //   ResourceExhausted   no descriptors or memory
  static absl::StatusOr<std::unique_ptr<MappedSource>> Claim(const v1::LiveMapSource& source);

  // The numbers of its newest version. Errors: as Claim; Unavailable  the session is over.
  absl::StatusOr<v1::LiveMapGiven> Newest() const;
  // As they were when it was claimed, with the places.
  const v1::LiveMapGiven& given() const { return given_; }
  // Requires a number of given().slices; of the version of `step`, or another one's in its place.
  absl::string_view Slice(int number, int64_t step) const;
  // Whether each rank has come to `step`.
  bool IsWhole(int64_t step) const;
  // Whether nothing of that version was overwritten before this call.
  bool Stands(int64_t step) const;

 private:
  explicit MappedSource(v1::LiveMapSource source) : source_(std::move(source)) {}
  absl::StatusOr<Packet> Ask(bool only_numbers) const;
  absl::Status Map(const Packet& packet);
  const std::atomic<int64_t>& Word(int64_t offset_bytes) const;

  const v1::LiveMapSource source_;
  v1::LiveMapGiven given_;
  std::vector<Mapping> regions_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_CPP_MAPPED_SOURCE_H_
