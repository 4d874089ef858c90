// One rank's NCCL communicator: joining, issuing groups of calls, waiting for them, aborting.
//
//   caller      Issue ───────► Await: asks the device, the epoch, the clock; now and then NCCL
//                 │              │
//   NCCL thread  group          async error?          calls of NCCL, none of which waits
//
// Communicators are made in non-blocking mode, so no call waits for another rank inside of the
// library, where nothing could end the wait, and communicators that share a thread do not wait for
// each other. Except for an abort, which may wait for everything that runs on the device: so a
// caller that aborts a running communicator aborts all of the device at once, whose ranks end with
// the same reason.
// Owned by shared pointers: a call that never comes back keeps what it uses.
// Thread-compatible: one thread calls it at a time.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_RANK_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_RANK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/comm/nccl/nccl_api.h"
#include "worker/comm/nccl/nccl_phase.h"
#include "worker/comm/nccl/nccl_thread.h"
#include "worker/device/cuda/cuda_stream.h"

namespace tessera {

class NcclRank : public std::enable_shared_from_this<NcclRank> {
 public:
  struct Options {
    NcclApi* api = nullptr;
    NcclThread* thread = nullptr;
    int rank = 0;
    int size = 1;
    absl::Duration timeout;         // Of joining, and of each operation.
    absl::Duration call_timeout;    // Of a call of NCCL, none of which should take long.
    std::function<bool()> aborted;  // Whether anyone has ended the epoch. From any thread.
  };
  // A group's calls, on this communicator and stream. Owns what it uses.
  using Group = std::function<NcclResult(NcclComm*, CudaStreamHandle*)>;

  NcclRank(const Options& options, std::unique_ptr<CudaStream> stream,
           std::unique_ptr<CudaEvent> event);

  // Each returns
  //   Aborted            the epoch was ended
  //   DeadlineExceeded   the other ranks or the device did not come in time, or a call of NCCL did
  //                      not come back
  //   Unavailable        another rank, the network or the device is gone; or a call was stuck
  //   Internal           the library or the device failed
  // and names the call and what the library says of it; where it was aborted with another of the
  // device, it is that one's reason.
  absl::Status Join(const NcclUniqueId& id);
  absl::Status Issue(const std::string& call, Group group);  // Until the stream has it.
  absl::Status Await(const std::string& call);               // Until the stream has done it.

  struct Region {
    void* data = nullptr;
    int64_t size_bytes = 0;  // `data` too: a multiple of the device's granularity.
  };
  // Registers these with the library, all or none. Before the first operation, of all ranks.
  //   FailedPrecondition  the library has no such call, or was told to register nothing
  absl::Status Register(std::vector<Region> regions);
  // Where they are registered. With an empty stream, and while nobody has aborted: an abort frees
  // what the library has of them, and a call that reached for a rank that is gone might hang.
  absl::Status Deregister();

  // Each ends what runs: idempotent, and back soon after `call_timeout` at the latest. After Abort
  // and Close the stream touches no memory any more, unless it is an error.
  //
  //   Revoke  as CommRevoke; where the library has none, as Abort
  //   Abort   and the other communicators of the device, whose ranks get `reason` in what they
  //           wait for and from then on
  //   Close   only this one: while no communicator of the device has anything running
  //
  // Errors: DeadlineExceeded, Unavailable  the call or the stream is stuck: the process must end
  //         Internal                       the library failed
  absl::Status Revoke(const absl::Status& reason) { return Apply(NcclEvent::kRevoke, reason); }
  absl::Status Abort(const absl::Status& reason) { return End(reason); }
  absl::Status Close() { return End(absl::OkStatus()); }
  // Not OK: this one was aborted with another of the device, for this reason.
  absl::Status ended_along() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return ended_along_;
  }

  CudaStreamHandle* stream() const { return stream_->handle(); }
  NcclPhase phase() const { return phase_; }

 private:
  // On the NCCL thread. What aborts is called on a broken device too, where nothing else is.
  absl::Status Call(std::function<absl::Status(NcclRank*)> work, bool aborts = false);
  // Polls until `done` says true, or an error.
  absl::Status Poll(const std::string& call, absl::FunctionRef<absl::StatusOr<bool>()> done);
  absl::StatusOr<bool> LibraryIsDone(const std::string& call);
  // `reason`: of those that end along; OK: none does.
  absl::Status Apply(NcclEvent event, const absl::Status& reason);
  absl::Status End(const absl::Status& reason);
  absl::Status Drain();  // Until the stream is empty.
  // These run on the NCCL thread.
  absl::Status ToStatus(absl::string_view call, NcclResult result) const;
  absl::Status RegisterNow(const std::vector<Region>& regions);
  absl::Status DeregisterNow();
  absl::Status CheckOpen() const;  // That nobody has aborted the communicator.
  absl::Status AbortNow(const absl::Status& reason);
  void EndAlong(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const std::unique_ptr<CudaEvent> event_;  // Outlives the work of the stream that mentions it.
  const std::unique_ptr<CudaStream> stream_;
  // Only the NCCL thread looks at these.
  NcclComm* comm_ = nullptr;
  std::vector<void*> registered_;
  const std::shared_ptr<NcclRanks> ranks_of_device_;
  mutable absl::Mutex mu_;
  absl::Status ended_along_ ABSL_GUARDED_BY(mu_);
  NcclPhase phase_ = NcclPhase::kJoining;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_RANK_H_
