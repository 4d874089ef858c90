// The trainers of a hosted job's ranks: which rank has one, the tickets (attachments) that tell one
// from the next, and the executors that trainers offer to host.
//
//   kFree ── Attach ──► kAttached ── Detach ──► kFree
//     the trainer offers an executor ──► TakeOffer, by the rank's supervisor
//
// While the trainer that an earlier daemon had may still come back, its rank is kept for it.
// Thread-compatible; guarded by the job's lock.
#ifndef TESSERA_WORKER_KEEPER_ATTACH_TABLE_H_
#define TESSERA_WORKER_KEEPER_ATTACH_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "proto/coordinator.pb.h"
#include "proto/local.pb.h"
#include "shm/control_page.h"
#include "shm/fd_passing.h"
#include "worker/keeper/epoch_machine.h"
#include "worker/keeper/executor_slot.h"
#include "worker/keeper/job_context.h"

namespace tessera {

// Whether the rank has begun a step, or will once its executor takes what was submitted: a trainer
// may leave, and the next one attach, before that.
bool HasBegunStep(const ControlPage& page);

enum class AttachState { kFree, kAttached };
// How a trainer left. kLeft: in an orderly way, but the job is not done: the daemon stops, or the
// trainer left a step that it had begun.
enum class Leaving { kDied, kLeft, kDone };
// What a trainer has of its rank from now on.
struct GivenRank {
  v1::AttachResponse response;
  std::vector<UniqueFd> fds;  // As JobRegions::TrainerFds; of a trainer that hosts the rank's
                              // executor, its end of that one's socket at last.
};
// An executor in the process of a trainer: the worker's end of its socket.
struct HostOffer {
  UniqueFd socket;
  int pid = 0;
  Incarnation attachment;
};

// Whether this trainer may have the rank, regardless of who is attached. Needs no lock.
// `attach_key`: the job's; only trainers of other users need it. Errors: see AttachRequest.
absl::Status CheckTrainer(const JobContext& context, const std::string& attach_key,
                          const v1::AttachRequest& request, const PacketPeer& peer);

class AttachTable {
 public:
  // All three outlive it.
  AttachTable(const JobContext* context, EpochMachine* epochs, ExecutorSlots* executors);

  // The trainers that were attached when the previous daemon ended, by rank: descriptors of their
  // processes.
  void KeepFor(std::map<int, UniqueFd> former_trainers);
  // Binds the rank to a trainer that CheckTrainer accepts; see AttachRequest for the errors. If the
  // previous trainer left in the middle of a step, this ends the epoch, so that all ranks start
  // that step again; so does a trainer that hosts the rank's executor.
  absl::StatusOr<GivenRank> Attach(v1::AttachRequest request, const PacketPeer& peer,
                                   absl::Time now);
  void Detach(Rank rank, Incarnation attachment, Leaving how);
  // Numbers of the trainer of this attachment, which CheckReportedName accepts.
  void Report(Rank rank, Incarnation attachment, const v1::Report& report);

  // What coordinators and clients are told: RankStatus's attached, finished_attachment, reported.
  void Describe(Rank rank, v1::RankStatus* status) const;

  int64_t num_deaths(Rank rank) const { return Of(rank).num_deaths; }  // Of trainers.
  bool IsAttached(Rank rank) const { return Of(rank).state == AttachState::kAttached; }
  // By this attachment, which hosts or hosted the rank's executor.
  bool HostIsAttached(Rank rank, Incarnation host) const {
    return IsAttached(rank) && Of(rank).attachment == host;
  }
  // An executor that a trainer hosts, for the next launch.
  bool HasOffer(Rank rank) const { return Of(rank).offer != nullptr; }
  std::unique_ptr<HostOffer> TakeOffer(Rank rank) { return std::move(Of(rank).offer); }
  // Why the rank's trainer must host its executor, for people.
  std::string WhyItNeedsHost(Rank rank) const;

 private:
  struct Entry {
    std::unique_ptr<HostOffer> offer;  // For the next launch.
    AttachState state = AttachState::kFree;
    Incarnation attachment;
    Incarnation finished;  // The last attachment, if its trainer said that it is done.
    v1::Report reported;
    int64_t num_deaths = 0;
    // The trainer attached when the previous daemon ended, until it attaches again, ends, or is
    // late.
    Incarnation former;
    UniqueFd former_process;
    absl::Time former_until;
  };
  Entry& Of(Rank rank) { return entries_[rank.value() - context_->local().first()]; }
  const Entry& Of(Rank rank) const { return entries_[rank.value() - context_->local().first()]; }
  // The request's, or the first that is free where it names none.
  absl::StatusOr<Rank> RankFor(const v1::AttachRequest& request, absl::Time now) const;
  absl::Status CheckIsFree(const Entry& entry, const v1::AttachRequest& request,
                           absl::Time now) const;
  // Whether the rank's page is that of the running epoch.
  bool IsInEpoch(Rank rank) const;
  // Whether the rank's executor is in a save between two steps, for which it needs no trainer.
  bool IsInSave(Rank rank) const;
  // Ends the epoch in which another trainer of the rank left something that only it could finish.
  void EndWhatWasLeft(const Entry& entry, const v1::AttachRequest& request);
  // `socket`: the worker's end. Ends the epoch.
  void Offer(Entry& entry, Rank rank, UniqueFd socket, int pid, v1::AttachResponse* response);
  // Whether some trainer hosts its executor, or is about to, or must.
  bool HasHosts() const;

  const JobContext* const context_;
  EpochMachine* const epochs_;
  ExecutorSlots* const executors_;
  int64_t next_attachment_ = 1;
  std::vector<Entry> entries_;  // Of this worker's ranks.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_ATTACH_TABLE_H_
