#include "worker/comm/nccl/fake_nccl_api.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "worker/comm/nccl/fake_nccl_batch.h"

namespace tessera {
namespace {

bool IsMixed(const std::vector<const std::vector<FakeNcclCall>*>& calls_by_rank) {
  int num_calls = 0, num_registered = 0;
  for (const std::vector<FakeNcclCall>* calls : calls_by_rank) {
    num_calls += static_cast<int>(calls->size());
    for (const FakeNcclCall& call : *calls) num_registered += call.registered ? 1 : 0;
  }
  return num_registered != 0 && num_registered != num_calls;
}

bool IsReduction(const FakeNcclCall& call) {
  return call.kind == FakeNcclCall::Kind::kReduceScatter ||
         call.kind == FakeNcclCall::Kind::kAllReduce;
}

bool IsFp8(NcclType type) { return type == NcclType::kFloat8e4m3 || type == NcclType::kFloat8e5m2; }

constexpr int kFirstMadeOp = 5;  // The numbers before are the library's own.

}  // namespace

struct FakeNcclApi::Comm {
  int rank = 0;
  std::shared_ptr<FakeNcclGroup> group;
  int64_t next_batch = 0;
  bool in_progress = false;  // A group was issued and nobody has asked since.
  bool revoked = false;
  std::map<uintptr_t, int64_t> registered;  // Begin -> bytes; a handle is a begin.
  std::map<NcclOp, FakeNcclScalar> ops;     // That were made.
  bool aborted = false;                     // Guarded by the world's mutex.
  int num_running = 0;                      // Batches that the device is in. Guarded likewise.
};

class FakeNcclApi::Inside {
 public:
  explicit Inside(FakeNcclApi* api) : api_(api) {
    if (api_->inside_++ != 0) ++api_->misuses_;
  }
  ~Inside() { --api_->inside_; }

 private:
  FakeNcclApi* const api_;
};

std::shared_ptr<FakeNcclApi::Comm> FakeNcclApi::Find(NcclComm* comm) {
  const auto found = comms_.find(comm);
  if (found != comms_.end()) return found->second;
  ++misuses_;
  return nullptr;
}

NcclResult FakeNcclApi::GetVersion(int* version) {
  *version = options_.version;
  return NcclResult::kSuccess;
}

NcclResult FakeNcclApi::GetUniqueId(NcclUniqueId* id) {
  static std::atomic<int64_t> next{1};
  const int64_t number = next++;
  id->fill(0);
  std::memcpy(id->data(), &number, sizeof(number));
  return NcclResult::kSuccess;
}

NcclResult FakeNcclApi::CommInitRankConfig(NcclComm** comm, int num_ranks, const NcclUniqueId& id,
                                           int rank) {
  const Inside inside(this);
  if (options_.init_result != NcclResult::kSuccess) return options_.init_result;
  auto made = std::make_shared<Comm>();
  made->rank = rank;
  absl::MutexLock lock(&world_->mu);
  std::shared_ptr<FakeNcclGroup>& group = world_->groups[id];
  if (group == nullptr) group = std::make_shared<FakeNcclGroup>();
  group->num_ranks = num_ranks;
  if (!options_.place.empty() && !group->places.insert(options_.place).second)
    group->has_duplicate = true;
  ++group->num_joined;
  made->group = group;
  *comm = reinterpret_cast<NcclComm*>(made.get());
  comms_[*comm] = std::move(made);
  ++num_joining_;
  return NcclResult::kInProgress;
}

NcclResult FakeNcclApi::CommGetAsyncError(NcclComm* comm, NcclResult* error) {
  const Inside inside(this);
  const std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr) return NcclResult::kInvalidArgument;
  *error = async_error_;
  if (*error != NcclResult::kSuccess) return NcclResult::kSuccess;
  absl::MutexLock lock(&world_->mu);
  const bool joining = options_.never_joins || found->group->num_joined < found->group->num_ranks;
  if (!joining && found->group->has_duplicate) *error = NcclResult::kInvalidUsage;
  if (*error != NcclResult::kSuccess) return NcclResult::kSuccess;
  if (joining || std::exchange(found->in_progress, false)) *error = NcclResult::kInProgress;
  return NcclResult::kSuccess;
}

std::string FakeNcclApi::GetLastError(NcclComm* comm) {
  if (async_error_.load() != NcclResult::kSuccess) return "the fake was told to fail";
  const std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr) return "";
  absl::MutexLock lock(&world_->mu);
  return found->group->has_duplicate ? "Duplicate GPU detected" : "";
}

NcclResult FakeNcclApi::CommAbort(NcclComm* comm) {
  const Inside inside(this);
  ++num_aborts_;
  const std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr) return NcclResult::kInvalidArgument;
  comms_.erase(comm);
  if (!found->ops.empty()) ++misuses_;
  if (group_open_) {
    if (options_.version < kNcclGroupAbort) ++misuses_;
    open_aborts_.push_back(found);
  } else {
    AbortAll({found});
  }
  return NcclResult::kSuccess;
}

void FakeNcclApi::AbortAll(const std::vector<std::shared_ptr<Comm>>& comms) {
  if (options_.abort_until != nullptr) options_.abort_until->WaitForNotification();
  for (const std::shared_ptr<Comm>& comm : comms) {
    num_left_ += static_cast<int>(comm->registered.size());
    num_registered_ -= static_cast<int>(comm->registered.size());
  }
  absl::MutexLock lock(&world_->mu);
  for (const std::shared_ptr<Comm>& comm : comms) comm->aborted = true;
  const auto device_is_idle = [&] {
    const auto is_idle = [](const auto& comm) { return comm.second->num_running == 0; };
    return std::all_of(comms_.begin(), comms_.end(), is_idle) &&
           std::all_of(comms.begin(), comms.end(),
                       [](const auto& comm) { return comm->num_running == 0; });
  };
  world_->mu.Await(absl::Condition(&device_is_idle));
}

NcclResult FakeNcclApi::CommRevoke(NcclComm* comm) {
  const Inside inside(this);
  if (!options_.has_revoke) return NcclResult::kInvalidUsage;
  ++num_revokes_;
  const std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr || found->revoked) return NcclResult::kInvalidArgument;
  found->revoked = true;
  absl::MutexLock lock(&world_->mu);
  found->aborted = true;
  return NcclResult::kSuccess;
}

int FakeNcclApi::misuses() const {
  absl::MutexLock lock(&world_->mu);
  int mixed = 0;
  for (const auto& [id, group] : world_->groups) mixed += group->num_mixed;
  return misuses_ + mixed;
}

NcclResult FakeNcclApi::CommRegister(NcclComm* comm, void* memory, int64_t size_bytes,
                                     void** handle) {
  const Inside inside(this);
  const std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr) return NcclResult::kInvalidArgument;
  if (!options_.has_register) return NcclResult::kInvalidUsage;
  // Later calls would find it registered on some ranks and not yet on others.
  if (found->next_batch != 0 || group_open_) ++misuses_;
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  if (!cuda_->IsSharable(memory, size_bytes) || found->registered.count(begin) != 0) ++misuses_;
  if (options_.register_result != NcclResult::kSuccess &&
      num_registers_ >= options_.registers_before) {
    return options_.register_result;
  }
  *handle = nullptr;
  if (options_.registers_nothing) return NcclResult::kSuccess;
  found->registered[begin] = size_bytes;
  ++num_registered_;
  ++num_registers_;
  *handle = memory;
  return NcclResult::kSuccess;
}

NcclResult FakeNcclApi::CommDeregister(NcclComm* comm, void* handle) {
  const Inside inside(this);
  const std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr) return NcclResult::kInvalidArgument;
  if (found->registered.erase(reinterpret_cast<uintptr_t>(handle)) == 0) {
    ++misuses_;
    return NcclResult::kInvalidUsage;
  }
  --num_registered_;
  return NcclResult::kSuccess;
}

bool FakeNcclApi::IsRegistered(const Comm& comm, const void* memory, int64_t size_bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  auto found = comm.registered.upper_bound(begin);
  if (found == comm.registered.begin()) return false;
  --found;
  return begin - found->first + size_bytes <= static_cast<uint64_t>(found->second);
}

NcclResult FakeNcclApi::RedOpCreatePreMulSum(NcclOp* op, const void* scalar, NcclType type,
                                             NcclScalar residence, NcclComm* comm) {
  const Inside inside(this);
  const std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr || scalar == nullptr) return NcclResult::kInvalidArgument;
  FakeNcclScalar made;
  made.type = type;
  if (residence == NcclScalar::kHostImmediate) {
    std::memcpy(made.bytes.data(), scalar, SizeBytes(type));
  } else {
    made.on_device = scalar;
  }
  // No two communicators have one number, so that another's is seen.
  *op = static_cast<NcclOp>(kFirstMadeOp + world_->next_op++);
  found->ops[*op] = made;
  ++num_ops_made_;
  return NcclResult::kSuccess;
}

NcclResult FakeNcclApi::RedOpDestroy(NcclOp op, NcclComm* comm) {
  const Inside inside(this);
  const std::shared_ptr<Comm> found = Find(comm);
  if (found != nullptr && found->ops.erase(op) == 1) return NcclResult::kSuccess;
  if (found != nullptr) ++misuses_;
  return NcclResult::kInvalidArgument;
}

NcclResult FakeNcclApi::TakeOp(const Comm& comm, FakeNcclCall* call) {
  bool is_allowed = true;
  if (IsFp8(call->type)) {
    const absl::StatusOr<int> capability =
        cuda_->DeviceGetAttribute(CudaAttribute::kComputeCapabilityMajor, 0);
    is_allowed =
        options_.version >= kNcclFp8 && capability.ok() && *capability >= kNcclFp8ComputeCapability;
  }
  if (static_cast<int>(call->op) >= kFirstMadeOp) {
    const auto made = comm.ops.find(call->op);
    is_allowed = is_allowed && made != comm.ops.end() && made->second.type == call->type;
    if (is_allowed) call->scalar = made->second;
    call->op = NcclOp::kSum;
  }
  if (!is_allowed) {
    ++misuses_;
    return NcclResult::kInvalidArgument;
  }
  ++num_sums_[static_cast<int>(call->type)];
  if (call->op == NcclOp::kAverage) ++num_averages_;
  return NcclResult::kSuccess;
}

NcclResult FakeNcclApi::GroupStart() {
  const Inside inside(this);
  if (std::exchange(group_open_, true)) ++misuses_;
  return NcclResult::kSuccess;
}

NcclResult FakeNcclApi::GroupEnd() {
  const Inside inside(this);
  if (!std::exchange(group_open_, false)) ++misuses_;
  if (!open_aborts_.empty()) {
    if (open_comm_ != nullptr) ++misuses_;
    AbortAll(std::exchange(open_aborts_, {}));
  }
  if (open_comm_ == nullptr) return NcclResult::kSuccess;
  std::shared_ptr<Comm> comm = std::exchange(open_comm_, nullptr);
  comm->in_progress = true;
  cuda_->RunOnStream(open_stream_,
                     [this, comm, number = comm->next_batch++, calls = std::exchange(open_, {})] {
                       RunBatch(comm.get(), number, calls);
                     });
  return NcclResult::kInProgress;
}

NcclResult FakeNcclApi::Add(FakeNcclCall call, NcclComm* comm, CudaStreamHandle* stream) {
  const Inside inside(this);
  std::shared_ptr<Comm> found = Find(comm);
  if (found == nullptr || !group_open_) return NcclResult::kInvalidArgument;
  if (found->revoked) return NcclResult::kInvalidUsage;
  if (IsReduction(call)) {
    const NcclResult taken = TakeOp(*found, &call);
    if (taken != NcclResult::kSuccess) return taken;
  }
  bool registered = true;
  for (const void* buffer : {call.send, static_cast<const void*>(call.recv)}) {
    if (buffer == nullptr) continue;
    const int64_t size_bytes = call.count * SizeBytes(call.type);  // At the least.
    if (options_.device_buffers_only && !cuda_->Holds(buffer, size_bytes)) ++misuses_;
    registered = registered && IsRegistered(*found, buffer, size_bytes);
  }
  call.registered = registered;
  open_.push_back(std::move(call));
  if (registered) ++num_zero_copy_;
  open_comm_ = std::move(found);
  open_stream_ = stream;
  return NcclResult::kSuccess;
}

NcclResult FakeNcclApi::AllGather(const void* send, void* recv, int64_t count, NcclType type,
                                  NcclComm* comm, CudaStreamHandle* stream) {
  return Add({FakeNcclCall::Kind::kAllGather, send, recv, count, type}, comm, stream);
}
NcclResult FakeNcclApi::ReduceScatter(const void* send, void* recv, int64_t count, NcclType type,
                                      NcclOp op, NcclComm* comm, CudaStreamHandle* stream) {
  return Add({FakeNcclCall::Kind::kReduceScatter, send, recv, count, type, op}, comm, stream);
}
NcclResult FakeNcclApi::AllReduce(const void* send, void* recv, int64_t count, NcclType type,
                                  NcclOp op, NcclComm* comm, CudaStreamHandle* stream) {
  return Add({FakeNcclCall::Kind::kAllReduce, send, recv, count, type, op}, comm, stream);
}
NcclResult FakeNcclApi::Broadcast(const void* send, void* recv, int64_t count, NcclType type,
                                  int root, NcclComm* comm, CudaStreamHandle* stream) {
  return Add({FakeNcclCall::Kind::kBroadcast, send, recv, count, type, NcclOp::kSum, root}, comm,
             stream);
}
NcclResult FakeNcclApi::Send(const void* send, int64_t count, NcclType type, int peer,
                             NcclComm* comm, CudaStreamHandle* stream) {
  return Add({FakeNcclCall::Kind::kSend, send, nullptr, count, type, NcclOp::kSum, peer}, comm,
             stream);
}
NcclResult FakeNcclApi::Recv(void* recv, int64_t count, NcclType type, int peer, NcclComm* comm,
                             CudaStreamHandle* stream) {
  return Add({FakeNcclCall::Kind::kRecv, nullptr, recv, count, type, NcclOp::kSum, peer}, comm,
             stream);
}

void FakeNcclApi::RunBatch(Comm* comm, int64_t number, const std::vector<FakeNcclCall>& calls) {
  FakeNcclWorld* const world = world_;
  FakeNcclGroup* const group = comm->group.get();
  std::vector<const std::vector<FakeNcclCall>*> calls_by_rank;
  {
    absl::MutexLock lock(&world->mu);
    ++comm->num_running;
    ++num_running_;
  }
  const absl::Cleanup not_running = [this, world, comm] {
    absl::MutexLock lock(&world->mu);
    --comm->num_running;
    --num_running_;
  };
  {
    absl::MutexLock lock(&world->mu);
    if (options_.hangs) return world->mu.Await(absl::Condition(&comm->aborted));
    FakeNcclGroup::Batch& batch = group->batches[number];
    batch.calls_by_rank.resize(group->num_ranks);
    batch.calls_by_rank[comm->rank] = &calls;
    ++batch.num_arrived;
    const auto all_or_aborted = [&] {
      return batch.num_arrived == group->num_ranks || comm->aborted;
    };
    world->mu.Await(absl::Condition(&all_or_aborted));
    if (batch.num_arrived < group->num_ranks) {
      --batch.num_arrived;  // Nobody may read from a rank that has left.
      return;
    }
    calls_by_rank = batch.calls_by_rank;
    if (comm->rank == 0 && IsMixed(calls_by_rank)) ++group->num_mixed;
  }
  // From here on all ranks go through, aborted or not: none of them waits for anything else.
  const std::vector<std::vector<char>> results = ReadFakeNcclBatch(calls_by_rank, comm->rank);
  {
    absl::MutexLock lock(&world->mu);
    FakeNcclGroup::Batch& batch = group->batches[number];
    ++batch.num_read;
    const auto all_read = [&] { return batch.num_read >= group->num_ranks; };
    world->mu.Await(absl::Condition(&all_read));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!results[i].empty()) std::memcpy(calls[i].recv, results[i].data(), results[i].size());
  }
}

}  // namespace tessera
