// An NCCL whose ranks are threads of one process, over FakeCudaApi's streams. It really moves and
// sums, makes the caller poll as the non-blocking library does, hangs where the library would, and
// fails where it is told. One FakeNcclApi a rank, one FakeNcclWorld for all.
//
//   group of calls ──► a batch on the stream: waits for the same batch of every rank, reads what
//                      they send, waits until all have read, writes
//
// As the library's may, an abort waits for all that runs on the device, once it has told those that
// are aborted with it: one after the other, two communicators that both have something running
// would hang.
//
// Calls that the library forbids (two threads at once, a communicator used after it was aborted,
// memory registered that cannot be, twice, or on some ranks only, an op of another communicator or
// type, FP8 summed where it cannot) are counted as misuses, and so are ops that are left to
// an abort.
// Thread-safe.
#ifndef TESSERA_WORKER_COMM_NCCL_FAKE_NCCL_API_H_
#define TESSERA_WORKER_COMM_NCCL_FAKE_NCCL_API_H_

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "worker/comm/nccl/nccl_api.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {

// A scalar of RedOpCreatePreMulSum: its bytes, or where it is on the device.
struct FakeNcclScalar {
  NcclType type = NcclType::kUint8;
  std::array<char, 8> bytes = {};
  const void* on_device = nullptr;
};

// One call within a group.
struct FakeNcclCall {
  enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kSend, kRecv };
  Kind kind = Kind::kAllGather;
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;
  NcclType type = NcclType::kUint8;
  NcclOp op = NcclOp::kSum;
  int peer = 0;                                         // Or the root.
  bool registered = false;                              // All of its memory.
  std::optional<FakeNcclScalar> scalar = std::nullopt;  // Of a sum that has one.
};

// The ranks that joined with one id.
struct FakeNcclGroup {
  struct Batch {
    std::vector<const std::vector<FakeNcclCall>*> calls_by_rank;
    int num_arrived = 0;
    int num_read = 0;
  };
  int num_ranks = 0;
  int num_joined = 0;
  std::set<std::string> places;
  bool has_duplicate = false;  // Two ranks have one place.
  int num_mixed = 0;           // Batches of which some memory was registered and some was not.
  std::map<int64_t, Batch> batches;
};

struct FakeNcclWorld {
  std::atomic<int> next_op{0};
  absl::Mutex mu;
  std::map<NcclUniqueId, std::shared_ptr<FakeNcclGroup>> groups ABSL_GUARDED_BY(mu);
};

class FakeNcclApi : public NcclApi {
 public:
  struct Options {
    int version = 22809;
    bool has_revoke = true;
    bool has_register = true;
    NcclResult register_result = NcclResult::kSuccess;
    int registers_before = 0;          // Calls of CommRegister that do not have that result yet.
    bool registers_nothing = false;    // CommRegister does as if, and gives no handle.
    bool never_joins = false;          // Joining stays in progress.
    bool hangs = false;                // Batches never come.
    bool device_buffers_only = false;  // Other memory is a misuse, as to the library.
    absl::Notification* abort_until = nullptr;  // CommAbort does not come back before.
    std::string place;  // What it takes for the GPU: ranks of one cannot join. Empty: none's.
    NcclResult init_result = NcclResult::kSuccess;
  };
  FakeNcclApi(FakeNcclWorld* world, FakeCudaApi* cuda) : FakeNcclApi(world, cuda, Options()) {}
  FakeNcclApi(FakeNcclWorld* world, FakeCudaApi* cuda, const Options& options)
      : world_(world), cuda_(cuda), options_(options) {}

  // What CommGetAsyncError says from now on, and GetLastError of it.
  void FailAsync(NcclResult error) { async_error_ = error; }
  int misuses() const;
  bool idle() const { return inside_ == 0; }        // No thread is in a call.
  int num_running() const { return num_running_; }  // Groups of calls that the device is in.
  int num_joining() const { return num_joining_; }  // Communicators that were started, ever.
  int num_aborts() const { return num_aborts_; }
  int num_revokes() const { return num_revokes_; }
  int num_registered() const { return num_registered_; }    // Regions, now.
  int num_registrations() const { return num_registers_; }  // Calls that registered one.
  int num_left_to_abort() const { return num_left_; }       // Regions that CommAbort found.
  int num_registered_calls() const {
    return num_zero_copy_;
  }  // AllGather to Recv, by memory that is.
  int num_sums(NcclType type) const { return num_sums_[static_cast<int>(type)]; }  // Calls of it.
  int num_averages() const { return num_averages_; }  // Of those, with kAverage.
  int num_ops_made() const { return num_ops_made_; }  // Calls of RedOpCreatePreMulSum.

  NcclResult GetVersion(int* version) override;
  NcclResult GetUniqueId(NcclUniqueId* id) override;
  NcclResult CommInitRankConfig(NcclComm** comm, int num_ranks, const NcclUniqueId& id,
                                int rank) override;
  NcclResult CommGetAsyncError(NcclComm* comm, NcclResult* error) override;
  std::string GetLastError(NcclComm* comm) override;
  NcclResult CommAbort(NcclComm* comm) override;
  NcclResult CommRevoke(NcclComm* comm) override;
  bool registers() const override { return options_.has_register; }
  NcclResult CommRegister(NcclComm* comm, void* memory, int64_t size_bytes, void** handle) override;
  NcclResult CommDeregister(NcclComm* comm, void* handle) override;
  NcclResult RedOpCreatePreMulSum(NcclOp* op, const void* scalar, NcclType type,
                                  NcclScalar residence, NcclComm* comm) override;
  NcclResult RedOpDestroy(NcclOp op, NcclComm* comm) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;
  NcclResult AllGather(const void* send, void* recv, int64_t count, NcclType type, NcclComm* comm,
                       CudaStreamHandle* stream) override;
  NcclResult ReduceScatter(const void* send, void* recv, int64_t count, NcclType type, NcclOp op,
                           NcclComm* comm, CudaStreamHandle* stream) override;
  NcclResult AllReduce(const void* send, void* recv, int64_t count, NcclType type, NcclOp op,
                       NcclComm* comm, CudaStreamHandle* stream) override;
  NcclResult Broadcast(const void* send, void* recv, int64_t count, NcclType type, int root,
                       NcclComm* comm, CudaStreamHandle* stream) override;
  NcclResult Send(const void* send, int64_t count, NcclType type, int peer, NcclComm* comm,
                  CudaStreamHandle* stream) override;
  NcclResult Recv(void* recv, int64_t count, NcclType type, int peer, NcclComm* comm,
                  CudaStreamHandle* stream) override;

 private:
  struct Comm;
  class Inside;  // Counts the threads that are in a call.
  std::shared_ptr<Comm> Find(NcclComm* comm);
  void AbortAll(const std::vector<std::shared_ptr<Comm>>& comms);
  NcclResult Add(FakeNcclCall call, NcclComm* comm, CudaStreamHandle* stream);
  // What the library makes of a reduction's op, or an error.
  NcclResult TakeOp(const Comm& comm, FakeNcclCall* call);
  bool IsRegistered(const Comm& comm, const void* memory, int64_t size_bytes) const;
  // On the stream's thread.
  void RunBatch(Comm* comm, int64_t number, const std::vector<FakeNcclCall>& calls);

  FakeNcclWorld* const world_;
  FakeCudaApi* const cuda_;
  const Options options_;
  std::atomic<NcclResult> async_error_{NcclResult::kSuccess};
  std::atomic<int> inside_{0};
  std::atomic<int> misuses_{0};
  std::atomic<int> num_running_{0};
  std::atomic<int> num_joining_{0};
  std::atomic<int> num_aborts_{0};
  std::atomic<int> num_revokes_{0};
  std::atomic<int> num_registered_{0};
  std::atomic<int> num_registers_{0};
  std::atomic<int> num_left_{0};
  std::atomic<int> num_zero_copy_{0};
  std::array<std::atomic<int>, 12> num_sums_ = {};  // By type.
  std::atomic<int> num_averages_{0};
  std::atomic<int> num_ops_made_{0};
  // Of the one thread that calls.
  std::map<NcclComm*, std::shared_ptr<Comm>> comms_;
  bool group_open_ = false;
  std::vector<FakeNcclCall> open_;
  std::vector<std::shared_ptr<Comm>> open_aborts_;
  std::shared_ptr<Comm> open_comm_;
  CudaStreamHandle* open_stream_ = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_FAKE_NCCL_API_H_
