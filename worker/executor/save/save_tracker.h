// Which checkpoint the coordinator requests from this rank, and what the coordinator is told of
// each saved one, whichever client requested it.
//
//   SetRequest ──► wanted(): what the rank votes with ──► Begin ──► Wrote ... ──► End
//                                                         └── reports ──► worker ──► coordinator
//
// Thread-safe; Next to End are called for one save after the other.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_SAVE_TRACKER_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_SAVE_TRACKER_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/saves.pb.h"

namespace tessera {

class SaveTracker {
 public:
  // Called by any thread, under a lock; the job, epoch and rank are not set.
  using Send = std::function<void(const v1::SaveReport& report)>;
  explicit SaveTracker(Send send) : send_(std::move(send)) {}

  // Of the coordinator, for saves to come; what is under way ends if it is that one no more.
  void SetRequest(const v1::RequestedSave& requested);
  // The number of the save that this rank could make now; 0: none.
  int64_t wanted() const;

  void BeginEpoch();
  // Counts the epoch's next save. Every rank calls it at the same saves.
  void Next();
  // If it is for a request of the coordinator's, fills in that one's spec.
  // Errors: Cancelled  that is not wanted any more.
  absl::Status Fill(v1::SaveRequest* request);
  // All ranks agree that it is to be made, of `step`; this rank has so much to write.
  void Begin(const v1::SaveRequest& request, int64_t step, int64_t all_bytes);
  void Wrote(int64_t bytes);
  // `outcome`: OK or an agreed error (agreed_error.h), or why the ranks could not agree. May follow
  // Next alone. Only checkpoints are reported.
  void End(const v1::SaveRequest& request, int64_t step, const absl::Status& outcome,
           const v1::SaveReply& reply);

  // Makes cancelled() true until the next save.
  void Cancel() { cancelled_.store(true); }
  // Whether it is not wanted any more: by the trainer, or by the requester.
  const std::atomic<bool>& cancelled() const { return cancelled_; }

 private:
  v1::SaveReport ReportLocked(v1::SaveReport::Phase phase, const v1::SaveRequest& request,
                              int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Send send_;
  std::atomic<bool> cancelled_{false};
  mutable absl::Mutex mu_;
  v1::RequestedSave requested_ ABSL_GUARDED_BY(mu_);
  int64_t ended_request_ ABSL_GUARDED_BY(mu_) = 0;  // Up to this one they are over.
  int64_t ordinal_ ABSL_GUARDED_BY(mu_) = 0;
  bool under_way_ ABSL_GUARDED_BY(mu_) = false;
  int64_t request_under_way_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time began_at_ ABSL_GUARDED_BY(mu_);
  v1::SaveReport progress_ ABSL_GUARDED_BY(mu_);  // As it was sent last.
  int64_t written_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_SAVE_TRACKER_H_
