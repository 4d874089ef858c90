// The driver's calls that Tessera makes, under CUDA's names without "cu", each with a Status that
// names the call and the error (see cuda_error.h). Thin: no policy, no state of its own.
//
//   LoadCudaApi()  the machine's libcuda.so.1, by dlopen       FakeCudaApi  threads and memfds
//
// All but kernels goes by the driver and nothing by the runtime: one space of errors, memory that
// other processes can map, and a keeper that needs no context. Kernels launch by the runtime, which
// is linked statically and shares the primary context.
//
// Handles are opaque; 0 and null are none. Addresses are unified: one number space for host and
// device. Sizes are BYTES. Calls marked [ctx] need a context that CtxSetCurrent made current on the
// calling thread, and return FailedPrecondition without. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_API_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_API_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "shm/device_name.h"

namespace tessera {

using CudaAddress = uint64_t;
using CudaMemHandle = uint64_t;
struct CudaContext;
struct CudaStreamHandle;
struct CudaEventHandle;
struct CudaGraphHandle;

// Names an event to other processes of this host. Opaque; may be sent as it is.
struct CudaIpcEventHandle {
  char bytes[64];
};

// The numbers are CUDA's.
enum class CudaAttribute : int {
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  // Registered host memory has one address for the host and this device.
  kCanUseHostPointerForRegisteredMem = 91,
  kVirtualMemoryManagementSupported = 102,
  kPosixFileDescriptorSupported = 103,
  // MemCreate may make memory that other devices of the machine, as its network's, reach directly.
  kGpuDirectRdmaWithMemCreateSupported = 110,
  kIpcEventSupported = 125,
};

enum class CudaAccess : int { kRead = 1, kReadWrite = 3 };

struct CudaMemInfo {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// Lower is more urgent: greatest <= least.
struct CudaPriorityRange {
  int least = 0;
  int greatest = 0;
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;

  // --- The machine. Each but DriverGetVersion needs Init before it ---
  virtual absl::StatusOr<int> DriverGetVersion() = 0;  // 1000 * major + 10 * minor.
  virtual absl::Status Init() = 0;
  virtual absl::StatusOr<int> DeviceGetCount() = 0;
  virtual absl::StatusOr<int> DeviceGetAttribute(CudaAttribute attribute, int device) = 0;
  virtual absl::StatusOr<std::string> DeviceGetName(int device) = 0;
  virtual absl::StatusOr<DeviceUuid> DeviceGetUuid(int device) = 0;  // Of a MIG device its own.
  // "0000:3b:00.0"; parts of one GPU (MIG) have the same.
  virtual absl::StatusOr<std::string> DeviceGetPciBusId(int device) = 0;

  // --- Contexts ---
  virtual absl::StatusOr<CudaContext*> DevicePrimaryCtxRetain(int device) = 0;
  virtual absl::Status DevicePrimaryCtxRelease(int device) = 0;
  virtual absl::Status CtxSetCurrent(CudaContext* context) = 0;  // Null: none is current.
  virtual absl::StatusOr<CudaPriorityRange> CtxGetStreamPriorityRange() = 0;  // [ctx]

  // --- Memory of one process [ctx] ---
  virtual absl::StatusOr<CudaMemInfo> MemGetInfo() = 0;
  virtual absl::StatusOr<CudaAddress> MemAlloc(int64_t size_bytes) = 0;
  virtual absl::Status MemFree(CudaAddress address) = 0;
  virtual absl::StatusOr<void*> MemHostAlloc(int64_t size_bytes) = 0;  // Pinned, portable, mapped.
  virtual absl::Status MemFreeHost(void* memory) = 0;
  // Pins memory that the process has mapped, shared memory too: portable, and mapped for the device
  // (at what address: kCanUseHostPointerForRegisteredMem). Whole pages are pinned. Unregistered
  // before it is unmapped. What is registered already, in part even, is AlreadyExists; what is not
  // registered by just this address is FailedPrecondition.
  virtual absl::Status MemHostRegister(void* memory, int64_t size_bytes) = 0;
  virtual absl::Status MemHostUnregister(void* memory) = 0;

  // Waits for all streams of the context, regardless of which code in the process made them [ctx].
  virtual absl::Status CtxSynchronize() = 0;

  // --- Streams and events [ctx]. Streams do not wait for the legacy default stream ---
  virtual absl::StatusOr<CudaStreamHandle*> StreamCreateWithPriority(int priority) = 0;
  virtual absl::Status StreamDestroy(CudaStreamHandle* stream) = 0;
  virtual absl::Status StreamSynchronize(CudaStreamHandle* stream) = 0;
  virtual absl::Status StreamWaitEvent(CudaStreamHandle* stream, CudaEventHandle* event) = 0;
  // Holds the stream until the word has reached `value`, counted in a circle of 2^32.
  virtual absl::Status StreamWaitValue32(CudaStreamHandle* stream, CudaAddress word,
                                         uint32_t value) = 0;
  // `function` calls nothing of CUDA and does not block. It is not called once the context is
  // broken.
  virtual absl::Status LaunchHostFunc(CudaStreamHandle* stream, void (*function)(void*),
                                      void* argument) = 0;
  virtual absl::Status MemcpyAsync(CudaAddress dst, CudaAddress src, int64_t size_bytes,
                                   CudaStreamHandle* stream) = 0;
  virtual absl::Status MemsetD8Async(CudaAddress dst, uint8_t value, int64_t size_bytes,
                                     CudaStreamHandle* stream) = 0;
  virtual absl::StatusOr<CudaEventHandle*> EventCreate() = 0;  // Without timing; waits sleep.
  virtual absl::Status EventDestroy(CudaEventHandle* event) = 0;
  virtual absl::Status EventRecord(CudaEventHandle* event, CudaStreamHandle* stream) = 0;
  virtual absl::StatusOr<bool> EventQuery(CudaEventHandle* event) = 0;  // Whether it is reached.
  virtual absl::Status EventSynchronize(CudaEventHandle* event) = 0;
  virtual absl::StatusOr<CudaEventHandle*> EventCreateTimed() = 0;  // As EventCreate, and a time.
  // Between two timed events that were reached, in milliseconds.
  virtual absl::StatusOr<double> EventElapsedTime(CudaEventHandle* start, CudaEventHandle* end) = 0;

  // --- Graphs: what a stream is given, kept to be enqueued as a whole, as often as one likes
  // [ctx]. Addresses and sizes are kept with it --- What the calling thread enqueues on the stream
  // from now on is kept and not run. It waits for nothing and calls nothing that would.
  virtual absl::Status StreamBeginCapture(CudaStreamHandle* stream) = 0;
  // What was kept since; after an error nothing is, and the stream runs what it gets.
  virtual absl::StatusOr<CudaGraphHandle*> StreamEndCapture(CudaStreamHandle* stream) = 0;
  virtual absl::Status GraphLaunch(CudaGraphHandle* graph, CudaStreamHandle* stream) = 0;
  virtual absl::Status GraphDestroy(CudaGraphHandle* graph) = 0;

  // --- Events that processes share [ctx]. Each of them may record, wait for and query the event,
  // and destroys what it created or opened. It is unusable everywhere once its creator has
  // destroyed it. A wait takes the last record that was made before, in any process ---
  virtual absl::StatusOr<CudaEventHandle*> EventCreateInterprocess() = 0;  // As EventCreate.
  virtual absl::StatusOr<CudaIpcEventHandle> IpcGetEventHandle(CudaEventHandle* event) = 0;
  virtual absl::StatusOr<CudaEventHandle*> IpcOpenEventHandle(  // Another process's.
      const CudaIpcEventHandle& handle) = 0;

  // --- Memory that processes share by POSIX descriptors. Sizes are multiples of the granularity.
  // Physical memory lives while a handle, a mapping or a descriptor of any process holds it ---
  virtual absl::StatusOr<int64_t> MemGetAllocationGranularity(int device) = 0;
  // `gpu_direct_rdma` only where kGpuDirectRdmaWithMemCreateSupported is not 0.
  virtual absl::StatusOr<CudaMemHandle> MemCreate(int device, int64_t size_bytes,
                                                  bool gpu_direct_rdma) = 0;
  virtual absl::Status MemRelease(CudaMemHandle handle) = 0;
  virtual absl::StatusOr<UniqueFd> MemExportToShareableHandle(CudaMemHandle handle) = 0;
  // The descriptor stays the caller's. A wrong one is InvalidArgument or FailedPrecondition.
  virtual absl::StatusOr<CudaMemHandle> MemImportFromShareableHandle(int descriptor) = 0;
  virtual absl::StatusOr<CudaAddress> MemAddressReserve(int64_t size_bytes,
                                                        int64_t alignment_bytes) = 0;
  virtual absl::Status MemAddressFree(CudaAddress address, int64_t size_bytes) = 0;
  virtual absl::Status MemMap(CudaAddress address, int64_t size_bytes, CudaMemHandle handle) = 0;
  virtual absl::Status MemUnmap(CudaAddress address, int64_t size_bytes) = 0;
  virtual absl::Status MemSetAccess(CudaAddress address, int64_t size_bytes, int device,
                                    CudaAccess access) = 0;
};

// The oldest driver that serves this program, as CUDA numbers versions: that of the toolkit's major
// version, whose runtime is linked into it; at least one whose waits for words of memory need no
// permission.
int LeastDriverVersion();

// The machine's driver, loaded at the first call and never unloaded. Thread-safe.
// Errors: Unimplemented  built without CUDA
//         NotFound       libcuda.so.1 is missing, or lacks a call: the message names it
absl::StatusOr<CudaApi*> LoadCudaApi();

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_API_H_
