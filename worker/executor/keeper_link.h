// An executor's end of the socket to its worker: sends events, and waits for order releases, which
// the coordinator gives. Thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_KEEPER_LINK_H_
#define TESSERA_WORKER_EXECUTOR_KEEPER_LINK_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "layout/model_layout.h"
#include "proto/executor.pb.h"
#include "worker/engine/rank_engine.h"

namespace tessera {

class KeeperLink : public OrderGate {
 public:
  struct Options {
    int socket = -1;  // Not owned; outlives the link.
    std::string job_id;
    Rank rank;
    absl::Duration release_timeout;       // Of each wait for a release.
    const ModelLayout* layout = nullptr;  // Names the units in errors; outlives the link.
    // A report that comes sooner after the last one that was sent is kept back.
    absl::Duration report_interval = kLongestReportDelay;
  };
  explicit KeeperLink(Options options) : options_(std::move(options)) {}

  // A lost event means a lost worker, which ends this process by other ways; so no status.
  void Send(const v1::ExecutorEvent& event);

  // What follows concerns `epoch`, until it is aborted.
  void BeginEpoch(Epoch epoch);
  void AbortEpoch(const absl::Status& reason);
  void Interrupt(const absl::Status& reason) override;
  bool aborted() const;
  void OnRelease(const v1::OrderRelease& release);

  // Errors: DeadlineExceeded  no release within the timeout: the coordinator is away, or a rank has
  //                           not announced this entry; names it. Whatever ended the epoch.
  absl::Status AwaitRelease(const OrderEntry& entry, const OrderPlace& place) override;
  void ReportStep(Step step, uint64_t order_hash) override;
  bool keeps_reports_back() const override;
  void SendReports() override;
  // This rank begins to write the model file `path`; empty: it has ended to.
  void ReportSaving(const std::string& path);

 private:
  absl::Status NotReleased(const OrderEntry& entry, const OrderPlace& place) const;
  void SendReportsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static constexpr OrderPlace kNowhere = {-1, -1, -1};

  const Options options_;

  mutable absl::Mutex mu_;
  Epoch epoch_ ABSL_GUARDED_BY(mu_);
  absl::Status abort_reason_ ABSL_GUARDED_BY(mu_);
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);  // Of the engine's own.
  OrderPlace awaited_ ABSL_GUARDED_BY(mu_) = kNowhere;
  v1::StepReport kept_back_ ABSL_GUARDED_BY(mu_);  // Of epoch 0: none.
  absl::Time reported_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_KEEPER_LINK_H_
