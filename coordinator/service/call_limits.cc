#include "coordinator/service/call_limits.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace tessera::coordinator {
namespace {

// How often a call that waits looks whether its caller is still there.
constexpr absl::Duration kCancelPoll = absl::Milliseconds(250);

absl::string_view Name(CallKind kind) {
  switch (kind) {
    case CallKind::kShort:
      return "calls";
    case CallKind::kWaiting:
      return "calls that wait";
    case CallKind::kOfWorker:
      return "calls of workers that have not said which they are";
  }
  return "";
}

}  // namespace

absl::StatusOr<CallLimits::Place> CallLimits::Enter(const std::string& client, CallKind kind) {
  const auto k = static_cast<size_t>(kind);
  absl::MutexLock lock(&mu_);
  const auto it = clients_.find(client);
  const int has = it == clients_.end() ? 0 : it->second.calls[k];
  const int num_free = std::max(max_calls_ - all_.calls[k], 0);
  if (has >= std::max(num_free, kAlways)) {
    return absl::UnavailableError(absl::StrCat(
        "'", client, "' has ", has, " ", Name(kind), " at the coordinator, and of the ", max_calls_,
        " of all clients (--max-calls) ", num_free,
        " are free, which is not more: end some of them, or call again later"));
  }
  ++clients_[client].calls[k];
  ++all_.calls[k];
  return Place(this, client, kind);
}

void CallLimits::Place::Leave() {
  CallLimits* const limits = std::exchange(limits_, nullptr);
  if (limits == nullptr) return;
  const auto k = static_cast<size_t>(kind_);
  absl::MutexLock lock(&limits->mu_);
  const auto it = limits->clients_.find(client_);
  for (Taken* taken : {&it->second, &limits->all_}) {
    --taken->calls[k];
    taken->held_bytes -= held_bytes_;
  }
  const auto& calls = it->second.calls;
  if (std::all_of(calls.begin(), calls.end(), [](int count) { return count == 0; }))
    limits->clients_.erase(it);
}

absl::Status CallLimits::Place::Hold(int64_t bytes) {
  if (limits_ == nullptr) return absl::OkStatus();
  absl::MutexLock lock(&limits_->mu_);
  const absl::Status status = limits_->HoldLocked(client_, bytes);
  if (status.ok()) held_bytes_ += bytes;
  return status;
}

absl::Status CallLimits::HoldLocked(const std::string& client, int64_t bytes) {
  Taken& taken = clients_[client];
  if (taken.held_bytes + bytes > kMaxHeldBytes - all_.held_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the requests of calls of '", client, "' that wait have ", taken.held_bytes,
                     " bytes, and ", bytes, " more are too many: end some of these calls"));
  }
  taken.held_bytes += bytes;
  all_.held_bytes += bytes;
  return absl::OkStatus();
}

absl::StatusOr<CallLimits::Turn> CallLimits::TakeTurn(const std::string& client, Of what,
                                                      absl::Time deadline,
                                                      absl::FunctionRef<bool()> cancelled) {
  std::shared_ptr<TurnOfClient> turn;
  {
    absl::MutexLock lock(&mu_);
    std::weak_ptr<TurnOfClient>& place = turns_[{client, what}];
    turn = place.lock();
    if (turn == nullptr) place = turn = std::make_shared<TurnOfClient>();
  }
  absl::MutexLock lock(&turn->mu);
  const int most = what == Of::kReading ? kReadsAtOnce : 1;
  const auto is_free = [&turn, most]()
                           ABSL_SHARED_LOCKS_REQUIRED(turn->mu) { return turn->num_taken < most; };
  while (!AwaitWithDeadline(&turn->mu, absl::Condition(&is_free),
                            std::min(deadline, SteadyNow() + kCancelPoll))) {
    if (cancelled()) return absl::CancelledError("the caller is gone");
    if (SteadyNow() < deadline) continue;
    return absl::UnavailableError(absl::StrCat(
        what == Of::kReading ? "other calls of '" : "another call of '", client, "' ",
        what == Of::kReading ? "send requests all the time" : "takes a long reply all the time",
        ", and of each client ", most, what == Of::kReading ? " do" : " does",
        " at a time: end some, or call again later"));
  }
  ++turn->num_taken;
  return Turn(turn.get(), [turn](void*) {
    absl::MutexLock give_back(&turn->mu);
    --turn->num_taken;
  });
}

}  // namespace tessera::coordinator
