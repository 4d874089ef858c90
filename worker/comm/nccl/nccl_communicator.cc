// Joining, agreeing, failing. The operations are in nccl_collectives.cc.
#include "worker/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/comm/operation_digest.h"
#include "worker/device/cuda/device_region.h"

namespace tessera {
namespace {

// The versions of all ranks; each must be the same, or the library refuses or hangs.
// Over the control communicator, where a missing rank is named: nothing of NCCL was called yet.
absl::Status CompareVersions(NcclApi* nccl, Communicator* control) {
  int version = 0;
  const NcclResult result = nccl->GetVersion(&version);
  if (result != NcclResult::kSuccess) {
    return absl::InternalError(absl::StrCat("ncclGetVersion: ", NcclName(result)));
  }
  std::vector<int> versions(control->size());
  RETURN_IF_ERROR(control->AllGather(&version, versions.data(), sizeof(version)));
  for (int r = 0; r < control->size(); ++r) {
    if (versions[r] == version) continue;
    return absl::FailedPreconditionError(absl::StrCat("rank ", control->rank(), " has NCCL ",
                                                      version, " and rank ", r, " has NCCL ",
                                                      versions[r]));
  }
  return absl::OkStatus();
}

// Where each rank is: two on one GPU the library refuses, each with another error or none.
absl::Status ComparePlaces(const DirectPlace& place, Communicator* control) {
  std::vector<DirectPlace> places(control->size());
  // Every rank compares all places, so all fail alike and none is left waiting in the library.
  RETURN_IF_ERROR(control->AllGather(&place, places.data(), sizeof(place)));
  const auto shared = RanksOfOneDevice(places);
  return shared.has_value() ? absl::FailedPreconditionError(DescribeShared(*shared, places))
                            : absl::OkStatus();
}

// Rank 0 makes the id, the others get it.
absl::Status ShareId(NcclApi* nccl, Communicator* control, NcclUniqueId* id) {
  if (control->rank() == 0) {
    const NcclResult result = nccl->GetUniqueId(id);
    if (result != NcclResult::kSuccess) {
      return absl::InternalError(absl::StrCat("ncclGetUniqueId: ", NcclName(result)));
    }
  }
  return control->Broadcast(id->data(), id->size(), 0);
}

// Whether the library sums FP8, on the GPUs of all ranks: one answer for all.
absl::StatusOr<bool> LibrarySumsFp8(const NcclCommunicator::Options& options) {
  PrimaryContext* context = options.device->context();
  ASSIGN_OR_RETURN(const int capability,
                   context->api()->DeviceGetAttribute(CudaAttribute::kComputeCapabilityMajor,
                                                      context->device()));
  int version = 0;
  options.nccl->GetVersion(&version);  // That of all ranks.
  const uint8_t mine = version >= kNcclFp8 && capability >= kNcclFp8ComputeCapability ? 1 : 0;
  std::vector<uint8_t> all(options.control->size());
  RETURN_IF_ERROR(options.control->AllGather(&mine, all.data(), sizeof(mine)));
  return std::find(all.begin(), all.end(), 0) == all.end();
}

absl::StatusOr<std::shared_ptr<NcclRank>> MakeRank(const NcclCommunicator::Options& options) {
  if (options.control->size() > kMaxSlices) {
    return absl::InvalidArgumentError(absl::StrCat(options.control->size(), " ranks; at most ",
                                                   kMaxSlices, " can be summed in one kernel"));
  }
  PrimaryContext* context = options.device->context();
  const int priority = options.device->PriorityOf(options.stream);
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                   CudaStream::Create(context, options.stream, priority));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaEvent> event, CudaEvent::Create(context));
  NcclRank::Options ranked;
  ranked.api = options.nccl;
  ranked.thread = options.thread;
  ranked.rank = options.control->rank();
  ranked.size = options.control->size();
  ranked.timeout = options.timeout;
  ranked.call_timeout = options.call_timeout;
  // Polled in each wait: NCCL itself does not learn that the epoch was ended.
  ranked.aborted = options.control_aborted;
  return std::make_shared<NcclRank>(ranked, std::move(stream), std::move(event));
}

// For what a thread may still use that is stuck in the library. Never freed.
template <typename T>
void KeepForEver(T value) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const kept = new std::deque<T>();
  absl::MutexLock lock(&mu);
  kept->push_back(std::move(value));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(const Options& options) {
  // Both are tried before the others hear of a failure: only one reason can be told.
  absl::StatusOr<std::shared_ptr<NcclRank>> ranked = MakeRank(options);
  absl::StatusOr<Buffer> stats = options.device->AllocatePinned(sizeof(host::GradientStats));
  absl::Status status = ranked.status();
  status.Update(stats.status());
  if (!status.ok()) {
    options.control->Abort(status);  // The others wait for this rank.
    return status;
  }
  auto communicator = absl::WrapUnique(new NcclCommunicator(options, *ranked, *std::move(stats)));
  RETURN_IF_ERROR(communicator->Finish(communicator->Meet()));
  if (options.registers) RETURN_IF_ERROR(communicator->Finish(communicator->Register()));
  return communicator;
}

absl::Status NcclCommunicator::Meet() {
  // Questions on the CPU before the first call that joins: a rank that differs would hang there.
  RETURN_IF_ERROR(CompareVersions(options_.nccl, options_.control));
  RETURN_IF_ERROR(ComparePlaces(options_.place, options_.control));
  if (options_.library_sums) {
    ASSIGN_OR_RETURN(library_sums_fp8_, LibrarySumsFp8(options_));
  }
  NcclUniqueId id = {};
  RETURN_IF_ERROR(ShareId(options_.nccl, options_.control, &id));
  return nccl_->Join(id);
}

NcclCommunicator::NcclCommunicator(const Options& options, std::shared_ptr<NcclRank> ranked,
                                   Buffer stats)
    : options_(options),
      nccl_(std::move(ranked)),
      stats_(std::move(stats)),
      digests_(options.control->size()),
      sources_(options.control->size()) {}

NcclCommunicator::~NcclCommunicator() {
  // Each operation waited for the stream.
  // After a failure nothing is deregistered: the abort frees it, and the library may be stuck.
  if (is_registered_ && broken_.ok() && !options_.control_aborted()) {
    const absl::Status status = nccl_->Deregister();
    if (!status.ok()) TESSERA_LOG(WARNING, "left to NCCL to deregister: {}", status.ToString());
  }
  const absl::Status aborted = nccl_->Close();
  if (!aborted.ok()) TESSERA_LOG(ERROR, "NCCL cannot be aborted: {}", aborted.ToString());
  // Closed in order: nothing of the device refers to what is freed now.
  if (nccl_->phase() != NcclPhase::kStuck) return;
  // A stuck call may still use all of it, until the process ends.
  KeepForEver(std::move(nccl_));
  KeepForEver(std::move(stats_));
  KeepForEver(std::move(staging_));
  KeepForEver(options_.owned_kernels);
}

absl::Status NcclCommunicator::RegisterOwn() {
  std::vector<NcclRank::Region> regions = options_.regions;
  const int64_t staging_bytes = SlotBytes(options_.max_slice_bytes) * (size() - 1);
  if (staging_bytes > 0) {
    PrimaryContext* context = options_.device->context();
    // What NCCL is to write to is memory of the same kind as what it reads.
    ASSIGN_OR_RETURN(staging_,
                     AllocateRegion({context->api(), context->device(), context}, staging_bytes));
    regions.push_back({staging_.data(), staging_.size_bytes()});
  }
  return nccl_->Register(std::move(regions));
}

absl::Status NcclCommunicator::Register() {
  // A rank without a usable communicator meets nobody: the others learn of its abort instead.
  // It may fail on this rank alone, and a call with memory registered on some ranks only is
  // undefined.
  const absl::Status own = RegisterOwn();
  if (nccl_->phase() == NcclPhase::kStuck || absl::IsAborted(own)) return own;
  could_register_ = own.ok();
  if (!own.ok())
    TESSERA_LOG(WARNING, "rank {} registers no memory with NCCL: {}", rank(), own.ToString());
  const uint8_t mine = own.ok() ? 1 : 0;
  std::vector<uint8_t> all(size());
  // All ranks or none (docs/adr/0042).
  RETURN_IF_ERROR(options_.control->AllGather(&mine, all.data(), sizeof(mine)));
  const auto cannot = std::find(all.begin(), all.end(), 0);
  is_registered_ = cannot == all.end();
  if (is_registered_) return absl::OkStatus();
  if (own.ok()) {
    TESSERA_LOG(INFO, "no memory is registered with NCCL: rank {} cannot", cannot - all.begin());
    // No operation has run yet, so the library has nothing under way on that memory.
    RETURN_IF_ERROR(nccl_->Deregister());
  }
  // It is memory of the kind to register. Later staging is allocated as needed.
  staging_ = Buffer();
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Agree(uint32_t digest) {
  if (!broken_.ok()) return broken_;
  // NCCL is called once all ranks are here with the same operation, so none can hang in it for a
  // missing one (docs/adr/0027).
  const absl::Status met = options_.control->AllGather(&digest, digests_.data(), sizeof(digest));
  if (!met.ok()) return End(Annotate(met, OperationName(digest)));  // The others know.
  for (int r = 0; r < size(); ++r) {
    if (digests_[r] == digest) continue;
    const bool same_name = digests_[r] >> 24 == digest >> 24;
    return Break(absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank(), " called ", OperationName(digest), " while rank ", r, " called ",
        OperationName(digests_[r]), same_name ? " with other sizes or types" : "")));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Break(absl::Status status) {
  // Three cases: another communicator of the device ended this one; the epoch was ended elsewhere;
  // or the cause is this rank's, and the others hear it from here.
  if (absl::Status along = nccl_->ended_along(); !along.ok()) {
    status = std::move(along);
    options_.control->Abort(status);  // This one's others wait for this rank.
  } else if (absl::IsAborted(status)) {
    const absl::Status reason = options_.control->Barrier();  // At once, and with the reason.
    if (absl::IsAborted(reason)) status = reason;
  } else {
    options_.control->Abort(status);
  }
  return End(std::move(status));
}

absl::Status NcclCommunicator::End(absl::Status status) {
  // Before the abort, which may take its time: each call from now on returns this.
  broken_ = std::move(status);
  // With whatever else the device has running, which the abort might wait for.
  const absl::Status aborted = nccl_->Abort(broken_);
  if (!aborted.ok()) {
    TESSERA_LOG(ERROR, "NCCL cannot be aborted: {}", aborted.ToString());
    if (nccl_->phase() == NcclPhase::kStuck) {
      // Whatever it began with, the next process may do it: an error to try again after.
      if (absl::IsInternal(broken_)) broken_ = absl::UnavailableError(broken_.message());
      broken_ = Annotate(broken_, "NCCL is stuck");
    }
  }
  return broken_;
}

absl::Status NcclCommunicator::Revoke(absl::Status reason) {
  // The others first: they may wait for this rank while the library is asked.
  options_.control->Abort(reason);
  const absl::Status revoked = nccl_->Revoke(reason);
  if (broken_.ok()) {
    // The barrier of an aborted epoch returns at once, with the reason of the first abort.
    broken_ = options_.control->Barrier();
    if (broken_.ok()) broken_ = absl::AbortedError(reason.message());
  }
  return revoked;
}

absl::Status NcclCommunicator::EnsureStaging(int64_t size_bytes) {
  if (staging_.size_bytes() >= size_bytes) return absl::OkStatus();
  if (is_registered_) {
    return absl::InternalError(absl::StrCat("a slice larger than the ", options_.max_slice_bytes,
                                            " bytes that staging is registered for"));
  }
  staging_ = Buffer();  // First, so that there is room for the larger one.
  ASSIGN_OR_RETURN(staging_, options_.device->Allocate(size_bytes));
  return absl::OkStatus();
}

}  // namespace tessera
