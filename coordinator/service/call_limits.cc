#include "coordinator/service/call_limits.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace tessera::coordinator {
namespace {

// How often a waiting call checks whether its caller is still there.
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
  // A client may always have kAlways, so more places may be taken than there are.
  const int num_free = std::max(max_calls_ - all_.calls[k], 0);
  if (has >= std::max(num_free, kAlways)) {
    return absl::UnavailableError(absl::StrCat(
        "'", client, "' has ", has, " ", Name(kind), " at the coordinator, and of the ", max_calls_,
        " of all clients (--max-calls) ", num_free,
        " are free, which is not more: end some of them, or call again later"));
  }
  // Checked and taken under one lock, so that calls that come together do not share a place.
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
  // Kept for as long as a request or a turn refers to it.
  std::weak_ptr<TurnsOfClient>& place = turns_[{client, what}];
  std::shared_ptr<TurnsOfClient> turns = place.lock();
  if (turns == nullptr)
    place = turns = std::make_shared<TurnsOfClient>(what == Of::kReading ? kReadsAtOnce : 1);
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
    // If it cannot be withdrawn any more, the turn is on its way.
    if (request.Withdraw())
      return is_gone ? absl::CancelledError("the caller is gone") : HasNoTurn(client, what);
  }
  return turn;
}

void CallLimits::LetMoreIn(absl::Time now) {
  std::vector<std::shared_ptr<TurnsOfClient>> all;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = turns_.begin(); it != turns_.end();) {
      std::shared_ptr<TurnsOfClient> turns = it->second.lock();
      if (turns == nullptr) {
        it = turns_.erase(it);
        continue;
      }
      all.push_back(std::move(turns));
      ++it;
    }
  }
  // Without the lock, because Give calls the receivers.
  for (const std::shared_ptr<TurnsOfClient>& turns : all) TurnRequest::Give(turns, now);
}

void CallLimits::TurnRequest::Give(const std::shared_ptr<TurnsOfClient>& turns, absl::Time now) {
  std::function<void(Turn)> on_turn;
  {
    absl::MutexLock lock(&turns->mu);
    const bool may_have_one = turns->num_taken == 0 || (turns->num_taken < turns->max_taken &&
                                                        now - turns->newest_at >= kBetweenReads);
    if (turns->waiting.empty() || !may_have_one) return;
    // Off the list under the lock: from here on Withdraw fails, and the receiver is called.
    on_turn = std::move(turns->waiting.front()->on_turn_);
    turns->waiting.pop_front();
    ++turns->num_taken;
    turns->newest_at = now;
  }
  // A turn that is given back passes to the next request.
  on_turn(Turn(turns.get(), [turns](void*) {
    {
      absl::MutexLock lock(&turns->mu);
      --turns->num_taken;
    }
    Give(turns, SteadyNow());
  }));
}

void CallLimits::TurnRequest::Ask() {
  const std::shared_ptr<TurnsOfClient> turns = turns_;  // This may be gone once it has its turn.
  {
    absl::MutexLock lock(&turns->mu);
    turns->waiting.push_back(this);
  }
  Give(turns, SteadyNow());
}

bool CallLimits::TurnRequest::Withdraw() {
  absl::MutexLock lock(&turns_->mu);
  const auto place = std::find(turns_->waiting.begin(), turns_->waiting.end(), this);
  if (place == turns_->waiting.end()) return false;
  // From here on Give cannot find the request, so its receiver is never called.
  turns_->waiting.erase(place);
  return true;
}

}  // namespace tessera::coordinator
