// Communicators that move data between the devices of several workers, without host memory in
// between.
//
//   rank on a GPU ── DirectCommunicators::Join(control) ──► Communicator: NCCL
//
// Thread-compatible, but for `status`; communicators that it makes may be used concurrently.
#ifndef TESSERA_WORKER_COMM_DIRECT_COMMUNICATORS_H_
#define TESSERA_WORKER_COMM_DIRECT_COMMUNICATORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "worker/comm/communicator.h"
#include "worker/device/rank_device.h"

namespace tessera {

// Which device a rank has, as a library that joins them tells one from another. A plain value,
// which may be sent as it is.
struct DirectPlace {
  DeviceUuid device = {};  // All zero: nothing is known, and no other place is equal.
  // Not 0: the rank was told apart from others on its device, on purpose.
  uint64_t apart = 0;
  // Not 0: ranks of one number are taken for one device, whatever its UUIDs: parts of a GPU are.
  uint64_t slot = 0;
};
// The lowest two ranks that one device has. Pure.
absl::optional<std::pair<int, int>> RanksOfOneDevice(absl::Span<const DirectPlace> places);
// "ranks 0 and 3 are both on GPU-...: one rank of a GPU can join". Pure.
std::string DescribeShared(std::pair<int, int> ranks, absl::Span<const DirectPlace> places);

class DirectCommunicators {
 public:
  virtual ~DirectCommunicators() = default;

  // Ranks that one place has cannot join.
  virtual DirectPlace place() const = 0;

  // Whether what is moved can be registered with what moves it, as far as is known before; why not.
  virtual absl::Status CanRegister() const = 0;

  // Not OK, for good, once a call of the library did not come back: nothing but the end of the
  // process helps, and that must not wait for the call. From any thread.
  virtual absl::Status status() const = 0;

  struct Region {
    void* data = nullptr;  // Of the device, as RankDevice::MapRegion gave it.
    int64_t size_bytes = 0;
  };
  struct JoinOptions {
    Communicator* control = nullptr;  // Among the same ranks; outlives what is made.
    std::function<bool()> aborted;    // Whether anyone has aborted that. From any thread.
    absl::string_view stream;         // The name of its stream; see RankDevice::PutGathersFirst.
    absl::Duration timeout;           // Of joining, and of each operation.
    int64_t max_count = 1;            // ELEMENTS of the largest slice.
    int64_t max_slice_bytes = 0;      // The same, of what is reduced; 0: nothing is.
    // Whether all ranks can register. Each then registers the regions, which contain all data that
    // is moved. A failure on one rank is not an error, and counts for all.
    bool registers = false;
    std::vector<Region> regions;
  };
  // Collective: waits for all ranks.
  // Errors: those of a communicator's operations (see communicator.h)
  //         FailedPrecondition  ranks have different versions of the library, or one place: names
  //                             both
  //         ResourceExhausted   the device has no stream or memory left
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(const JoinOptions& options) = 0;
};

// For ranks on `device`, which outlives what is made of it. Errors: why there are none here.
using MakeDirectCommunicators =
    std::function<absl::StatusOr<std::unique_ptr<DirectCommunicators>>(RankDevice* device)>;

// Mapped reductions and gathers are `direct`'s, all else is `control`'s. Owns both.
std::unique_ptr<Communicator> JoinControlAndDirect(std::unique_ptr<Communicator> control,
                                                   std::unique_ptr<Communicator> direct);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_DIRECT_COMMUNICATORS_H_
