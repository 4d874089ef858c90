// A driver made of threads and memfds, which does what cuda_api.h says and fails where it is told.
//
//   stream           a thread (HostStream)         device address   an address of this process
//   physical memory  a memfd: export, import and map work between processes, as do events that are
//                    made for it (see fake_shared_event.h for what those cannot show)
//
// Contexts are checked: a call marked [ctx] on a thread without a current context fails. Calls and
// what is held are counted. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_API_H_
#define TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_API_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/cuda/fake_cuda_memory.h"
#include "worker/device/cuda/fake_shared_event.h"

namespace tessera {

class HostStream;

class FakeCudaApi : public CudaApi {
 public:
  struct Options {
    int driver_version = LeastDriverVersion();
    int num_devices = 1;
    // The machine's number of each device that this process sees, as CUDA_VISIBLE_DEVICES has it:
    // the device with that number has the same UUID in all processes. Empty: all, in order.
    std::vector<int> visible;
    int64_t memory_bytes = int64_t{1} << 30;  // Of all devices together.
    int64_t granularity_bytes = 64 << 10;
    int compute_capability = 9;     // Its major number.
    bool memory_management = true;  // The attributes of that name.
    bool descriptors = true;
    bool ipc_events = true;
    bool gpu_direct_rdma = true;    // The attribute of that name.
    bool rdma_is_refused = false;   // Though the attribute says otherwise.
    bool parts_of_one_gpu = false;  // All devices are: they have one place on the bus.
    // Not 0: of exporting memory, or of importing it, whatever the attributes say: as in a sandbox.
    int export_error = 0, import_error = 0;
    bool memory_needs_context = false;  // MemCreate and the calls that share are [ctx] too.
    // A copy from or to memory that is not pinned waits for its stream, as the driver may.
    bool pageable_copies_wait = false;
    double copy_bytes_per_second = 0;  // Of the device's clock; 0: copies take no time of it.
  };
  FakeCudaApi() : FakeCudaApi(Options()) {}
  explicit FakeCudaApi(const Options& options);
  ~FakeCudaApi() override;

  // The call ("MemAlloc") fails once with `error`, after `skip` more calls that do not.
  void FailCall(absl::string_view call, int error, int skip = 0);
  // Those that were told and did not come to it will not. How many that were.
  int ForgetFailures() ABSL_LOCKS_EXCLUDED(mu_);
  // In programs that are given fault points, each call is one: "cuda.MemcpyAsync" fails once, for
  // want of memory, and "cuda.call", which all calls hit, is Break(kCudaIllegalAddress).

  // From now on each call but the releases of contexts fails with `error`, and work that is queued
  // is dropped: a sticky error, or a device that is gone.
  void Break(int error) { broken_ = error; }

  int num_calls(absl::string_view call) const ABSL_LOCKS_EXCLUDED(mu_);
  // What is held, by kind: "contexts=1 streams=2"; empty when everything was given back.
  std::string Held() const ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<int> DriverGetVersion() override;
  absl::Status Init() override;
  absl::StatusOr<int> DeviceGetCount() override;
  absl::StatusOr<int> DeviceGetAttribute(CudaAttribute attribute, int device) override;
  absl::StatusOr<std::string> DeviceGetName(int device) override;
  absl::StatusOr<DeviceUuid> DeviceGetUuid(int device) override;
  static DeviceUuid UuidOf(int machines_number);
  absl::StatusOr<std::string> DeviceGetPciBusId(int device) override;
  absl::StatusOr<CudaContext*> DevicePrimaryCtxRetain(int device) override;
  absl::Status DevicePrimaryCtxRelease(int device) override;
  absl::Status CtxSetCurrent(CudaContext* context) override;
  absl::StatusOr<CudaPriorityRange> CtxGetStreamPriorityRange() override;
  absl::StatusOr<CudaMemInfo> MemGetInfo() override;
  absl::StatusOr<CudaAddress> MemAlloc(int64_t size_bytes) override;
  absl::Status MemFree(CudaAddress address) override;
  absl::StatusOr<void*> MemHostAlloc(int64_t size_bytes) override;
  absl::Status MemFreeHost(void* memory) override;
  // Pins nothing: it remembers what is registered.
  absl::Status MemHostRegister(void* memory, int64_t size_bytes) override;
  absl::Status MemHostUnregister(void* memory) override;
  absl::StatusOr<CudaStreamHandle*> StreamCreateWithPriority(int priority) override;
  absl::Status StreamDestroy(CudaStreamHandle* stream) override;
  absl::Status StreamSynchronize(CudaStreamHandle* stream) override;
  absl::Status CtxSynchronize() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StreamWaitEvent(CudaStreamHandle* stream, CudaEventHandle* event) override;
  absl::Status StreamWaitValue32(CudaStreamHandle* stream, CudaAddress word,
                                 uint32_t value) override;
  absl::Status LaunchHostFunc(CudaStreamHandle* stream, void (*function)(void*),
                              void* argument) override;
  absl::Status MemcpyAsync(CudaAddress dst, CudaAddress src, int64_t size_bytes,
                           CudaStreamHandle* stream) override;
  absl::Status MemsetD8Async(CudaAddress dst, uint8_t value, int64_t size_bytes,
                             CudaStreamHandle* stream) override;
  absl::StatusOr<CudaEventHandle*> EventCreate() override;
  absl::Status EventDestroy(CudaEventHandle* event) override;
  absl::Status EventRecord(CudaEventHandle* event, CudaStreamHandle* stream) override;
  absl::StatusOr<bool> EventQuery(CudaEventHandle* event) override;
  absl::Status EventSynchronize(CudaEventHandle* event) override;
  absl::StatusOr<CudaEventHandle*> EventCreateTimed() override;
  absl::Status StreamBeginCapture(CudaStreamHandle* stream) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<CudaGraphHandle*> StreamEndCapture(CudaStreamHandle* stream) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status GraphLaunch(CudaGraphHandle* graph, CudaStreamHandle* stream) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status GraphDestroy(CudaGraphHandle* graph) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<double> EventElapsedTime(CudaEventHandle* start, CudaEventHandle* end) override;
  absl::StatusOr<CudaEventHandle*> EventCreateInterprocess() override;
  absl::StatusOr<CudaIpcEventHandle> IpcGetEventHandle(CudaEventHandle* event) override;
  absl::StatusOr<CudaEventHandle*> IpcOpenEventHandle(const CudaIpcEventHandle& handle) override;
  absl::StatusOr<int64_t> MemGetAllocationGranularity(int device) override;
  absl::StatusOr<CudaMemHandle> MemCreate(int device, int64_t size_bytes,
                                          bool gpu_direct_rdma) override;
  absl::Status MemRelease(CudaMemHandle handle) override;
  absl::StatusOr<UniqueFd> MemExportToShareableHandle(CudaMemHandle handle) override;
  absl::StatusOr<CudaMemHandle> MemImportFromShareableHandle(int descriptor) override;
  absl::StatusOr<CudaAddress> MemAddressReserve(int64_t size_bytes,
                                                int64_t alignment_bytes) override;
  absl::Status MemAddressFree(CudaAddress address, int64_t size_bytes) override;
  absl::Status MemMap(CudaAddress address, int64_t size_bytes, CudaMemHandle handle) override;
  absl::Status MemUnmap(CudaAddress address, int64_t size_bytes) override;
  absl::Status MemSetAccess(CudaAddress address, int64_t size_bytes, int device,
                            CudaAccess access) override;

  // Runs `work` in the order of the stream, as a kernel would, or keeps it for a graph; dropped
  // once the context is broken.
  void RunOnStream(CudaStreamHandle* stream, absl::AnyInvocable<void()> work);
  // Returns once what was enqueued is done. No call of the driver's: it neither counts nor fails.
  void AwaitStream(CudaStreamHandle* stream);
  // Whether these bytes are in one piece that MemAlloc or MemHostAlloc gave, or that is registered.
  bool Holds(const void* address, int64_t size_bytes) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it is a run of whole granules that MemMap mapped, as MemCreate made them.
  bool IsSharable(const void* address, int64_t size_bytes) const {
    return memory_.IsMapped(reinterpret_cast<CudaAddress>(address), size_bytes);
  }
  // The device's clock, which timed events read: it stands still but for copies and for this.
  void AdvanceClock(double seconds) { clock_nanos_ += static_cast<int64_t>(seconds * 1e9); }
  // Pieces that MemCreate made for the network's reach.
  int num_for_rdma() const { return num_for_rdma_; }
  // What StreamCreateWithPriority was given.
  int PriorityOf(CudaStreamHandle* stream) const;
  // That were created with one below 0.
  int num_urgent_streams() const { return num_urgent_streams_; }

 private:
  enum class Needs { kNothing, kContext };
  struct Planned {
    int error = 0;
    int skip = 0;
  };
  // Counts the call, and returns the error that it was told to make, or the sticky one.
  absl::Status Enter(absl::string_view call, Needs needs) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsPageable(CudaAddress address) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EnterSharing(absl::string_view call);
  absl::Status CheckDevice(absl::string_view call, int device) const;
  CudaEventHandle* NewEvent(bool timed, std::shared_ptr<FakeSharedEvent> shared = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status HostMemory(absl::string_view call, int64_t size_bytes, void** memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FreeHostMemory(absl::string_view call, void* memory) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  std::atomic<int> broken_{0};
  std::atomic<int64_t> clock_nanos_{0};
  std::atomic<int> num_for_rdma_{0}, num_urgent_streams_{0};
  FakeCudaMemory memory_;
  mutable absl::Mutex mu_;
  std::multimap<std::string, Planned> planned_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mu_);
  bool initialized_ ABSL_GUARDED_BY(mu_) = false;
  int contexts_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<CudaStreamHandle*, std::shared_ptr<HostStream>> streams_ ABSL_GUARDED_BY(mu_);
  int events_ ABSL_GUARDED_BY(mu_) = 0;
  int graphs_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<void*, int64_t> allocations_ ABSL_GUARDED_BY(mu_);
  std::map<void*, int64_t> registered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_API_H_
