// An executor's end of the socket to its worker: sends events, and waits for order releases.
// Thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_KEEPER_LINK_H_
#define TESSERA_WORKER_EXECUTOR_KEEPER_LINK_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "proto/executor.pb.h"
#include "worker/engine/rank_engine.h"

namespace tessera {

class KeeperLink : public OrderGate {
 public:
  // `socket` is not owned and outlives this.
  KeeperLink(int socket, std::string job_id, Rank rank)
      : socket_(socket), job_id_(std::move(job_id)), rank_(rank) {}

  // A lost event means a lost worker, which ends this process by other ways; so no status.
  void Send(const v1::ExecutorEvent& event);

  // What follows concerns `epoch`, until it is aborted.
  void BeginEpoch(Epoch epoch);
  void AbortEpoch(const absl::Status& reason);
  bool aborted() const;
  void OnRelease(const v1::OrderRelease& release);

  absl::Status AwaitRelease(const OrderEntry& entry, Step step, int64_t sequence) override;
  void ReportStep(Step step, uint64_t order_hash) override;

 private:
  const int socket_;
  const std::string job_id_;
  const Rank rank_;

  mutable absl::Mutex mu_;
  Epoch epoch_ ABSL_GUARDED_BY(mu_);
  absl::Status abort_reason_ ABSL_GUARDED_BY(mu_);
  std::pair<int64_t, int64_t> released_ ABSL_GUARDED_BY(mu_) = {-1, -1};  // Step, sequence.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_KEEPER_LINK_H_
