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

std::shared_ptr<CallLimits::TurnsOfClient> CallLimits::TurnsOf(const std::string& client, Of what) {
  absl::MutexLock lock(&mu_);
  std::weak_ptr<TurnsOfClient>& place = turns_[{client, what}];
  std::shared_ptr<TurnsOfClient> turns = place.lock();
  if (turns == nullptr) place = turns = std::make_shared<TurnsOfClient>();
  return turns;
}

absl::Status CallLimits::HasNoTurn(const std::string& client, Of what) {
  const bool reads = what == Of::kReading;
  const absl::string_view does = reads                   ? "send requests all the time"
                                 : what == Of::kReplying ? "takes a long reply all the time"
                                                         : "has sent a long request all the time";
  return absl::UnavailableError(absl::StrCat(reads ? "other calls of '" : "another call of '",
                                             client, "' ", does, ", and of each client ",
                                             reads ? kReadsAtOnce : 1, reads ? " do" : " does",
                                             " at a time: end some, or call again later"));
}

absl::StatusOr<CallLimits::Turn> CallLimits::TakeTurn(const std::string& client, Of what,
                                                      absl::Time deadline,
                                                      absl::FunctionRef<bool()> cancelled) {
  Turn turn;
  SteadyNotification has_turn;
  TurnRequest request(this, client, what, [&](Turn given) {
    turn = std::move(given);
    has_turn.Notify();
  });
  request.Ask();
  while (!has_turn.WaitWithTimeout(std::min(deadline - SteadyNow(), kCancelPoll))) {
    const bool is_gone = cancelled();
    if (!is_gone && SteadyNow() < deadline) continue;
    // Where it cannot be withdrawn any more, it comes.
    if (request.Withdraw())
      return is_gone ? absl::CancelledError("the caller is gone") : HasNoTurn(client, what);
  }
  return turn;
}

CallLimits::Turn CallLimits::TurnRequest::MakeTurn(const std::shared_ptr<TurnsOfClient>& turns) {
  return Turn(turns.get(), [turns](void*) { GiveBack(turns); });
}

void CallLimits::TurnRequest::GiveBack(const std::shared_ptr<TurnsOfClient>& turns) {
  std::function<void(Turn)> next;
  {
    absl::MutexLock lock(&turns->mu);
    if (turns->waiting.empty()) {
      --turns->num_taken;
      return;
    }
    next = std::move(turns->waiting.front()->on_turn_);
    turns->waiting.pop_front();
  }
  next(MakeTurn(turns));
}

void CallLimits::TurnRequest::Ask() {
  std::function<void(Turn)> on_turn;
  {
    absl::MutexLock lock(&turns_->mu);
    if (turns_->num_taken == max_taken_) {
      turns_->waiting.push_back(this);
      return;
    }
    ++turns_->num_taken;
    on_turn = std::move(on_turn_);
  }
  on_turn(MakeTurn(turns_));
}

bool CallLimits::TurnRequest::Withdraw() {
  absl::MutexLock lock(&turns_->mu);
  const auto place = std::find(turns_->waiting.begin(), turns_->waiting.end(), this);
  if (place == turns_->waiting.end()) return false;
  turns_->waiting.erase(place);
  return true;
}

}  // namespace tessera::coordinator
