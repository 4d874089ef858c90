// What waits is in Await.
#include "client/session/rank_client.h"

#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/restart_required.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/session/buffer_hooks.h"
#include "client/session/missing_ranks.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "layout/layout_digest.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
#include "shm/populate_pages.h"
#include "worker/device/host/host_rank_device.h"

namespace tessera {
namespace {

// How long a session that ends waits for a worker that does not answer. For its own executor it
// waits as long as that takes.
constexpr absl::Duration kDetachTimeout = absl::Seconds(5);

// How long an epoch may take to begin if ranks are rebuilt from others.
constexpr absl::Duration kLongestRebuild = absl::Hours(1);

// Between two attempts to attach to the next daemon.
constexpr absl::Duration kAttachPause = absl::Milliseconds(50);

// Between two looks whether all ranks have trainers. With many ranks the second one counts: an answer
// has a line for each rank, and each rank looks.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kLookPerRank = absl::Milliseconds(5);

// How long the coordinator may take to say which ranks a trainer waits for.
constexpr absl::Duration kMissingTimeout = absl::Seconds(1);

absl::StatusOr<MappedParameters> MapParameters(const ModelLayout& layout, const JobConfig& config,
                                               const JobMemory& memory, int rank,
                                               RankDevice* device,
                                               const std::vector<UniqueFd>& fds) {
  const size_t num_others = device->is_separate() ? 4 : 3;
  ParameterPlan plan = ParameterPlan::InPlaces(memory);
  // More descriptors than regions are slots: the worker plans them by the same arithmetic.
  if (fds.size() > num_others) {
    ASSIGN_OR_RETURN(plan, ParameterPlan::InSlots(layout, config, memory));
  }
  if (fds.size() != num_others + plan.num_slots()) {
    return absl::UnavailableError(absl::StrCat("the worker gave ", fds.size(),
                                               " descriptors for a rank on ", device->name(),
                                               " with ", plan.num_slots(), " slots"));
  }
  return MappedParameters::Map(std::move(plan), layout, memory, Rank(rank), device, fds[0],
                               absl::MakeConstSpan(fds).subspan(num_others), /*writable=*/false);
}

// Of those that do, each rank's executor gets one from its trainer.
bool MakesVersion(OpKind kind) {
  return kind == OpKind::kStep || kind == OpKind::kFinishInitialize ||
         kind == OpKind::kFinishWrite || kind == OpKind::kFinishTrainersStep ||
         kind == OpKind::kLoad;
}

bool EndsStep(OpKind kind) { return kind == OpKind::kStep || kind == OpKind::kFinishTrainersStep; }

// What a trainer does by itself as it attaches. Other ranks do not come to it.
bool IsOfAttaching(OpKind kind) {
  return kind == OpKind::kRestoreBuffers || kind == OpKind::kReadShard;
}

// The same for all descriptors of one memory file; no other file has it while this one exists.
absl::StatusOr<uint64_t> IdOfFile(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "look at the rank's memory");
  return static_cast<uint64_t>(info.st_ino);
}

absl::Status LostError(const v1::Job& job) {
  return absl::DataLossError(
      absl::StrCat("job '", job.job_id(), "' is lost: ", job.state_reason()));
}

}  // namespace

Op OpOf(OpKind kind, int unit) {
  Op op;
  op.kind = kind;
  op.unit = unit;
  return op;
}

RankClient::~RankClient() {
  // A forked child has no such thread, and would wait for its end.
  if (is_inherited()) (void)executor_.release();
}

absl::Status RankClient::Connect(absl::Time deadline) {
  ASSIGN_OR_RETURN(layout_, LayOut(options_.model, options_.config));
  // The same arithmetic as in the worker, checked by the layout's digest in Attach.
  ASSIGN_OR_RETURN(plan_, JobMemory::Create(layout_, options_.config));
  v1::CreateJobRequest create;
  create.set_request_id(NewRequestId());
  create.set_job_id(options_.job_id);
  *create.mutable_model() = EncodeModel(options_.model);
  *create.mutable_config() = EncodeJobConfig(options_.config);
  create.set_submitting_rank(options_.rank);
  // Every rank submits the same job. The first one creates it.
  ASSIGN_OR_RETURN(const v1::Job job, CreateJob(Coordinator(), create, deadline));
  if (job.state() == v1::JOB_STATE_LOST) return LostError(job);
  if (job.state() == v1::JOB_STATE_HANDED_OVER) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", options_.job_id, "' is over: ", job.state_reason()));
  }

  generation_ = job.generation();
  attach_key_ = job.attach_key();
  ASSIGN_OR_RETURN(AttachedRank rank, Attach(/*former=*/0, options_.wait_if_attached, deadline));
  // Checked, since sizes and offsets follow from it.
  const int given = rank.response.rank();
  if (given < 0 || given >= options_.config.world_size ||
      (options_.rank != kAnyRank && given != options_.rank)) {
    return absl::UnavailableError(
        absl::StrCat("the worker gave rank ", given, " of ", options_.config.world_size));
  }
  // Later attachments ask for this rank by number, also if the first one asked for any.
  options_.rank = given;
  KeepLease(std::move(rank.lease));
  attachment_ = rank.response.attachment();
  outlives_daemon_ = rank.response.outlives_daemon();
  needs_own_executor_ = rank.response.needs_trainers_executor();
  epoch_ = static_cast<uint32_t>(rank.response.epoch());
  if (wants_executor()) {
    // The last descriptor, by protocol.
    executor_socket_ = std::move(rank.fds.back());
    rank.fds.pop_back();
  }
  return MapRegions(std::move(rank.fds));
}

absl::StatusOr<AttachedRank> RankClient::Attach(int64_t former, bool wait_if_attached,
                                                absl::Time deadline) const {
  v1::AttachRequest request;
  request.set_job_id(options_.job_id);
  request.set_rank(options_.rank);
  request.set_world_size(options_.config.world_size);
  request.set_layout_digest(LayoutDigest(layout_));
  // The job may be deleted and made again before this arrives. Its memory is another one then.
  request.set_generation(generation_);
  request.set_former_attachment(former);
  // Only the job's owner gets it from the coordinator.
  request.set_attach_key(attach_key_);
  request.set_hosts_executor(wants_executor());
  absl::StatusOr<AttachedRank> rank =
      AttachToRank(options_.worker_address, request, wait_if_attached, deadline);
  RETURN_IF_ERROR(NameMissing(rank.status()));
  if (rank->fds.size() < (wants_executor() ? 4 : 3))
    return absl::UnavailableError("the worker gave not all of the rank's memory");
  return rank;
}

absl::Status RankClient::CheckLease(absl::FunctionRef<std::string()> what) {
  // Readable without a message that anybody awaits: the worker closed it.
  pollfd lease = {lease_.get(), POLLIN, 0};
  return poll(&lease, 1, 0) > 0 ? WorkerIsGone(what) : absl::OkStatus();
}

absl::Status RankClient::WorkerIsGone(absl::FunctionRef<std::string()> what) {
  // A child has no lease, and must not take its parent's place.
  RETURN_IF_ERROR(CheckProcess());
  const auto gone = [&](absl::string_view why) {
    return absl::UnavailableError(
        absl::StrCat("the worker is gone (waiting for ", what(), ")", why));
  };
  // Memory that does not outlive the daemon, or an executor here, cannot be taken up again.
  if (!outlives_daemon_ || wants_executor()) return gone("");
  const absl::Time deadline = std::min(SteadyNow() + options_.recover_timeout, wait_limit_);
  absl::StatusOr<AttachedRank> again = Attach(attachment_, /*wait_if_attached=*/true, deadline);
  // The next daemon may end, too, before it gave the descriptors.
  while (absl::IsUnavailable(again.status()) && SteadyNow() + kAttachPause < deadline) {
    absl::SleepFor(kAttachPause);
    again = Attach(attachment_, /*wait_if_attached=*/true, deadline);
  }
  if (!again.ok()) return gone(absl::StrCat(", and did not come back: ", again.status().message()));
  // Another file: the job has begun again, and what this process maps is no longer its memory.
  ASSIGN_OR_RETURN(const uint64_t memory, IdOfFile(again->fds[2].get()));
  if (memory != control_id_) return gone(", and came back without the job's memory");
  KeepLease(std::move(again->lease));
  attachment_ = again->response.attachment();
  return absl::OkStatus();
}

absl::Status RankClient::Begin(absl::Time deadline, absl::FunctionRef<absl::Status()> take_over) {
  // A new executor begins with the next epoch, so there is none to join.
  if (wants_executor()) return HostExecutor(deadline);
  const absl::Status joined = JoinEpoch(take_over);
  // An epoch that ended meanwhile is not the caller's concern; the next one is clean.
  const bool epoch_failed = page()->failed_epoch.load(std::memory_order_acquire) >= epoch_;
  return absl::IsAborted(joined) || (!joined.ok() && epoch_failed) ? JoinNextEpoch() : joined;
}

DialOptions RankClient::Coordinator() const {
  return {options_.coordinator_address, options_.tls, options_.insecure_connect};
}

absl::Status RankClient::NameMissing(absl::Status status) const {
  // Asked only when something went wrong. The answer may not come either.
  if (!absl::IsDeadlineExceeded(status)) return status;
  const auto job = GetJob(Coordinator(), options_.job_id, SteadyNow() + kMissingTimeout);
  const std::string missing = job.ok() ? MissingRanks(*job, rank()) : "";
  if (missing.empty()) return status;
  return absl::DeadlineExceededError(absl::StrCat(status.message(), ": ", missing));
}

absl::Status RankClient::HostExecutor(absl::Time deadline) {
  ASSIGN_OR_RETURN(executor_, HostedExecutor::Start(options_.host_executor,
                                                    std::move(executor_socket_), options_.rank));
  const absl::Status status = AwaitNewEpoch(deadline);
  // One that could not start has made room for one of the worker's, and that was not asked for.
  RETURN_IF_ERROR(executor_->status());
  return status;
}

void RankClient::BeginEpoch() {
  results_ = 0;
  num_submitted_ = 0;
  on_epoch_();
}

absl::Status RankClient::JoinEpoch(absl::FunctionRef<absl::Status()> take_over) {
  // The epoch opens the rank's page a moment after the worker heard of it.
  RETURN_IF_ERROR(Await([] { return std::string("the rank's executor"); },
                        [this] { return page()->epoch.load() >= epoch_; }));
  BeginEpoch();
  // A trainer that detached in this epoch may have left operations, open units and gradients. What
  // it submitted is done once this is, reductions too; only then do the counts stand still.
  RETURN_IF_ERROR(Submit(OpOf(OpKind::kDropGradients)));
  // A save that a trainer died in goes on. The time until its end is no time to attach.
  const absl::Time from = SteadyNow(), limit = wait_limit_;
  const bool is_saving = page()->progress_kind.load() == static_cast<uint32_t>(OpKind::kSave);
  if (is_saving) wait_limit_ = absl::InfiniteFuture();
  const absl::Status consumed =
      AwaitConsumed([] { return std::string("operations of the trainer before this one"); });
  if (is_saving) wait_limit_ = limit + (SteadyNow() - from);
  RETURN_IF_ERROR(consumed);
  // Counts of results go on in the epoch. Those of the earlier trainer are not this one's.
  results_ = page()->result.count.load();
  RETURN_IF_ERROR(take_over());
  num_submitted_ = 0;  // What this took is the earlier trainer's.
  return absl::OkStatus();
}

absl::Status RankClient::MapRegions(std::vector<UniqueFd> fds) {
  ASSIGN_OR_RETURN(control_id_, IdOfFile(fds[2].get()));
  ASSIGN_OR_RETURN(memory_.gradients, Mapping::CreateWhole(fds[1].get(), Access::kReadWrite));
  ASSIGN_OR_RETURN(memory_.control, Mapping::CreateWhole(fds[2].get(), Access::kReadWrite));
  // Sizes are checked once here, so that offsets of the plan are safe everywhere.
  if (memory_.gradients.size_bytes() < plan_.gradient_region_bytes() ||
      memory_.control.size_bytes() < static_cast<int64_t>(sizeof(ControlPage)) ||
      page()->version != kControlPageVersion) {
    return absl::FailedPreconditionError(
        "the worker has another version: its memory has another layout");
  }
  const DeviceName device_name(page()->device, page()->device_uuid);
  absl::StatusOr<std::unique_ptr<RankDevice>> device = options_.make_device == nullptr
                                                           ? MakeHostRankDevice(device_name)
                                                           : options_.make_device(device_name);
  RETURN_IF_ERROR(
      Annotate(device.status(), absl::StrCat("rank ", options_.rank, " is on another device")));
  memory_.device = *std::move(device);
  ASSIGN_OR_RETURN(memory_.parameters, MapParameters(layout_, options_.config, plan_, options_.rank,
                                                     memory_.device.get(), fds));
  if (memory_.device->is_separate()) {
    ASSIGN_OR_RETURN(memory_.device_gradients,
                     memory_.device->MapRegion(fds[3].get(), plan_.device_gradient_region_bytes(),
                                               /*writable=*/true));
    ASSIGN_OR_RETURN(memory_.kernels, memory_.device->CreateKernels({}));
    return absl::OkStatus();
  }
  // So that no step faults. Places for buffers that never change take no memory, but rank 0's.
  PopulatePages(memory_.gradients.data(), options_.rank == 0 ? memory_.gradients.size_bytes()
                                                             : plan_.staged_buffers_offset_bytes());
  return absl::OkStatus();
}

void RankClient::Detach(bool idle, bool done) {
  if (!attached()) return;
  // An executor that has nothing left to do leaves its epoch without ending it for others. Within a
  // step it waits for other ranks, which will never come.
  if (idle) {
    const uint32_t submitted = page()->submitted.value.load();
    // If it does not come, the detach tells the worker all the same.
    (void)AwaitEvent(
        page(), epoch_, SteadyNow() + kDetachTimeout, [] { return std::string("the last one"); },
        [&] { return page()->consumed.load(std::memory_order_acquire) == submitted; });
  }
  const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(kDetachTimeout));
  pollfd lease = {lease_.get(), POLLOUT, 0};
  (void)poll(&lease, 1, timeout_ms);  // Reports may fill the socket of a worker that is slow.
  v1::LocalRequest detach;
  detach.mutable_detach()->set_unfinished(!done);
  // A worker that is gone sees the end of the socket instead.
  (void)SendPacket(lease_.get(), EncodeRequest(std::move(detach)), {}, /*wait=*/false);
  // Once the worker knows, which closes the lease then, another trainer may attach, and the end of
  // an executor here is not a failure.
  lease.events = POLLIN;
  (void)poll(&lease, 1, timeout_ms);
  executor_.reset();
}

absl::Status RankClient::Report(const std::map<std::string, double>& values) const {
  RETURN_IF_ERROR(CheckProcess());
  v1::LocalRequest request;
  request.mutable_report()->mutable_values()->insert(values.begin(), values.end());
  RETURN_IF_ERROR(CheckReport(request.report()));
  // One that finds no room in the socket, or no worker, is dropped: the next one replaces it.
  if (attached()) (void)SendPacket(lease_.get(), EncodeRequest(std::move(request)), {}, false);
  return absl::OkStatus();
}

void RankClient::KeepLease(UniqueFd lease) {
  // The old one is closed by the assignment, and its number may be another file's in a child.
  lease_in_children_.Set(-1);
  lease_ = std::move(lease);
  lease_in_children_.Set(lease_.get());
}

int64_t RankClient::version() const {
  return page()->committed_step.load(std::memory_order_acquire);
}

int64_t RankClient::next_step() const {
  return page()->trained_step.load(std::memory_order_acquire) + 1;
}

bool RankClient::initialized() const {
  return page()->initialized.load(std::memory_order_acquire) != 0;
}

absl::Status RankClient::CheckProcess() const {
  if (!is_inherited()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a forked child cannot use its parent's session of job '", options_.job_id,
                   "': read what the child needs (all values, say) before the fork, on all ranks"));
}

absl::Status RankClient::CheckUnit(int unit) const {
  RETURN_IF_ERROR(CheckProcess());
  if (unit >= 0 && unit < num_units()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no unit ", unit, " of ", num_units()));
}

absl::Status RankClient::CheckInitialized() const {
  if (initialized()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job '", options_.job_id, "' has no initial values yet"));
}

absl::Status RankClient::CheckNotInitialized() const {
  if (!initialized()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job '", options_.job_id, "' has its initial values already"));
}

absl::Status RankClient::StageBuffers(OpKind kind) {
  if (buffer_hooks_ == nullptr || buffer_hooks_->stage == nullptr || !MakesVersion(kind))
    return absl::OkStatus();
  const absl::Status staged = buffer_hooks_->stage();
  if (staged.ok() || absl::IsAborted(staged)) return staged;
  // An error of this rank alone: the others, which wait for it in the operation, are told.
  RETURN_IF_ERROR(Fail(staged));
  RETURN_IF_ERROR(Recover());
  agreed_error_ = true;
  return staged;
}

absl::Status RankClient::Submit(Op op) {
  RETURN_IF_ERROR(CheckProcess());
  ControlPage* control = page();
  RETURN_IF_ERROR(FaultPoint("trainer.operation"));
  // Before the entry is filled: hooks may submit operations of their own.
  RETURN_IF_ERROR(StageBuffers(op.kind));
  // Only this thread submits, so its own last store is what it reads.
  const uint32_t number = control->submitted.value.load(std::memory_order_relaxed);
  // Acquire: the executor has copied the entry that this one overwrites.
  RETURN_IF_ERROR(
      Await([] { return std::string("room in the submission ring"); },
            [&] { return number - control->consumed.load(std::memory_order_acquire) < kRingOps; }));
  // The executor passes over operations of another epoch.
  op.epoch = epoch_;
  control->ring[number % kRingOps] = op;
  agreed_error_ = false;
  // Last, because from here on the executor reads the entry.
  Publish(&control->submitted, number + 1);
  if (!IsOfAttaching(op.kind)) ++num_submitted_;
  return absl::OkStatus();
}

absl::Status RankClient::Submit(OpKind kind, const StepOptions& step) {
  RETURN_IF_ERROR(CheckProcess());
  Op op = OpOf(kind);
  op.learning_rate_scale = step.learning_rate_scale;
  op.gradient_divisor = step.gradient_divisor;
  op.weight = step.weight.value_or(-1.0);
  op.num_groups = step.groups.size();
  // Before the entry is published. The executor takes them with the operation.
  std::copy(step.groups.begin(), step.groups.end(), page()->step_groups);
  return Submit(op);
}

absl::Status RankClient::AwaitConsumed(absl::FunctionRef<std::string()> what) {
  const uint32_t submitted = page()->submitted.value.load();
  return Await(what, [&] { return page()->consumed.load(std::memory_order_acquire) == submitted; });
}

absl::Status RankClient::SubmitAndAwait(Op op) {
  RETURN_IF_ERROR(Submit(op));
  return AwaitConsumed([&] { return OpName(op.kind); });
}

absl::Status RankClient::Finish(Op op) {
  RETURN_IF_ERROR(Submit(op));
  RETURN_IF_ERROR(AwaitResult(op.kind));
  return ResultStatus();
}

absl::Status RankClient::AwaitResult(OpKind kind) {
  // Each result has a number, so one of an operation that was given up is never taken for
  // another's.
  const uint32_t wanted = results_ + 1;
  const OpResult& result = page()->result;
  RETURN_IF_ERROR(FaultPoint("trainer.result"));
  RETURN_IF_ERROR(Await([kind] { return OpName(kind); },
                        [&] { return result.count.load(std::memory_order_acquire) == wanted; }));
  results_ = wanted;
  if (EndsStep(kind)) num_submitted_ = 0;
  // Every rank gets this error, so the epoch need not end for it.
  agreed_error_ = result.status_code != 0;
  if (buffer_hooks_ != nullptr && buffer_hooks_->take != nullptr && MakesVersion(kind))
    buffer_hooks_->take();
  return absl::OkStatus();
}

absl::Status RankClient::ResultStatus() const {
  const OpResult& result = page()->result;
  if (result.status_code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(result.status_code),
                      LoadText(result.message, kMaxErrorBytes));
}

absl::Status RankClient::Await(absl::FunctionRef<std::string()> what,
                               absl::FunctionRef<bool()> done) {
  const absl::Time deadline = std::min(SteadyNow() + options_.operation_timeout, wait_limit_);
  while (true) {
    // In slices, to notice when the worker is gone and no answer will come.
    absl::Status status =
        AwaitEvent(page(), epoch_, std::min(deadline, SteadyNow() + absl::Seconds(1)), what, done);
    if (!absl::IsDeadlineExceeded(status)) return status;
    RETURN_IF_ERROR(CheckLease(what));
    if (SteadyNow() >= deadline) return NameMissing(status);
  }
}

bool RankClient::restart_required() const {
  return page()->failed_epoch.load(std::memory_order_acquire) >= epoch_ &&
         page()->failure_code == kRestartRequired;
}

bool RankClient::EpochIsOver() const {
  return page()->failed_epoch.load(std::memory_order_acquire) >= epoch_ ||
         page()->epoch.load(std::memory_order_acquire) > epoch_;
}

absl::Status RankClient::Fail(const absl::Status& cause) {
  RETURN_IF_ERROR(CheckProcess());
  if (absl::IsAborted(cause)) stalled_ = {};  // This one does not fail because a rank is missing.
  if (EpochIsOver()) return absl::OkStatus();
  // Before the operation that points at it.
  StoreText(cause.message(), page()->text, kMaxTextBytes);
  Op op = OpOf(OpKind::kFail);
  op.status_code = cause.raw_code();
  RETURN_IF_ERROR(Submit(op));
  const absl::Status over =
      Await([] { return std::string("the end of the epoch"); }, [this] { return EpochIsOver(); });
  // An epoch that ended for another reason is as good.
  return EpochIsOver() ? absl::OkStatus() : over;
}

absl::Status RankClient::Tell(const absl::Status& own) {
  // An error that all ranks have, or an epoch that is over, needs no end of the epoch.
  if (own.ok() || EpochIsOver() || agreed_error_) return own;
  // Not as Aborted: a body that always returns it would be repeated for ever.
  const absl::Status told = absl::IsAborted(own) ? absl::UnknownError(own.message()) : own;
  RETURN_IF_ERROR(Fail(told));
  return told;
}

absl::Status RankClient::Recover() {
  RETURN_IF_ERROR(CheckProcess());
  if (!EpochIsOver()) return absl::OkStatus();
  // Where it is now the others do not come.
  if (restart_required())
    return absl::FailedPreconditionError(LoadText(page()->failure_message, kMaxErrorBytes));
  return JoinNextEpoch();
}

absl::Status RankClient::AwaitTrainers() {
  if (!wants_executor() || has_met_trainers_ || options_.config.world_size == 1)
    return absl::OkStatus();
  const absl::Time deadline = std::min(SteadyNow() + options_.operation_timeout, wait_limit_);
  const absl::Duration look = std::max(kLook, kLookPerRank * options_.config.world_size);
  while (true) {
    const uint32_t seen = page()->events.value.load(std::memory_order_acquire);
    if (EpochIsOver()) return absl::OkStatus();  // The operation says why.
    const auto job = GetJob(Coordinator(), options_.job_id, SteadyNow() + kMissingTimeout);
    if (job.ok() && job->epoch() == epoch_ && AllHaveTrainers(*job)) break;
    RETURN_IF_ERROR(CheckLease([] { return std::string("the trainers of all ranks"); }));
    if (SteadyNow() >= deadline) {
      return NameMissing(absl::DeadlineExceededError(absl::StrCat(
          "waited too long for the trainers of all ranks of job '", options_.job_id, "'")));
    }
    WaitForChange(&page()->events, seen, std::min(deadline, SteadyNow() + look));
  }
  has_met_trainers_ = true;
  return absl::OkStatus();
}

absl::Status RankClient::JoinNextEpoch() {
  const absl::Time now = SteadyNow();
  // Every epoch may fail because the same rank is missing.
  // Counted by progress: epochs that fail in a row are an error once nothing was completed for
  // long.
  if (stalled_.version != version() || now - stalled_.last > options_.operation_timeout)
    stalled_ = {now, now, version(), 0};
  ++stalled_.epochs;
  if (now - stalled_.since > options_.operation_timeout) {
    const int epochs = std::exchange(stalled_, Stalled()).epochs;
    return NameMissing(absl::DeadlineExceededError(
        absl::StrCat("nothing was completed in ", epochs, " epochs of job '", options_.job_id,
                     "', ", absl::FormatDuration(options_.operation_timeout),
                     " long: ", LoadText(page()->failure_message, kMaxErrorBytes))));
  }
  const absl::Status next = AwaitNewEpoch(std::min(now + options_.recover_timeout, wait_limit_));
  stalled_.last = SteadyNow();
  // A rebuild that takes longer than an epoch's start is not a standstill.
  const absl::Duration beyond = stalled_.last - now - options_.recover_timeout;
  if (beyond > absl::ZeroDuration()) stalled_.since += beyond;
  return next;
}

bool RankClient::LaterEpochRuns(bool* unknown) const {
  const auto job = GetJob(Coordinator(), options_.job_id, SteadyNow() + kMissingTimeout);
  *unknown = !job.ok();
  // An epoch that this rank has not seen fail.
  return job.ok() && job->state() == v1::JOB_STATE_RUNNING && job->epoch() > epoch_ &&
         page()->failed_epoch.load(std::memory_order_acquire) < job->epoch();
}

absl::Status RankClient::WhyTheJobEnded() const {
  const auto job = GetJob(Coordinator(), options_.job_id, SteadyNow() + kMissingTimeout);
  if (job.ok() && job->state() == v1::JOB_STATE_LOST) return LostError(*job);
  return absl::CancelledError(LoadText(page()->failure_message, kMaxErrorBytes));
}

absl::Status RankClient::AwaitNewEpoch(absl::Time deadline) {
  const auto check_lease = [this] { return CheckLease([] { return std::string("a new epoch"); }); };
  // For ranks that are rebuilt from others, whose memory may be large.
  const absl::Time longest = std::min(SteadyNow() + kLongestRebuild, wait_limit_);
  bool asked_in_vain = false;
  // A deleted job closes the lease too, and its own error below says more.
  if (page()->failure_code != static_cast<int>(absl::StatusCode::kCancelled))
    RETURN_IF_ERROR(check_lease());
  while (page()->epoch.load(std::memory_order_acquire) <= epoch_ ||
         page()->failed_epoch.load() >= page()->epoch.load()) {
    // Before the conditions, so that an event in between ends the wait.
    const uint32_t seen = page()->events.value.load(std::memory_order_acquire);
    if (page()->failed_epoch.load(std::memory_order_acquire) != 0 &&
        page()->failure_code == static_cast<int>(absl::StatusCode::kCancelled)) {
      return WhyTheJobEnded();
    }
    RETURN_IF_ERROR(check_lease());
    if (needs_own_executor_ && !executor_->running()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", options_.rank, ": its executor in this process has ended, and its worker can ",
          "run none: attach again: ", executor_->status().ToString()));
    }
    if (SteadyNow() >= deadline && SteadyNow() < longest) {
      bool unknown = false;
      const bool runs = LaterEpochRuns(&unknown);
      // Of a coordinator that is away, once.
      if (runs || (unknown && !std::exchange(asked_in_vain, true)))
        deadline = std::min(longest, SteadyNow() + options_.recover_timeout);
    }
    if (SteadyNow() >= deadline) {
      return NameMissing(absl::DeadlineExceededError(
          absl::StrCat("no new epoch after epoch ", epoch_, " of job '", options_.job_id,
                       "' failed: ", LoadText(page()->failure_message, kMaxErrorBytes))));
    }
    // In short waits: the lease and an executor in this process may end without an event.
    WaitForChange(&page()->events, seen, SteadyNow() + absl::Milliseconds(100));
  }
  RETURN_IF_ERROR(check_lease());
  // Earlier kernels of this trainer may still read units whose slots are filled again.
  if (memory_.parameters.plan.num_slots() > 0) RETURN_IF_ERROR(memory_.device->Synchronize());
  // Not the one after epoch_: epochs may have been skipped.
  epoch_ = page()->epoch.load();
  BeginEpoch();
  if (buffer_hooks_ != nullptr && buffer_hooks_->take != nullptr) buffer_hooks_->take();
  return absl::OkStatus();
}

}  // namespace tessera
