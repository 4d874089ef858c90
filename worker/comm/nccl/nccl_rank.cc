#include "worker/comm/nccl/nccl_rank.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// The library is asked this often while the device is waited for: an error of another rank is seen
// so much later at most.
constexpr absl::Duration kAskLibraryEvery = absl::Milliseconds(1);

}  // namespace

NcclRank::NcclRank(const Options& options, std::unique_ptr<CudaStream> stream,
                   std::unique_ptr<CudaEvent> event)
    : options_(options),
      event_(std::move(event)),
      stream_(std::move(stream)),
      ranks_of_device_(options.thread->ranks()) {}

absl::Status NcclRank::Call(std::function<absl::Status(NcclRank*)> work, bool aborts) {
  // The work shares this object: it may still run when Call has given up on it.
  const absl::Status status = options_.thread->Run(
      [self = shared_from_this(), work = std::move(work), aborts]() -> absl::Status {
        // An abort has to reach the library even where the context is broken.
        // Contexts are current by thread, and this one serves all communicators of the device.
        const absl::Status usable = self->stream_->context()->Use();
        if (!usable.ok() && !aborts) return usable;
        return work(self.get());
      },
      options_.call_timeout);
  // Whichever communicator's call it was: they share the thread, and none can call any more.
  if (options_.thread->stuck()) phase_ = Next(phase_, NcclEvent::kAbortHung).next;
  return status;
}

absl::Status NcclRank::ToStatus(absl::string_view call, NcclResult result) const {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return absl::OkStatus();
  std::string text = absl::StrCat(call, ": rank ", options_.rank, ": ", NcclName(result));
  const std::string said = comm_ == nullptr ? "" : options_.api->GetLastError(comm_);
  if (!said.empty()) absl::StrAppend(&text, ": ", said);
  // These come from another rank or the network, and may be gone in the next epoch.
  const bool others = result == NcclResult::kRemoteError || result == NcclResult::kSystemError;
  return others ? absl::UnavailableError(text) : absl::InternalError(text);
}

absl::StatusOr<bool> NcclRank::LibraryIsDone(const std::string& call) {
  // Shared: a call that was given up on may write it after this frame is gone.
  auto state = std::make_shared<NcclResult>(NcclResult::kSuccess);
  RETURN_IF_ERROR(Call([call, state](NcclRank* self) -> absl::Status {
    RETURN_IF_ERROR(self->CheckOpen());
    RETURN_IF_ERROR(
        self->ToStatus(call, self->options_.api->CommGetAsyncError(self->comm_, state.get())));
    return self->ToStatus(call, *state);
  }));
  return *state == NcclResult::kSuccess;
}

absl::Status NcclRank::Poll(const std::string& call,
                            absl::FunctionRef<absl::StatusOr<bool>()> done) {
  const absl::Time deadline = SteadyNow() + options_.timeout;
  for (int polls = 0;; ++polls) {
    ASSIGN_OR_RETURN(const bool is_done, done());
    // What was aborted is reached too, with whatever it left in memory.
    RETURN_IF_ERROR(ended_along());
    if (is_done) return absl::OkStatus();
    // Work that is done wins over an end that came with it: the next call sees the end.
    if (options_.aborted()) return absl::AbortedError(absl::StrCat(call, ": the epoch was ended"));
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          call, ": rank ", options_.rank, " waited ", absl::FormatDuration(options_.timeout),
          " for NCCL among ", options_.size, " ranks, which had all arrived"));
    }
    // Frequent at first, for short waits; then rare enough to leave the CPU to others.
    if (polls < 50) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(absl::Microseconds(50));
    }
  }
}

absl::Status NcclRank::Join(const NcclUniqueId& id) {
  const std::string call = "ncclCommInitRankConfig";
  RETURN_IF_ERROR(Call([call, id](NcclRank* self) -> absl::Status {
    const Options& options = self->options_;
    RETURN_IF_ERROR(self->ToStatus(
        call, options.api->CommInitRankConfig(&self->comm_, options.size, id, options.rank)));
    if (self->comm_ == nullptr)
      return absl::InternalError("ncclCommInitRankConfig created no communicator");
    // Weak: the list must not keep a communicator that its owner has closed.
    self->ranks_of_device_->push_back(self->weak_from_this());
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(Poll(call, [this, &call] { return LibraryIsDone(call); }));
  return Apply(NcclEvent::kJoined, absl::OkStatus());
}

absl::Status NcclRank::Register(std::vector<Region> regions) {
  RETURN_IF_ERROR(Call([regions = std::move(regions)](NcclRank* self) {
    absl::Status status = self->RegisterNow(regions);
    if (!status.ok()) self->DeregisterNow().IgnoreError();  // The first error is the one to tell.
    return status;
  }));
  const std::string call = "ncclCommRegister";
  const absl::Status done = Poll(call, [this, &call] { return LibraryIsDone(call); });
  if (!done.ok()) Deregister().IgnoreError();  // As above.
  return done;
}

absl::Status NcclRank::Deregister() {
  return Call([](NcclRank* self) { return self->DeregisterNow(); });
}

absl::Status NcclRank::RegisterNow(const std::vector<Region>& regions) {
  const std::string call = "ncclCommRegister";
  RETURN_IF_ERROR(CheckOpen());
  if (!options_.api->registers())
    return absl::FailedPreconditionError(absl::StrCat("this library has no ", call));
  for (const Region& region : regions) {
    void* handle = nullptr;
    RETURN_IF_ERROR(
        ToStatus(call, options_.api->CommRegister(comm_, region.data, region.size_bytes, &handle)));
    if (handle == nullptr)
      return absl::FailedPreconditionError("memory registration is turned off in this library");
    registered_.push_back(handle);
  }
  return absl::OkStatus();
}

absl::Status NcclRank::DeregisterNow() {
  absl::Status first;
  for (void* handle : std::exchange(registered_, {})) {
    if (comm_ == nullptr) break;  // They went with it.
    first.Update(ToStatus("ncclCommDeregister", options_.api->CommDeregister(comm_, handle)));
  }
  return first;
}

absl::Status NcclRank::Issue(const std::string& call, Group group) {
  auto ended = std::make_shared<NcclResult>(NcclResult::kSuccess);
  RETURN_IF_ERROR(Call([call, ended, group = std::move(group)](NcclRank* self) -> absl::Status {
    NcclApi* api = self->options_.api;
    RETURN_IF_ERROR(self->CheckOpen());
    RETURN_IF_ERROR(self->ToStatus("ncclGroupStart", api->GroupStart()));
    // The group is ended whatever happened within, or the next one would be inside of it.
    const NcclResult issued = group(self->comm_, self->stream_->handle());
    *ended = api->GroupEnd();
    // What was issued tells more than how the group ended.
    RETURN_IF_ERROR(self->ToStatus(call, issued));
    return self->ToStatus(call, *ended);
  }));
  if (*ended == NcclResult::kSuccess) return absl::OkStatus();
  return Poll(call, [this, &call] { return LibraryIsDone(call); });
}

absl::Status NcclRank::Await(const std::string& call) {
  stream_->Record(event_.get());
  // The library can fail without the stream noticing, but each question costs a trip to its thread.
  absl::Time ask_library = SteadyNow() + kAskLibraryEvery;
  return Poll(call, [&]() -> absl::StatusOr<bool> {
    // Query first: an event of a broken device counts as reached, and the status then says why.
    const bool reached = event_->Query();
    RETURN_IF_ERROR(Annotate(stream_->context()->status(), call));
    if (reached || SteadyNow() < ask_library) return reached;
    ask_library = SteadyNow() + kAskLibraryEvery;
    RETURN_IF_ERROR(LibraryIsDone(call).status());
    return false;
  });
}

absl::Status NcclRank::End(const absl::Status& reason) {
  const bool was_open = phase_ != NcclPhase::kAborted && phase_ != NcclPhase::kStuck;
  absl::Status status = Apply(NcclEvent::kAbort, reason);
  // Kernels that were enqueued before the abort may still write into the caller's memory.
  if (was_open && phase_ != NcclPhase::kStuck) status.Update(Drain());
  return status;
}

absl::Status NcclRank::Drain() {
  stream_->Record(event_.get());
  // Aborted kernels end by themselves. If they do not, only the end of the process ends them.
  const absl::Time deadline = SteadyNow() + options_.call_timeout;
  while (!event_->Query()) {  // An event of a broken device counts as reached.
    if (SteadyNow() > deadline) {
      phase_ = Next(phase_, NcclEvent::kAbortHung).next;
      return absl::DeadlineExceededError(absl::StrCat("the stream of NCCL did not end within ",
                                                      absl::FormatDuration(options_.call_timeout),
                                                      " of the abort"));
    }
    absl::SleepFor(absl::Microseconds(50));
  }
  return absl::OkStatus();
}

absl::Status NcclRank::Apply(NcclEvent event, const absl::Status& reason) {
  const NcclStep step = Next(phase_, event);
  phase_ = step.next;
  if (step.call == NcclCall::kAbort) {
    return Call([reason](NcclRank* self) { return self->AbortNow(reason); }, /*aborts=*/true);
  }
  if (step.call != NcclCall::kRevoke) return absl::OkStatus();
  auto revoked = std::make_shared<bool>(true);
  const absl::Status status = Call(
      [revoked, reason](NcclRank* self) {
        if (self->comm_ == nullptr) return absl::OkStatus();  // Aborted with another one.
        const NcclResult result = self->options_.api->CommRevoke(self->comm_);
        if (result != NcclResult::kInvalidUsage) return self->ToStatus("ncclCommRevoke", result);
        *revoked = false;  // A library that cannot. Aborting ends it as well.
        return self->AbortNow(reason);
      },
      /*aborts=*/true);
  if (!*revoked) phase_ = Next(phase_, NcclEvent::kAbort).next;
  return status;
}

absl::Status NcclRank::CheckOpen() const {
  if (comm_ != nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(ended_along());
  return absl::InternalError("a communicator that was aborted");
}

void NcclRank::EndAlong(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  ended_along_ = Annotate(reason, "NCCL was aborted with another communicator of the device");
}

absl::Status NcclRank::AbortNow(const absl::Status& reason) {
  if (comm_ == nullptr) return absl::OkStatus();
  // Only the NCCL thread uses this list and `comm_`, so neither has a lock.
  std::vector<std::shared_ptr<NcclRank>> others;
  NcclRanks left;
  for (const std::weak_ptr<NcclRank>& weak : *ranks_of_device_) {
    std::shared_ptr<NcclRank> rank = weak.lock();
    if (rank == nullptr || rank.get() == this || rank->comm_ == nullptr) continue;
    // An ordinary close leaves the device's other communicators alone.
    if (reason.ok()) {
      left.push_back(weak);
    } else {
      others.push_back(std::move(rank));
    }
  }
  *ranks_of_device_ = std::move(left);
  // Before anything of theirs is reached because of the abort.
  for (const std::shared_ptr<NcclRank>& other : others) other->EndAlong(reason);
  int version = 0;
  options_.api->GetVersion(&version);
  // One after the other, the first abort could wait for kernels of the second.
  const bool in_group = !others.empty() && version >= kNcclGroupAbort;
  absl::Status status;
  if (in_group) status.Update(ToStatus("ncclGroupStart", options_.api->GroupStart()));
  const auto abort = [&](NcclRank* rank) {
    rank->registered_.clear();  // What is left the library frees with the rest.
    NcclComm* comm = std::exchange(rank->comm_, nullptr);  // Freed, whatever the call returns.
    status.Update(rank->ToStatus("ncclCommAbort", options_.api->CommAbort(comm)));
  };
  abort(this);
  for (const std::shared_ptr<NcclRank>& other : others) abort(other.get());
  if (in_group) status.Update(ToStatus("ncclGroupEnd", options_.api->GroupEnd()));
  return status;
}

}  // namespace tessera
