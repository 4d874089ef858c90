// The calls of NCCL that Tessera makes, under NCCL's names without "nccl". Thin: results as NCCL
// returns them, since kInProgress is not an error.
//
//   LoadNcclApi()  the machine's libnccl.so.2, by dlopen       FakeNcclApi  ranks in one process
//
// The library is loaded and not linked: one program for machines with and without it, and it is
// five times as large as all of ours. Calls for one device come from one thread (see
// nccl_thread.h). Counts are ELEMENTS of the type. Buffers are addresses of the device.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_API_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_API_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/element_type.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

struct NcclComm;
using NcclUniqueId = std::array<char, 128>;

// The numbers of these are NCCL's.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class NcclType : int {
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,  // Since 2.24.
  kFloat8e5m2 = 11,
};
// And those that RedOpCreatePreMulSum makes, with numbers of their own.
enum class NcclOp : int { kSum = 0, kMax = 2, kMin = 3, kAverage = 4 };
// Where a scalar is: the library reads it when its kernel runs, or before the call returns.
enum class NcclScalar : int { kDevice = 0, kHostImmediate = 1 };

NcclType NcclTypeOf(ElementType type);
int64_t SizeBytes(NcclType type);
// "ncclRemoteError (6)".
std::string NcclName(NcclResult result);

// It sums them on GPUs from this major compute capability on; others it refuses.
inline constexpr int kNcclFp8ComputeCapability = 9;

// Versions as NCCL numbers them: 10000 * major + 100 * minor + patch.
inline constexpr int kNcclNonBlocking = 21403;  // The first whose communicators can be aborted.
inline constexpr int kNcclRegister = 21901;     // The first with ncclCommRegister.
inline constexpr int kNcclGroupAbort = 22203;  // The first that aborts several at once, in a group.
inline constexpr int kNcclFp8 = 22403;         // The first that sums FP8.
inline constexpr int kNcclRevoke = 22807;      // The first with ncclCommRevoke.
inline constexpr int kNcclSharedGpu = 23003;   // The first that may be told to share a GPU.

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual NcclResult GetVersion(int* version) = 0;
  virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;
  // Never blocks: the communicator is ready once CommGetAsyncError says so, or has failed.
  virtual NcclResult CommInitRankConfig(NcclComm** comm, int num_ranks, const NcclUniqueId& id,
                                        int rank) = 0;
  virtual NcclResult CommGetAsyncError(NcclComm* comm, NcclResult* error) = 0;
  virtual std::string GetLastError(NcclComm* comm) = 0;  // What it says of itself; may be empty.
  // Ends what runs and frees the communicator. Waits for no other rank, but it may wait for all
  // that runs on the device, so communicators that all have something there are aborted in one
  // group: GroupEnd does it then, and the calls before it only note it. kNcclGroupAbort.
  virtual NcclResult CommAbort(NcclComm* comm) = 0;
  // Ends what runs; the communicator is good only for CommAbort then. kInvalidUsage: this library
  // has no such call.
  virtual NcclResult CommRevoke(NcclComm* comm) = 0;

  // Whether this library has the two calls that follow; without, they return kInvalidUsage.
  virtual bool registers() const = 0;
  // Has the library send from this memory and receive into it without a copy of its own: memory of
  // MemCreate, whole multiples of the device's granularity. A call whose memory is registered on
  // one rank must find it so on all. `handle` is null where the library was told to register none.
  virtual NcclResult CommRegister(NcclComm* comm, void* memory, int64_t size_bytes,
                                  void** handle) = 0;
  virtual NcclResult CommDeregister(NcclComm* comm, void* handle) = 0;

  // Makes a sum of which each rank's elements are multiplied by its own scalar before: one of
  // `type`, which is the only one that the op is for. On this communicator, until it is destroyed;
  // and the calls that were given it continue to use it. Since 2.11.
  virtual NcclResult RedOpCreatePreMulSum(NcclOp* op, const void* scalar, NcclType type,
                                          NcclScalar residence, NcclComm* comm) = 0;
  virtual NcclResult RedOpDestroy(NcclOp op, NcclComm* comm) = 0;

  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;
  virtual NcclResult AllGather(const void* send, void* recv, int64_t count, NcclType type,
                               NcclComm* comm, CudaStreamHandle* stream) = 0;
  virtual NcclResult ReduceScatter(const void* send, void* recv, int64_t count, NcclType type,
                                   NcclOp op, NcclComm* comm, CudaStreamHandle* stream) = 0;
  virtual NcclResult AllReduce(const void* send, void* recv, int64_t count, NcclType type,
                               NcclOp op, NcclComm* comm, CudaStreamHandle* stream) = 0;
  virtual NcclResult Broadcast(const void* send, void* recv, int64_t count, NcclType type, int root,
                               NcclComm* comm, CudaStreamHandle* stream) = 0;
  virtual NcclResult Send(const void* send, int64_t count, NcclType type, int peer, NcclComm* comm,
                          CudaStreamHandle* stream) = 0;
  virtual NcclResult Recv(void* recv, int64_t count, NcclType type, int peer, NcclComm* comm,
                          CudaStreamHandle* stream) = 0;
};

// Loads the library at the first call and leaves it loaded. Thread-safe.
// Errors: Unimplemented       built without NCCL
//         NotFound            libnccl.so.2 is missing, or lacks a call: the message names it
//         FailedPrecondition  it is older than kNcclNonBlocking
absl::StatusOr<NcclApi*> LoadNcclApi();

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_API_H_
