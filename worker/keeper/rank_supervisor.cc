#include "worker/keeper/rank_supervisor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/retry.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/storage/storage_patience.h"
#include "shm/fd_passing.h"
#include "worker/keeper/executor_watch.h"

namespace tessera {
namespace {

// Between two looks for a trainer that hosts the rank's executor.
constexpr absl::Duration kLook = absl::Milliseconds(500);

// After so many executors in a row that ended before they were ready, the coordinator is told.
constexpr int kFailedStartsTold = 3;

// What a dead executor left in an object store may take so long to remove.
constexpr absl::Duration kTidyUp = absl::Seconds(5);

// Before the launch that follows `failed_starts` in a row.
absl::Duration RelaunchDelay(int failed_starts) {
  // Without jitter: nobody else starts this rank's executor.
  RetryOptions options;
  options.initial = absl::Milliseconds(200);
  options.max = absl::Seconds(10);
  return RetryDelay(options, failed_starts - 1, /*uniform=*/0.5);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankSupervisor>> RankSupervisor::Start(const JobContext* context,
                                                                      JobParts* parts, Rank rank) {
  std::unique_ptr<RankSupervisor> supervisor(new RankSupervisor(context, parts, rank));
  ASSIGN_OR_RETURN(supervisor->thread_,
                   StartThread(absl::StrCat("job '", context->job_id, "' rank ", rank.value()),
                               [self = supervisor.get()] { self->Run(); }));
  return supervisor;
}

RankSupervisor::~RankSupervisor() {
  if (thread_.joinable()) thread_.join();
}

void RankSupervisor::Run() {
  int failed_starts = 0;  // In a row.
  while (true) {
    const absl::StatusOr<int> socket = Launch();
    ExecutorEnd end;
    if (socket.ok()) {
      // Returns when the executor's socket ends, for whatever reason.
      ExecutorWatch(context_, parts_, rank_, *socket).ReadEvents();
      end = Reap();
    } else {
      end.how = socket.status().ToString();
    }
    absl::MutexLock lock(&parts_->mu);
    if (parts_->epochs.is_closed()) return;
    // Where a trainer hosts or is about to, the end says nothing of the next start.
    const bool is_failed_start =
        !end.was_ready && !end.was_hosted && !parts_->trainers.HasOffer(rank_);
    // Failures to start are counted, since trying again at once would only burn the node's time.
    failed_starts = is_failed_start ? failed_starts + 1 : 0;
    // Nothing failed: the epoch goes on, and the next executor waits for the epoch after it.
    if (end.left_its_epoch) {
      TESSERA_LOG(INFO, "job {} rank {}: the executor left with its trainer", context_->job_id,
                  rank_.value());
      continue;
    }
    if (parts_->executors.Of(rank_).vacant && parts_->epochs.phase() == EpochPhase::kRunning) {
      // The epoch continues without one, and this one was in none.
      TESSERA_LOG(WARNING, "job {} rank {}: executor {}", context_->job_id, rank_.value(), end.how);
    } else {
      OnEndLocked(end.how, failed_starts);
    }
    // One that ran is replaced at once.
    if (failed_starts == 0) continue;
    const auto go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(parts_->mu) {
      return parts_->epochs.is_closed() || parts_->trainers.HasOffer(rank_);
    };
    // Woken by a trainer that hosts the executor: it need not wait for the delay.
    AwaitWithTimeout(&parts_->mu, absl::Condition(&go_on), RelaunchDelay(failed_starts));
    if (parts_->epochs.is_closed()) return;
  }
}

void RankSupervisor::AwaitOffer() {
  absl::MutexLock lock(&parts_->mu);
  EpochMachine& epochs = parts_->epochs;
  const auto is_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(parts_->mu) {
    return parts_->epochs.is_closed() || parts_->trainers.HasOffer(rank_);
  };
  // In slices, though an offer wakes the wait: the epoch that is prepared has a deadline of its
  // own.
  const absl::Duration look = std::min(kLook, context_->answer_timeout);
  while (!AwaitWithTimeout(&parts_->mu, absl::Condition(&is_over), look)) {
    if (epochs.phase() == EpochPhase::kPreparing &&
        SteadyNow() - epochs.preparing_since() >= context_->answer_timeout)
      epochs.Fail(rank_, parts_->trainers.WhyItNeedsHost(rank_), EpochEvent::kGiveUp);
  }
}

absl::StatusOr<int> RankSupervisor::Launch() {
  v1::Job job;
  std::unique_ptr<HostOffer> offer;
  do {
    if (context_->needs_hosts()) AwaitOffer();
    // Taken under the lock, together with the job that the executor is set up for.
    absl::MutexLock lock(&parts_->mu);
    if (parts_->epochs.is_closed()) return absl::CancelledError("the job ends");
    job = parts_->epochs.job();
    offer = parts_->trainers.TakeOffer(rank_);
  } while (context_->needs_hosts() && offer == nullptr);  // The offering trainer may be gone again.
  UniqueFd socket;
  std::unique_ptr<RunningExecutor> executor;
  if (offer != nullptr) {
    socket = std::move(offer->socket);
    executor = NewTrainersExecutor(offer->pid);
  } else {
    ASSIGN_OR_RETURN(auto sockets, CreatePacketSocketPair());
    socket = std::move(sockets.first);
    ASSIGN_OR_RETURN(
        executor, context_->launcher->Launch(std::move(sockets.second),
                                             absl::StrCat(context_->job_id, "/", rank_.value())));
  }
  // Before the setup gives it memory: the next daemon must know whom to end.
  if (context_->vault != nullptr)
    context_->vault->NoteExecutor(context_->vault_owner, rank_,
                                  offer != nullptr ? 0 : executor->pid());
  const absl::Status sent =
      context_->regions.SendSetup(socket.get(), job, rank_, context_->data_host);
  if (!sent.ok()) {
    socket.Reset();  // Ends the executor, also one that is a thread.
    executor->Kill();
    // How it ended says more than that it did not listen.
    return Annotate(sent, absl::StrCat(executor->Wait(), "; executor setup"));
  }
  absl::MutexLock lock(&parts_->mu);
  ExecutorSlot& slot = parts_->executors.Of(rank_);
  // Only now: until it has its setup an executor is given no command.
  slot.socket = std::move(socket);
  slot.executor = std::move(executor);
  slot.host = offer != nullptr ? offer->attachment : Incarnation();
  slot.ending = slot.left = false;
  slot.launched_at = SteadyNow();
  ++slot.num_starts;
  const bool is_wanted = offer != nullptr
                             ? parts_->trainers.HostIsAttached(rank_, slot.host)
                             : !parts_->trainers.HasOffer(rank_);  // Meanwhile a trainer came.
  // Both may have changed while the lock was not held.
  if (parts_->epochs.is_closed() || !is_wanted) slot.End();
  return slot.socket.get();
}

std::string RankSupervisor::AwaitEnd(RunningExecutor* executor) {
  // The rank gets no other executor until this one is dead, however long: both would write its
  // shard.
  const absl::Duration patience = std::min(ExecutorWatch::kStandstill, context_->answer_timeout);
  while (!executor->EndsWithin(patience)) {
    const std::string reason = absl::StrCat("the executor of rank ", rank_.value(),
                                            " was killed and does not end: ", executor->Describe());
    absl::MutexLock lock(&parts_->mu);
    EpochMachine& epochs = parts_->epochs;
    TESSERA_LOG(ERROR, "job {}: {}", context_->job_id, reason);
    if (epochs.phase() != EpochPhase::kPreparing ||
        SteadyNow() - epochs.preparing_since() >= patience)
      epochs.EndOfRank(rank_, reason, EpochEvent::kGiveUp);
  }
  return executor->Wait();
}

RankSupervisor::ExecutorEnd RankSupervisor::Reap() {
  std::unique_ptr<RunningExecutor> executor;
  ExecutorEnd end;
  std::string saving_path, why_ended;
  {
    absl::MutexLock lock(&parts_->mu);
    ExecutorSlot& slot = parts_->executors.Of(rank_);
    saving_path.swap(slot.saving_path);
    // Also empties them, so that nothing of this executor is said of the next.
    why_ended.swap(slot.why_ended);
    executor = std::move(slot.executor);
    end.was_ready = slot.ready;
    end.was_hosted = slot.host != Incarnation();
    // Where its trainer is still there, it waits for what nobody does.
    end.left_its_epoch = slot.left && parts_->epochs.phase() == EpochPhase::kRunning &&
                         !parts_->trainers.HostIsAttached(rank_, slot.host);
    if (end.left_its_epoch) slot.vacant = true;
    slot.host = Incarnation();
    slot.ready = false;
    slot.quiet = false;
    slot.pending_order.Clear();
    // Closed under the lock: Send must not write to a number that is another socket's by then.
    slot.socket.Reset();
  }
  // The socket is closed, so either it is dead or it is beyond use.
  // Outside the lock: an executor that is stuck in the kernel takes long to end.
  executor->Kill();
  end.how = AwaitEnd(executor.get());
  if (!why_ended.empty()) absl::StrAppend(&end.how, " as it ", why_ended);
  {
    // Only after its end: until then it could still have applied the put.
    absl::MutexLock lock(&parts_->mu);
    parts_->puts.OnHolderEnded(rank_);
  }
  if (!saving_path.empty()) {
    TESSERA_LOG(INFO, "job {} rank {}: removes the unfinished {}", context_->job_id, rank_.value(),
                PrintableUtf8(saving_path));
    // Only after the executor's end: until then it could create the file again.
    // An object store that is away must not keep the rank's next executor away as well.
    const StoragePatience patience(kTidyUp);
    // A model file or a checkpoint's folder: the call that does not fit finds nothing.
    ModelFile::Discard(saving_path);
    DiscardFolder(saving_path);
  }
  return end;
}

void RankSupervisor::OnEndLocked(const std::string& how, int failed_starts) {
  TESSERA_LOG(WARNING, "job {} rank {}: executor {}", context_->job_id, rank_.value(), how);
  // Told first: the save ended in the epoch that ends next.
  parts_->saves.EndOpen(rank_, how);
  std::string reason = absl::StrCat("the executor of rank ", rank_.value(), " ended: ", how);
  if (failed_starts >= kFailedStartsTold) {
    reason = absl::StrCat("the executor of rank ", rank_.value(), " (", context_->launcher->name(),
                          ") ended ", failed_starts, " times before it was ready: ", how);
  }
  // While preparing, kFailure changes nothing. kGiveUp does, and so tells the coordinator.
  parts_->epochs.EndOfRank(
      rank_, reason,
      failed_starts >= kFailedStartsTold ? EpochEvent::kGiveUp : EpochEvent::kFailure);
}

}  // namespace tessera
