// Runs the core in a process: one lock, the journal, the workers' outboxes, calls that wait, and a
// ticker. Knows nothing of gRPC.
//
//   event ─► core handler ─► journal ─► Accept ─► outboxes, watchers        all under one lock
//                              └ failed ─► Rollback, the event is refused
//
// Thread-safe. The lock is held over a journal write, which is rare: membership, epochs, and the
// newest committed step once a tick.
#ifndef TESSERA_COORDINATOR_SERVICE_COORDINATOR_HOST_H_
#define TESSERA_COORDINATOR_SERVICE_COORDINATOR_HOST_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/event_log.h"
#include "coordinator/service/codec.h"
#include "coordinator/service/job_waits.h"
#include "coordinator/service/journal_starts.h"
#include "coordinator/service/outbox.h"
#include "coordinator/storage/journal.h"

namespace tessera::coordinator {

// What has happened since this process began, for metrics. Of each kind or cause that has happened;
// Name() of core/cluster_event.h says what the label of each is.
struct CoordinatorCounts {
  std::map<EventKind, int64_t> events;   // Also those that are not kept any more.
  std::map<EpochCause, int64_t> epochs;  // Of all jobs, opened after this.
  int64_t order_mismatches = 0;
};

class CoordinatorHost {
 public:
  struct Options {
    CoordinatorOptions core;
    absl::Duration tick_interval = absl::Milliseconds(50);
    Clock* clock = Clock::Real();
    // The cluster that a journal without a name is to be of; empty: a new one.
    std::string cluster_id;
    // The journal may be older than what workers have heard: it takes over what they hold.
    bool older_journal = false;
  };

  // Reads the journal and starts the ticker.
  // A job whose rows cannot be decoded is quarantined: see Coordinator::Quarantine.
  // Errors: as Journal::ReadAll, DecodeRecord and Coordinator::Restore;
  //         FailedPrecondition  the journal is of another cluster than the options say
  static absl::StatusOr<std::unique_ptr<CoordinatorHost>> Create(const Options& options,
                                                                 std::unique_ptr<Journal> journal);
  ~CoordinatorHost() { Stop(); }

  // Ends the ticker, closes the outboxes and lets everybody who waits return. Idempotent.
  void Stop();

  // Returns once the ticker has gone round once more, which it does not while the lock is held or
  // the journal hangs. False: Stop was called.
  bool AwaitTick();

  // Which cluster this is, by a name that no other one has.
  const std::string& cluster() const { return cluster_; }
  // Errors: FailedPrecondition  `cluster`, not empty, is another one.
  absl::Status CheckCluster(const WorkerId& worker, const std::string& cluster) const;

  // How long changes took to become durable, as a histogram.
  static constexpr std::array<double, 9> kAppendBounds_s = {0.0005, 0.001, 0.0025, 0.005, 0.01,
                                                            0.025,  0.1,   0.5,    2.5};
  struct JournalTimes {
    std::array<int64_t, kAppendBounds_s.size() + 1> counts{};
    double sum_s = 0;
    bool healthy = true;  // The last write did not fail.
  };
  JournalTimes GetJournalTimes();

  // What workers hear of the journal; start 0: nothing yet. Takes no lock.
  HeardJournal ToHear() const { return {start_.load(), num_changes_.load()}; }

  // As the core's methods of these names. A change that cannot be journalled is refused:
  //   ResourceExhausted  the disk is full
  //   Unavailable        the journal failed otherwise, or Stop was called
  absl::StatusOr<JobView> CreateJob(const CreateJobEvent& event);
  absl::Status DeleteJob(const DeleteJobEvent& event);
  absl::StatusOr<JobView> GetJob(const JobId& job);
  std::vector<JobView> ListJobs(const JobId& after = JobId(), size_t max_jobs = SIZE_MAX);
  // Returns the number of this life.
  absl::StatusOr<Incarnation> RegisterWorker(const RegisterWorkerEvent& event);
  absl::StatusOr<SaveView> GetSave(const JobId& job, int64_t number);
  absl::StatusOr<std::vector<SaveView>> ListSaves(const JobId& job);

  struct WorkerView {
    WorkerId id;
    Member member;
    absl::Duration silent;      // Since it was last heard of.
    int64_t claimed_bytes = 0;  // Of its memory, by jobs.
  };
  std::vector<WorkerView> ListWorkers();  // In the order of their ids.

  // As EventLog::After.
  EventLog::Page ListEvents(int64_t after_number, size_t max_events, size_t max_bytes,
                            absl::FunctionRef<bool(const ClusterEvent&)> wanted);
  CoordinatorCounts Counts();

  // Makes `outbox` the one that commands to this worker go to, and closes the one before.
  absl::Status Connect(const Sender& sender, const std::string& key,
                       std::shared_ptr<Outbox> outbox);
  void Disconnect(const WorkerId& worker, const std::shared_ptr<Outbox>& outbox);
  // `outbox`: of the stream that the event came by.
  // Errors: Aborted      a newer stream of the worker has taken its place
  //         Unavailable  the coordinator is stopping
  //         the core's. That the journal failed is no error here: the core tries again each tick.
  absl::Status OnStreamEvent(const Sender& sender, const std::shared_ptr<Outbox>& outbox,
                             const StreamEvent& event);

  // Sends what the core knows nothing of. False: the worker is not connected.
  bool SendCommand(const WorkerId& worker, Command command);

  // One event of the core's, whole; errors as above.
  using Handler =
      absl::FunctionRef<absl::Status(Coordinator& core, absl::Time now, Effects* effects)>;
  absl::Status Run(Handler handler);
  // Waits until `look`, which is called again as these jobs change, and now and then, has a status,
  // and returns it. Errors: Cancelled, Unavailable, and that status.
  absl::Status AwaitCore(const std::vector<JobId>& jobs,
                         absl::FunctionRef<std::optional<absl::Status>(const Coordinator&)> look,
                         absl::FunctionRef<bool()> cancelled);

  // Waits until the job differs from what `*seen_change` saw (0: nothing yet), and updates it.
  // Errors: NotFound, Cancelled (`cancelled` became true), Unavailable
  absl::StatusOr<JobView> AwaitChange(const JobId& job, int64_t* seen_change,
                                      absl::FunctionRef<bool()> cancelled);

 private:
  CoordinatorHost(const Options& options, std::unique_ptr<Journal> journal, JournalStarts starts,
                  Coordinator core);

  // One event, whole. `journal_failed`: set where it was refused because of the journal.
  absl::Status RunLocked(Handler handler, bool* journal_failed = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WriteLocked(const Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteOrderLocked(const Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteJournalLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverLocked(Effects effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes the job's state in logs and events, where it is another one than the last that was noted.
  void NoteStateLocked(const JobView& job, const Effects& effects, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTicker();

  const Options options_;
  const std::string cluster_;
  std::atomic<uint64_t> start_{0};    // 0: it is not in the journal yet.
  std::atomic<int64_t> num_changes_;  // Of the journal.
  JobWaits waits_;
  absl::Mutex mu_;
  JournalStarts starts_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<Journal> journal_ ABSL_PT_GUARDED_BY(mu_);
  Coordinator core_ ABSL_GUARDED_BY(mu_);
  std::map<WorkerId, std::shared_ptr<Outbox>> outboxes_ ABSL_GUARDED_BY(mu_);
  // When each job last changed, counted in changes; so waiting is `change > seen`.
  int64_t last_change_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<JobId, int64_t> changed_at_ ABSL_GUARDED_BY(mu_);
  std::map<JobId, std::tuple<Epoch, JobState, bool>> logged_ ABSL_GUARDED_BY(mu_);
  EventLog events_ ABSL_GUARDED_BY(mu_);
  std::map<EpochCause, int64_t> num_epochs_ ABSL_GUARDED_BY(mu_);
  JournalTimes journal_times_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int64_t num_ticks_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread ticker_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_COORDINATOR_HOST_H_
