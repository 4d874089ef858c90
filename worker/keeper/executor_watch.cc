// Executors in the processes of trainers: how they come, how they are read, and how they end.
//
//   attach ──► the epoch ends, the executor that is there too ──► the supervisor takes the
//   trainer's socket     worker: shuts its half ──► executor reads the end, finishes, closes its
//   end
//
// No signal goes to a trainer; the worker waits instead: as long as the socket is open a stopped
// executor may wake up and write, so the rank gets no other one.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/keeper/executor_event.h"
#include "worker/keeper/hosted_job.h"
#include "worker/memory/fd_passing.h"

namespace tessera {
namespace {

// Between two looks at an executor that says nothing.
constexpr absl::Duration kLook = absl::Milliseconds(500);
// How long the end of a job waits for one; its memory is nobody's then.
constexpr absl::Duration kClosingWait = absl::Seconds(2);

}  // namespace

void HostedJob::TakeOfferLocked(HostedRank& slot, Rank rank, UniqueFd socket, int pid,
                                v1::AttachResponse* response) {
  slot.offer = std::make_unique<HostOffer>();
  slot.offer->socket = std::move(socket);
  slot.offer->pid = pid;
  slot.offer->attachment = slot.attachment;
  TESSERA_LOG(INFO, "job {} rank {}: its trainer, process {}, hosts its executor", job_id_,
              rank.value(), pid);
  FailLocked(rank, absl::StrCat("the trainer of rank ", rank.value(),
                                " hosts the rank's executor from now on"));
  // One that is being prepared waits for the new executor.
  response->set_epoch(epoch_.value() - (phase_ == EpochPhase::kPreparing ? 1 : 0));
  EndExecutorLocked(slot);
  response->set_only_host(needs_hosts());
}

bool HostedJob::HasHostsLocked() const {
  return needs_hosts() || std::any_of(ranks_.begin(), ranks_.end(), [](const HostedRank& slot) {
           return slot.offer != nullptr || slot.host != Incarnation();
         });
}

std::string HostedJob::WhyItNeedsHostLocked(Rank rank) const {
  std::string worker;
  for (const v1::RankPlacement& placement : job_.placements()) {
    if (placement.rank() == rank.value()) worker = placement.worker_id();
  }
  return absl::StrCat(
      "rank ", rank.value(), " of job '", job_id_,
      "' needs a trainer that has its executor in its process ",
      "(SessionOptions::host_executor): on worker '", worker,
      "' no process can map another's memory of the GPU: ", regions_.why_not_shared());
}

void HostedJob::AwaitOffer(Rank rank) {
  absl::MutexLock lock(&mu_);
  const HostedRank& slot = SlotOf(rank);
  const auto is_over = [this, &slot]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closing_ || slot.offer != nullptr;
  };
  const absl::Duration look = std::min(kLook, answer_timeout_);
  while (!AwaitWithTimeout(&mu_, absl::Condition(&is_over), look)) {
    if (phase_ == EpochPhase::kPreparing && SteadyNow() - preparing_since_ >= answer_timeout_)
      FailLocked(rank, WhyItNeedsHostLocked(rank), EpochEvent::kGiveUp);
  }
}

void HostedJob::EndExecutorLocked(HostedRank& slot) {
  if (slot.executor == nullptr) return;
  slot.ending = true;
  shutdown(slot.socket.get(), slot.host == Incarnation() ? SHUT_RDWR : SHUT_WR);
  slot.executor->Kill();
}

bool HostedJob::AwaitHosted(Rank rank, int socket) {
  const absl::Time begin = SteadyNow();
  while (true) {
    pollfd readable = {socket, POLLIN, 0};
    const absl::Duration look = std::min(kLook, answer_timeout_);
    const int ready = poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(look)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    absl::MutexLock lock(&mu_);
    const absl::Time now = SteadyNow();
    if (closing_ && now - begin >= std::min(kClosingWait, answer_timeout_)) return false;
    const HostedRank& slot = SlotOf(rank);
    const bool is_awaited =
        phase_ == EpochPhase::kPreparing && (!slot.ready || !slot.quiet || slot.ending);
    if (!is_awaited || now - std::max(preparing_since_, slot.launched_at) < answer_timeout_)
      continue;
    FailLocked(rank,
               absl::StrCat("the executor of rank ", rank.value(), ", ", slot.executor->Wait(),
                            ", did not answer within ", absl::FormatDuration(answer_timeout_)),
               EpochEvent::kGiveUp);
  }
}

void HostedJob::ReadHostedEvents(Rank rank, int socket) {
  bool heeds = true;
  while (AwaitHosted(rank, socket)) {
    const absl::StatusOr<Packet> packet = ReceivePacket(socket);
    if (!packet.ok() && !absl::IsInvalidArgument(packet.status())) return;
    const absl::StatusOr<v1::ExecutorEvent> event =
        packet.ok() ? ParseExecutorEvent(packet->bytes) : packet.status();
    if (heeds && event.ok()) {
      OnEvent(rank, *event);
    } else if (heeds) {
      TESSERA_LOG(ERROR, "job {} rank {}: its executor: {}", job_id_, rank.value(),
                  event.status().ToString());
      heeds = false;  // No executor of ours: nothing that it says counts.
      absl::MutexLock lock(&mu_);
      EndExecutorLocked(SlotOf(rank));
    }
  }
}

}  // namespace tessera
