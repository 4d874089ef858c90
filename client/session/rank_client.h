// A trainer's connection to its rank: the rank's memory, the ring from which its executor takes
// operations, and the epochs.
//
//   RankClient client(options, [] { ... });   the callback drops state when an epoch begins
//   client.Connect(deadline);                 creates the job, attaches, maps the memory
//   client.Begin(deadline, take_over);        the rank's executor, and the first epoch
//   client.Submit(op); client.Await(what, done);
//
// For this folder: Session is what trainers use. One thread at a time. Every wait ends by the
// options' operation_timeout, and says which ranks are missing.
#ifndef TESSERA_CLIENT_SESSION_RANK_CLIENT_H_
#define TESSERA_CLIENT_SESSION_RANK_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "client/rpc/job_rpc.h"
#include "client/session/fork_closed.h"
#include "client/session/hosted_executor.h"
#include "client/session/mapped_rank.h"
#include "job/job_memory.h"
#include "layout/model_layout.h"
#include "shm/control_page.h"
#include "tessera/session_options.h"

namespace tessera {

struct BufferHooks;

// An operation with nothing but its kind, and its unit: -1, none.
Op OpOf(OpKind kind, int unit = -1);

class RankClient {
 public:
  RankClient(SessionOptions options, std::function<void()> on_epoch)
      : options_(std::move(options)), on_epoch_(std::move(on_epoch)) {}
  ~RankClient();

  // --- Attaching; errors: as Session::Open ---
  absl::Status Connect(absl::Time deadline);
  // Where the options have a host_executor, starts it and waits for its first epoch. Else takes
  // part in the epoch that runs: the executor has done what an earlier trainer had submitted, and
  // `take_over` does what it left.
  absl::Status Begin(absl::Time deadline, absl::FunctionRef<absl::Status()> take_over);
  // `idle`: an executor in this process has nothing to do in its epoch, and is left to finish.
  // `done`: once all ranks are, the job is completed.
  void Detach(bool idle, bool done);
  // See Session::Report.
  absl::Status Report(const std::map<std::string, double>& values) const;
  bool attached() const { return lease_.valid(); }
  // Whether this process is a forked child of the trainer's, which shares the rank's memory.
  bool is_inherited() const { return lease_in_children_.is_inherited(); }
  // Whether the rank's executor is to run in this process; and whether it does.
  bool wants_executor() const { return options_.host_executor != nullptr; }
  bool hosts_executor() const { return executor_ != nullptr && executor_->running(); }

  const SessionOptions& options() const { return options_; }
  const ModelLayout& layout() const { return layout_; }
  const JobMemory& plan() const { return plan_; }
  MappedRank& memory() { return memory_; }
  const MappedRank& memory() const { return memory_; }
  ControlPage* page() const { return reinterpret_cast<ControlPage*>(memory_.control.data()); }
  int rank() const { return options_.rank; }
  int num_units() const { return static_cast<int>(layout_.units.size()); }
  int64_t generation() const { return generation_; }  // Of the job.
  uint32_t epoch() const { return epoch_; }
  int64_t version() const;    // Of the state: steps and writes.
  int64_t next_step() const;  // 1 + the last committed one.
  bool initialized() const;   // Whether the job has values.
  DialOptions Coordinator() const;
  const std::string& UnitName(int unit) const { return layout_.units[unit].flat.unit_name(); }
  // FailedPrecondition  this process is a forked child of the trainer's
  absl::Status CheckProcess() const;
  absl::Status CheckUnit(int unit) const;    // InvalidArgument  there is none; as CheckProcess.
  absl::Status CheckInitialized() const;     // FailedPrecondition  the job has no values yet.
  absl::Status CheckNotInitialized() const;  // FailedPrecondition  the job has values.

  // --- Operations; errors of all: Aborted, DeadlineExceeded, Unavailable (the worker is gone) ---
  absl::Status Submit(Op op);
  absl::Status Submit(OpKind kind, const StepOptions& step);
  absl::Status SubmitAndAwait(Op op);  // Returns once the executor is through with it.
  absl::Status Await(absl::FunctionRef<std::string()> what, absl::FunctionRef<bool()> done);
  // Until the executor is through with all that was submitted.
  absl::Status AwaitConsumed(absl::FunctionRef<std::string()> what);
  // OK: the other ranks got the result too, error or not. ResultStatus() is what it says.
  absl::Status AwaitResult(OpKind kind);
  absl::Status ResultStatus() const;
  // Both, of an operation that has a result.
  absl::Status Finish(Op op);
  // How many this trainer has submitted since the last step or, if that is later, the epoch's begin;
  // without what it does by itself as it attaches.
  int num_submitted() const { return num_submitted_; }
  // Whether the last operation's result is an error that all ranks got.
  bool agreed_error() const { return agreed_error_; }
  void set_agreed_error(bool agreed) { agreed_error_ = agreed; }

  // --- Epochs: see Session ---
  bool EpochIsOver() const;
  bool restart_required() const;  // As Session has it.
  absl::Status Fail(const absl::Status& cause);
  absl::Status Recover();
  // If this trainer hosts its executor, waits until each rank has a trainer: others that host theirs
  // end the epoch when they attach. Returns if the epoch ends meanwhile. Waits once in a session.
  // Errors: those of all operations.
  absl::Status AwaitTrainers();
  // Whether it has not done that yet.
  bool is_meeting_trainers() const { return wants_executor() && !has_met_trainers_; }
  // An error of this rank's part of something collective. If the other ranks do not have it, it
  // ends the epoch, so that they get it and do not wait. Returns it, but never as Aborted then.
  absl::Status Tell(const absl::Status& own);
  // No wait lasts beyond `deadline` from now on; InfiniteFuture: as the options say.
  void LimitWaits(absl::Time deadline) { wait_limit_ = deadline; }

  const std::shared_ptr<const BufferHooks>& buffer_hooks() const { return buffer_hooks_; }
  void SetBufferHooks(std::shared_ptr<const BufferHooks> hooks) {
    buffer_hooks_ = std::move(hooks);
  }

 private:
  // `former`: as AttachRequest.former_attachment.
  absl::StatusOr<AttachedRank> Attach(int64_t former, bool wait_if_attached,
                                      absl::Time deadline) const;
  void KeepLease(UniqueFd lease);
  // Errors: as WorkerIsGone.
  absl::Status CheckLease(absl::FunctionRef<std::string()> what);
  // The lease has ended. OK: the next daemon of the worker has the same memory, and gave another.
  // Errors: Unavailable  why not
  absl::Status WorkerIsGone(absl::FunctionRef<std::string()> what);
  absl::Status MapRegions(std::vector<UniqueFd> fds);
  absl::Status HostExecutor(absl::Time deadline);
  void BeginEpoch();
  absl::Status JoinEpoch(absl::FunctionRef<absl::Status()> take_over);
  absl::Status JoinNextEpoch();  // Errors: as Recover.
  absl::Status AwaitNewEpoch(absl::Time deadline);
  // Of a job that ended on this worker. Errors: DataLoss  it is lost; else Cancelled
  absl::Status WhyTheJobEnded() const;
  // Whether the coordinator says that a later epoch runs, for which the rank's executor makes
  // ready.
  bool LaterEpochRuns(bool* unknown) const;  // `unknown`: it does not answer.
  // Of a failed wait: adds which ranks it waited for, as the coordinator knows it.
  absl::Status NameMissing(absl::Status status) const;
  absl::Status StageBuffers(OpKind kind);

  SessionOptions options_;  // Its rank is that of the first attachment, where it was kAnyRank.
  const std::function<void()> on_epoch_;
  ModelLayout layout_;
  JobMemory plan_;
  UniqueFd lease_;  // Open as long as the rank is attached.
  ForkClosed lease_in_children_;
  bool outlives_daemon_ = false;
  int64_t attachment_ = 0;   // Its number.
  std::string attach_key_;   // As Job.attach_key.
  uint64_t control_id_ = 0;  // Of the control page's memory.
  MappedRank memory_;
  UniqueFd executor_socket_;                  // For the one that Begin starts.
  std::unique_ptr<HostedExecutor> executor_;  // Null: the worker runs it.
  bool needs_own_executor_ = false;           // The worker cannot run it.
  bool has_met_trainers_ = false;             // Of all ranks; as AwaitTrainers.
  int64_t generation_ = 0;
  uint32_t epoch_ = 0, results_ = 0;  // Results seen in this epoch.
  int num_submitted_ = 0;
  absl::Time wait_limit_ = absl::InfiniteFuture();  // Of each wait.
  // Since when epochs have failed without anything that was completed.
  struct Stalled {
    absl::Time since, last = absl::InfinitePast();
    int64_t version = 0;
    int epochs = 0;
  };
  Stalled stalled_;
  bool agreed_error_ = false;
  std::shared_ptr<const BufferHooks> buffer_hooks_;  // Null: none.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_RANK_CLIENT_H_
