#include "coordinator/core/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/same_secret.h"
#include "base/status_macros.h"

namespace tessera::coordinator {
namespace {

// Lives of one worker that have not begun.
constexpr size_t kMaxArrivals = 8;
constexpr char kIsBack[] = "heard of again, with the memory that it had";

void NoteEvent(EventKind kind, const WorkerId& worker, std::string text, Effects* effects) {
  ClusterEvent event;
  event.kind = kind;
  event.severity = SeverityOf(kind);
  event.worker = worker;
  event.text = std::move(text);
  effects->events.push_back(std::move(event));
}

}  // namespace

Membership::Membership(CoordinatorState* state, EpochProtocol* epochs)
    : state_(state), epochs_(epochs), liveness_(state->options.worker_timeout) {}

absl::Status Membership::RegisterWorker(const WorkerId& worker, const Member& member,
                                        absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(state_->members().CheckRegister(worker, member));
  const Member* known = state_->members().Find(worker);
  if (known == nullptr &&
      static_cast<int64_t>(state_->members().members().size()) >= state_->options.max_workers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", state_->options.max_workers, " workers already"));
  }
  // Nothing is journalled yet, because the new life may never open a stream.
  if (known != nullptr && known->incarnation < member.incarnation) {
    RETURN_IF_ERROR(CheckMayFollow(worker));
    RETURN_IF_ERROR(CheckKey(worker, member.incarnation, member.key));
    std::map<Incarnation, Member>& arrivals = arrivals_[worker];
    // Lives up to the current one cannot begin any more.
    arrivals.erase(arrivals.begin(), arrivals.upper_bound(known->incarnation));
    arrivals[member.incarnation] = member;
    // Each new key adds a life, so a worker that keeps restarting would add them without end.
    if (arrivals.size() > kMaxArrivals) arrivals.erase(arrivals.begin());
    return absl::OkStatus();
  }
  // Not for an arrival: its registration says nothing about the life that is current.
  liveness_.Heard(worker, now);
  // A worker that repeats its registration costs no write to the journal.
  if (known != nullptr && known->address == member.address &&
      known->data_host == member.data_host && known->max_ranks_of_job == member.max_ranks_of_job &&
      known->device == member.device && known->memory_bytes == member.memory_bytes &&
      !known->lost) {
    return absl::OkStatus();
  }
  BeginLife(worker, member, now, effects);
  return absl::OkStatus();
}

absl::Status Membership::CheckMayFollow(const WorkerId& worker) const {
  const Member& known = *state_->members().Find(worker);
  if (known.lost || away_.count(worker) > 0) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "worker '", worker.value(), "', incarnation ", known.incarnation.value(),
      ", is connected; another process of its name counts as its restart only once its connection "
      "has ended or it was silent for ",
      absl::FormatDuration(state_->options.worker_timeout)));
}

const Member* Membership::FindArrival(const WorkerId& worker, Incarnation incarnation) const {
  const Member* known = state_->members().Find(worker);
  const auto arrivals = arrivals_.find(worker);
  if (known == nullptr || arrivals == arrivals_.end() || incarnation <= known->incarnation)
    return nullptr;
  const auto arrival = arrivals->second.find(incarnation);
  return arrival == arrivals->second.end() ? nullptr : &arrival->second;
}

Incarnation Membership::IncarnationOf(const WorkerId& worker, const std::string& key) const {
  const Incarnation next = state_->members().IncarnationOf(worker, key);
  const Member* known = state_->members().Find(worker);
  const auto arrivals = arrivals_.find(worker);
  if (known == nullptr || known->incarnation == next || arrivals == arrivals_.end()) return next;
  Incarnation last = known->incarnation;
  for (const auto& [incarnation, member] : arrivals->second) {
    // A repeated registration gets the incarnation that its key got before.
    if (incarnation > known->incarnation && IsSameSecret(member.key, key)) return incarnation;
    last = std::max(last, incarnation);
  }
  return Incarnation(last.value() + 1);
}

absl::Status Membership::CheckKey(const WorkerId& worker, Incarnation incarnation,
                                  const std::string& key) const {
  // A life that has not begun is not in the registry, and has its key here.
  const Member* arrival = FindArrival(worker, incarnation);
  if (arrival == nullptr || IsSameSecret(arrival->key, key))
    return state_->members().CheckKey(worker, incarnation, key);
  return absl::PermissionDeniedError(
      absl::StrCat("worker '", worker.value(), "', incarnation ", incarnation.value(),
                   ": this is another process than the one that registered"));
}

void Membership::BeginLife(const WorkerId& worker, Member member, absl::Time now,
                           Effects* effects) {
  const Member* known = state_->members().Find(worker);
  if (known == nullptr || known->incarnation < member.incarnation) {
    NoteEvent(EventKind::kWorkerJoined, worker,
              absl::StrCat("registered with ", member.num_devices,
                           member.num_devices == 1 ? " device" : " devices", " (incarnation ",
                           member.incarnation.value(), ")"),
              effects);
  } else if (known->lost) {
    NoteEvent(EventKind::kWorkerReturned, worker, kIsBack, effects);
  }
  away_.insert(worker);
  state_->orphans.Forget(worker);  // They belong to an earlier life.
  state_->Put(MemberRecord{worker, std::move(member)}, effects);
  epochs_->AdvanceAll(now, effects);
}

absl::Status Membership::Hear(const Sender& sender, absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(state_->members().CheckCurrent(sender.worker, sender.incarnation));
  liveness_.Heard(sender.worker, now);
  const Member* member = state_->members().Find(sender.worker);
  if (!member->lost) return absl::OkStatus();
  // The incarnation is the same, so the worker was only silent and still has its memory.
  Member back = *member;
  back.lost = false;
  NoteEvent(EventKind::kWorkerReturned, sender.worker, kIsBack, effects);
  state_->Put(MemberRecord{sender.worker, std::move(back)}, effects);
  epochs_->AdvanceAll(now, effects);
  return absl::OkStatus();
}

absl::Status Membership::Connect(const Sender& sender, absl::Time now, Effects* effects) {
  if (const Member* arrival = FindArrival(sender.worker, sender.incarnation)) {
    RETURN_IF_ERROR(CheckMayFollow(sender.worker));
    BeginLife(sender.worker, *arrival, now, effects);
  }
  RETURN_IF_ERROR(Hear(sender, now, effects));
  // After BeginLife, which marks the worker as away.
  away_.erase(sender.worker);
  return absl::OkStatus();
}

void Membership::HeardAll(absl::Time now) {
  for (const auto& [worker, member] : state_->members().members()) liveness_.Heard(worker, now);
}

void Membership::DeclareLost(absl::Time now, Effects* effects) {
  for (const WorkerId& worker : liveness_.Silent(now)) {
    const Member* member = state_->members().Find(worker);
    if (member == nullptr) {
      // It is no member any more, and ForgetLostMembers leaves this to the next look.
      liveness_.Forget(worker);
    } else if (!member->lost) {
      Member lost = *member;
      lost.lost = true;
      // Nothing can be taken over from a lost worker. If it returns, it lists its jobs again.
      state_->orphans.Forget(worker);
      NoteEvent(
          EventKind::kWorkerLost, worker,
          absl::StrCat("not heard of for ", absl::FormatDuration(state_->options.worker_timeout)),
          effects);
      state_->Put(MemberRecord{worker, std::move(lost)}, effects);
    }
  }
}

void Membership::ForgetLostMembers(Effects* effects) {
  for (WorkerId& worker : state_->durable().ForgettableMembers()) {
    away_.erase(worker);
    state_->Put(MemberGoneRecord{std::move(worker)}, effects);
  }
}

}  // namespace tessera::coordinator
