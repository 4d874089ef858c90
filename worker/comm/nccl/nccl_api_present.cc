// LoadNcclApi of a build with NCCL's header.
#include <dlfcn.h>

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "nccl.h"
#include "worker/comm/nccl/nccl_api.h"

// clang-format off
#define TESSERA_NCCL_CALLS(X) \
  X(ncclGetVersion) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommGetAsyncError) \
  X(ncclGetLastError) X(ncclCommAbort) X(ncclGroupStart) X(ncclGroupEnd) X(ncclAllGather) \
  X(ncclReduceScatter) X(ncclAllReduce) X(ncclBroadcast) X(ncclSend) X(ncclRecv) \
  X(ncclRedOpCreatePreMulSum) X(ncclRedOpDestroy)
// clang-format on

namespace tessera {
namespace {

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(NcclType::kUint8) == ncclUint8);
static_assert(static_cast<int>(NcclType::kInt32) == ncclInt32);
static_assert(static_cast<int>(NcclType::kInt64) == ncclInt64);
static_assert(static_cast<int>(NcclType::kFloat16) == ncclFloat16);
static_assert(static_cast<int>(NcclType::kFloat32) == ncclFloat32);
static_assert(static_cast<int>(NcclType::kFloat64) == ncclFloat64);
static_assert(static_cast<int>(NcclType::kBfloat16) == ncclBfloat16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 3)
static_assert(static_cast<int>(NcclType::kFloat8e4m3) == ncclFloat8e4m3);
static_assert(static_cast<int>(NcclType::kFloat8e5m2) == ncclFloat8e5m2);
#endif
static_assert(static_cast<int>(NcclOp::kSum) == ncclSum);
static_assert(static_cast<int>(NcclOp::kMax) == ncclMax);
static_assert(static_cast<int>(NcclOp::kMin) == ncclMin);
static_assert(static_cast<int>(NcclOp::kAverage) == ncclAvg);
static_assert(static_cast<int>(NcclScalar::kDevice) == ncclScalarDevice);
static_assert(static_cast<int>(NcclScalar::kHostImmediate) == ncclScalarHostImmediate);

// Newer than some headers that this is built with, so their types are not taken from those.
using RevokeCall = ncclResult_t(ncclComm_t, int);
using RegisterCall = ncclResult_t(const ncclComm_t, void*, size_t, void**);
using DeregisterCall = ncclResult_t(const ncclComm_t, void*);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1)
static_assert(std::is_same_v<RegisterCall, decltype(ncclCommRegister)>);
static_assert(std::is_same_v<DeregisterCall, decltype(ncclCommDeregister)>);
#endif

NcclResult Of(ncclResult_t result) { return static_cast<NcclResult>(result); }
ncclComm_t Of(NcclComm* comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t Of(CudaStreamHandle* stream) { return reinterpret_cast<cudaStream_t>(stream); }
ncclDataType_t Of(NcclType type) { return static_cast<ncclDataType_t>(type); }
ncclRedOp_t Of(NcclOp op) { return static_cast<ncclRedOp_t>(op); }

class Library : public NcclApi {
 public:
  absl::Status Load() {
    // Not linked: it is larger than all of ours, and most nodes have none (docs/adr/0027).
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::NotFoundError(dlerror());
#define TESSERA_NCCL_RESOLVE(name)                                      \
  name##_ = reinterpret_cast<decltype(name##_)>(dlsym(library, #name)); \
  if (name##_ == nullptr) return absl::NotFoundError("libnccl.so.2 has no " #name);
    TESSERA_NCCL_CALLS(TESSERA_NCCL_RESOLVE)
#undef TESSERA_NCCL_RESOLVE
    revoke_ = reinterpret_cast<RevokeCall*>(dlsym(library, "ncclCommRevoke"));
    register_ = reinterpret_cast<RegisterCall*>(dlsym(library, "ncclCommRegister"));
    deregister_ = reinterpret_cast<DeregisterCall*>(dlsym(library, "ncclCommDeregister"));
    int version = 0;
    if (ncclGetVersion_(&version) != ncclSuccess || version < kNcclNonBlocking) {
      return absl::FailedPreconditionError(
          absl::StrCat("libnccl.so.2 has version ", version, ", and ", kNcclNonBlocking,
                       " is needed, the first whose communicators can be aborted"));
    }
    return absl::OkStatus();
  }

  NcclResult GetVersion(int* version) override { return Of(ncclGetVersion_(version)); }
  NcclResult GetUniqueId(NcclUniqueId* id) override {
    ncclUniqueId native;
    const NcclResult result = Of(ncclGetUniqueId_(&native));
    std::memcpy(id->data(), native.internal, sizeof(native));
    return result;
  }
  NcclResult CommInitRankConfig(NcclComm** comm, int num_ranks, const NcclUniqueId& id,
                                int rank) override {
    ncclUniqueId native;
    std::memcpy(native.internal, id.data(), sizeof(native));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    // A blocking call that waits for a dead rank could not be aborted (docs/adr/0027).
    config.blocking = 0;
    return Of(ncclCommInitRankConfig_(reinterpret_cast<ncclComm_t*>(comm), num_ranks, native, rank,
                                      &config));
  }
  NcclResult CommGetAsyncError(NcclComm* comm, NcclResult* error) override {
    ncclResult_t native = ncclSuccess;
    const NcclResult result = Of(ncclCommGetAsyncError_(Of(comm), &native));
    *error = Of(native);
    return result;
  }
  // The text is the library's own and may change at the next call: it is copied at once.
  std::string GetLastError(NcclComm* comm) override {
    const char* text = ncclGetLastError_(Of(comm));
    return text == nullptr ? "" : text;
  }
  NcclResult CommAbort(NcclComm* comm) override { return Of(ncclCommAbort_(Of(comm))); }
  NcclResult CommRevoke(NcclComm* comm) override {
    return revoke_ == nullptr ? NcclResult::kInvalidUsage : Of(revoke_(Of(comm), /*flags=*/0));
  }
  bool registers() const override { return register_ != nullptr && deregister_ != nullptr; }
  NcclResult CommRegister(NcclComm* comm, void* memory, int64_t size_bytes,
                          void** handle) override {
    if (!registers()) return NcclResult::kInvalidUsage;
    return Of(register_(Of(comm), memory, static_cast<size_t>(size_bytes), handle));
  }
  NcclResult CommDeregister(NcclComm* comm, void* handle) override {
    return registers() ? Of(deregister_(Of(comm), handle)) : NcclResult::kInvalidUsage;
  }

  NcclResult RedOpCreatePreMulSum(NcclOp* op, const void* scalar, NcclType type,
                                  NcclScalar residence, NcclComm* comm) override {
    ncclRedOp_t native = ncclSum;
    const NcclResult result =
        Of(ncclRedOpCreatePreMulSum_(&native, const_cast<void*>(scalar), Of(type),
                                     static_cast<ncclScalarResidence_t>(residence), Of(comm)));
    *op = static_cast<NcclOp>(native);
    return result;
  }
  NcclResult RedOpDestroy(NcclOp op, NcclComm* comm) override {
    return Of(ncclRedOpDestroy_(Of(op), Of(comm)));
  }

  NcclResult GroupStart() override { return Of(ncclGroupStart_()); }
  NcclResult GroupEnd() override { return Of(ncclGroupEnd_()); }
  NcclResult AllGather(const void* send, void* recv, int64_t count, NcclType type, NcclComm* comm,
                       CudaStreamHandle* stream) override {
    return Of(ncclAllGather_(send, recv, count, Of(type), Of(comm), Of(stream)));
  }
  NcclResult ReduceScatter(const void* send, void* recv, int64_t count, NcclType type, NcclOp op,
                           NcclComm* comm, CudaStreamHandle* stream) override {
    return Of(ncclReduceScatter_(send, recv, count, Of(type), Of(op), Of(comm), Of(stream)));
  }
  NcclResult AllReduce(const void* send, void* recv, int64_t count, NcclType type, NcclOp op,
                       NcclComm* comm, CudaStreamHandle* stream) override {
    return Of(ncclAllReduce_(send, recv, count, Of(type), Of(op), Of(comm), Of(stream)));
  }
  NcclResult Broadcast(const void* send, void* recv, int64_t count, NcclType type, int root,
                       NcclComm* comm, CudaStreamHandle* stream) override {
    return Of(ncclBroadcast_(send, recv, count, Of(type), root, Of(comm), Of(stream)));
  }
  NcclResult Send(const void* send, int64_t count, NcclType type, int peer, NcclComm* comm,
                  CudaStreamHandle* stream) override {
    return Of(ncclSend_(send, count, Of(type), peer, Of(comm), Of(stream)));
  }
  NcclResult Recv(void* recv, int64_t count, NcclType type, int peer, NcclComm* comm,
                  CudaStreamHandle* stream) override {
    return Of(ncclRecv_(recv, count, Of(type), peer, Of(comm), Of(stream)));
  }

 private:
#define TESSERA_NCCL_DECLARE(name) decltype(&name) name##_ = nullptr;
  TESSERA_NCCL_CALLS(TESSERA_NCCL_DECLARE)
#undef TESSERA_NCCL_DECLARE
  RevokeCall* revoke_ = nullptr;  // These three are null in older libraries.
  RegisterCall* register_ = nullptr;
  DeregisterCall* deregister_ = nullptr;
};

}  // namespace

absl::StatusOr<NcclApi*> LoadNcclApi() {
  static Library* const library = new Library();  // Never destroyed: threads may outlive main.
  static const absl::Status loaded = library->Load();
  if (!loaded.ok()) return loaded;
  return library;
}

}  // namespace tessera
