// A rank's communicators in one epoch, one for each row of operations that runs concurrently with
// the others.
//
//   one worker       shared memory; sums on the rank's device
//   several workers  shared memory and sockets; data on GPUs goes directly between them if
//                    every rank can do that, else through host memory
//
// Thread-compatible; the communicators have their own contracts.
#ifndef TESSERA_WORKER_EXECUTOR_EPOCH_COMMUNICATORS_H_
#define TESSERA_WORKER_EXECUTOR_EPOCH_COMMUNICATORS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "proto/executor.pb.h"
#include "worker/comm/direct_communicators.h"
#include "worker/comm/hosts/hosts_communicator.h"
#include "worker/comm/shm/shm_communicator.h"
#include "worker/device/rank_kernels.h"
#include "worker/executor/epoch_meshes.h"
#include "worker/executor/executor_memory.h"

namespace tessera {

class EpochCommunicators {
 public:
  // `memory` outlives this. `make_direct` may be null.
  EpochCommunicators(const ExecutorMemory* memory, MakeDirectCommunicators make_direct)
      : memory_(memory), make_direct_(std::move(make_direct)) {}

  // Once, before all else. Errors: those of RankDevice::CreateKernels
  absl::Status Open();
  // Listens for the ranks of other workers, for `epoch`; where they reach this one.
  // Errors: as EpochMeshes::Listen
  absl::StatusOr<std::string> Listen(Epoch epoch);
  // Collective. Errors: as ShmCommunicator::Create, EpochMeshes::Connect, DirectCommunicators::Join
  absl::Status Join(Epoch epoch, const v1::ExecutorStart& start);
  void Leave();
  // Between Join and Leave, where there are several workers: see HostsCommunicator::ExchangeWith.
  // By another user of files(), while nobody else uses it.
  absl::Status ExchangeWith(int rank, absl::Span<const PeerMesh::Part> sends,
                            absl::Span<const PeerMesh::Part> receives);
  // As DirectCommunicators::status. After Open, from any thread.
  absl::Status status() const { return direct_ == nullptr ? absl::OkStatus() : direct_->status(); }

  // Null before Join and after Leave; the latter two where there is one worker, too.
  Communicator* reduce() const { return reduce_.get(); }
  Communicator* files() const { return files_.get(); }
  // Of other hosts' parameters, and among this host's ranks; both are reduce() if there is one host.
  Communicator* gather() const { return gather_ != nullptr ? gather_.get() : reduce_.get(); }
  Communicator* of_host() const { return of_host_ != nullptr ? of_host_.get() : reduce_.get(); }
  // Of Join: whether ranks of several workers move what is on their devices directly.
  bool moves_directly() const { return moves_directly_; }
  // Of Join: by which all ranks order their windows, since some have slots; null: none has.
  const ParameterPlan* slots() const { return slots_.has_value() ? &*slots_ : nullptr; }
  // Of Join: whether a rank of any worker knows that the job has values.
  bool job_has_values() const { return job_has_values_; }

 private:
  // A row's communicator, and whether anyone has aborted it: from any thread.
  struct Joined {
    std::unique_ptr<Communicator> communicator;
    HostsCommunicator* between_hosts;  // The same; null: there is one worker.
    std::function<bool()> aborted;
  };
  // Storage may be slow, and other ranks' parts larger; deaths are noticed by other means.
  absl::Duration TimeoutOf(Row row) const {
    return row == Row::kFiles ? absl::Hours(1) : memory_->config.collective_timeout;
  }
  // Null: the row moves data in host memory.
  RankKernels* KernelsOf(Row row) const {
    return row == Row::kReduce   ? reduce_kernels_.get()
           : row == Row::kGather ? gather_kernels_.get()
                                 : nullptr;
  }
  // Those of a row, unless its present ones are as good as new.
  absl::Status RenewKernelsOf(Row row, std::unique_ptr<RankKernels>* kernels) const;
  void FindDirectWay();
  // Want of memory stays with the kernels that met it; an epoch later there may be some. What the
  // old ones have of it goes first.
  absl::Status RenewKernels();
  // Of this worker's ranks.
  absl::StatusOr<std::unique_ptr<ShmCommunicator>> JoinHost(Epoch epoch, Row row);
  absl::StatusOr<Joined> JoinRow(Epoch epoch, Row row, const v1::ExecutorStart& start);
  // How ranks move what is on their devices: as the one that can do least.
  enum class Way : uint8_t { kByHost, kDirect, kDirectAndRegistered };
  // The same on all ranks, as are slots() and job_has_values() then. By the hosts where two ranks
  // share a GPU.
  absl::StatusOr<Way> AgreeOnWay(int64_t step, Communicator* control);
  absl::StatusOr<std::unique_ptr<Communicator>> JoinDirect(Joined joined, Row row, Way way);

  const ExecutorMemory* const memory_;
  const MakeDirectCommunicators make_direct_;
  std::unique_ptr<RankKernels> reduce_kernels_, gather_kernels_;  // Of a GPU; else null.
  std::unique_ptr<DirectCommunicators> direct_;  // Null: this rank has no such way.
  bool moves_directly_ = false, job_has_values_ = false;
  std::unique_ptr<EpochMeshes> meshes_;  // Of the epoch that is prepared.
  std::unique_ptr<Communicator> reduce_, files_, gather_, of_host_;
  HostsCommunicator* files_between_hosts_ = nullptr;  // files_; null where there is one worker.
  std::optional<ParameterPlan> slots_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EPOCH_COMMUNICATORS_H_
