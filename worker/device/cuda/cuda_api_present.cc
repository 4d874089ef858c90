// LoadCudaApi of a build with the toolkit.
#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cuda.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/cuda/cuda_error.h"

// Every call that is made. The header maps names to versions ("cuMemAlloc_v2"), and so do these.
// clang-format off
#define TESSERA_CUDA_CALLS(X) \
  X(cuDriverGetVersion) X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetAttribute) \
  X(cuDeviceGetName) X(cuDeviceGetUuid_v2) X(cuDeviceGetPCIBusId) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
  X(cuCtxGetStreamPriorityRange) X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) \
  X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) \
  X(cuStreamWaitEvent) X(cuStreamWaitValue32) X(cuLaunchHostFunc) X(cuMemcpyAsync) \
  X(cuMemsetD8Async) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) \
  X(cuEventSynchronize) X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle) X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemAddressReserve) \
  X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) \
  X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) X(cuGraphDestroy) \
  X(cuGraphLaunch) X(cuGraphExecDestroy)
// clang-format on

#define TESSERA_CUDA_STRING(name) #name
#define TESSERA_CUDA_NAME(name) TESSERA_CUDA_STRING(name)

namespace tessera {
namespace {

static_assert(kCudaOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCudaDeviceUnavailable == CUDA_ERROR_DEVICE_UNAVAILABLE);
static_assert(kCudaNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kCudaInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCudaIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(kCudaNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kCudaSystemDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(kCudaStreamCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(static_cast<int>(CudaAttribute::kVirtualMemoryManagementSupported) ==
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(static_cast<int>(CudaAttribute::kPosixFileDescriptorSupported) ==
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(static_cast<int>(CudaAttribute::kGpuDirectRdmaWithMemCreateSupported) ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
static_assert(static_cast<int>(CudaAttribute::kCanUseHostPointerForRegisteredMem) ==
              CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
static_assert(static_cast<int>(CudaAttribute::kIpcEventSupported) ==
              CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
static_assert(sizeof(CudaIpcEventHandle) == sizeof(CUipcEventHandle));
static_assert(kCudaHostMemoryAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(kCudaHostMemoryNotRegistered == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
static_assert(static_cast<int>(CudaAccess::kRead) == CU_MEM_ACCESS_FLAGS_PROT_READ);
static_assert(static_cast<int>(CudaAccess::kReadWrite) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

CUstream Native(CudaStreamHandle* stream) { return reinterpret_cast<CUstream>(stream); }
CUgraphExec Native(CudaGraphHandle* graph) { return reinterpret_cast<CUgraphExec>(graph); }
CUevent Native(CudaEventHandle* event) { return reinterpret_cast<CUevent>(event); }

class Driver : public CudaApi {
 public:
  absl::Status Load() {
    // Not linked: programs also run on nodes without a driver (docs/adr/0008).
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::NotFoundError(dlerror());
#define TESSERA_CUDA_RESOLVE(name)                                                             \
  name##_ = reinterpret_cast<decltype(name##_)>(dlsym(library, TESSERA_CUDA_NAME(name)));      \
  if (name##_ == nullptr) {                                                                    \
    return absl::NotFoundError(absl::StrCat("libcuda.so.1 has no ", TESSERA_CUDA_NAME(name))); \
  }
    TESSERA_CUDA_CALLS(TESSERA_CUDA_RESOLVE)
#undef TESSERA_CUDA_RESOLVE
    // By its old name, see below. Null where the driver lacks it: then nothing is measured.
    elapsed_time_ = reinterpret_cast<decltype(elapsed_time_)>(dlsym(library, "cuEventElapsedTime"));
    return absl::OkStatus();
  }

  absl::StatusOr<int> DriverGetVersion() override {
    int version = 0;
    RETURN_IF_ERROR(CudaStatus("cuDriverGetVersion", cuDriverGetVersion_(&version)));
    return version;
  }
  absl::Status Init() override { return CudaStatus("cuInit", cuInit_(0)); }

  absl::StatusOr<int> DeviceGetCount() override {
    int count = 0;
    RETURN_IF_ERROR(CudaStatus("cuDeviceGetCount", cuDeviceGetCount_(&count)));
    return count;
  }
  absl::StatusOr<int> DeviceGetAttribute(CudaAttribute attribute, int device) override {
    int value = 0;
    const auto native = static_cast<CUdevice_attribute>(attribute);
    RETURN_IF_ERROR(
        CudaStatus("cuDeviceGetAttribute", cuDeviceGetAttribute_(&value, native, device)));
    return value;
  }
  absl::StatusOr<std::string> DeviceGetName(int device) override {
    char name[256] = "";
    RETURN_IF_ERROR(CudaStatus("cuDeviceGetName", cuDeviceGetName_(name, sizeof(name), device)));
    return std::string(name);
  }
  absl::StatusOr<DeviceUuid> DeviceGetUuid(int device) override {
    CUuuid native;
    RETURN_IF_ERROR(CudaStatus("cuDeviceGetUuid", cuDeviceGetUuid_v2_(&native, device)));
    DeviceUuid uuid;
    static_assert(sizeof(native.bytes) == sizeof(uuid));
    std::memcpy(uuid.data(), native.bytes, sizeof(uuid));
    return uuid;
  }
  absl::StatusOr<std::string> DeviceGetPciBusId(int device) override {
    char id[32] = "";
    RETURN_IF_ERROR(
        CudaStatus("cuDeviceGetPCIBusId", cuDeviceGetPCIBusId_(id, sizeof(id), device)));
    return std::string(id);
  }

  absl::StatusOr<CudaContext*> DevicePrimaryCtxRetain(int device) override {
    CUdevice native = 0;
    RETURN_IF_ERROR(CudaStatus("cuDeviceGet", cuDeviceGet_(&native, device)));
    CUcontext context = nullptr;
    RETURN_IF_ERROR(
        CudaStatus("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain_(&context, native)));
    return reinterpret_cast<CudaContext*>(context);
  }
  absl::Status DevicePrimaryCtxRelease(int device) override {
    return CudaStatus("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_(device));
  }
  absl::Status CtxSetCurrent(CudaContext* context) override {
    return CudaStatus("cuCtxSetCurrent", cuCtxSetCurrent_(reinterpret_cast<CUcontext>(context)));
  }
  absl::StatusOr<CudaPriorityRange> CtxGetStreamPriorityRange() override {
    CudaPriorityRange range;
    RETURN_IF_ERROR(CudaStatus("cuCtxGetStreamPriorityRange",
                               cuCtxGetStreamPriorityRange_(&range.least, &range.greatest)));
    return range;
  }

  absl::StatusOr<CudaMemInfo> MemGetInfo() override {
    size_t free = 0;
    size_t total = 0;
    RETURN_IF_ERROR(CudaStatus("cuMemGetInfo", cuMemGetInfo_(&free, &total)));
    return CudaMemInfo{static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
  absl::StatusOr<CudaAddress> MemAlloc(int64_t size_bytes) override {
    CUdeviceptr address = 0;
    RETURN_IF_ERROR(CudaStatus("cuMemAlloc", cuMemAlloc_(&address, size_bytes)));
    return address;
  }
  absl::Status MemFree(CudaAddress address) override {
    return CudaStatus("cuMemFree", cuMemFree_(address));
  }
  absl::StatusOr<void*> MemHostAlloc(int64_t size_bytes) override {
    void* memory = nullptr;
    // Portable: pinned for all contexts of the process.
    const unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    RETURN_IF_ERROR(CudaStatus("cuMemHostAlloc", cuMemHostAlloc_(&memory, size_bytes, flags)));
    return memory;
  }
  absl::Status MemFreeHost(void* memory) override {
    return CudaStatus("cuMemFreeHost", cuMemFreeHost_(memory));
  }
  absl::Status MemHostRegister(void* memory, int64_t size_bytes) override {
    const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    return CudaStatus("cuMemHostRegister", cuMemHostRegister_(memory, size_bytes, flags));
  }
  absl::Status MemHostUnregister(void* memory) override {
    return CudaStatus("cuMemHostUnregister", cuMemHostUnregister_(memory));
  }

  absl::StatusOr<CudaStreamHandle*> StreamCreateWithPriority(int priority) override {
    CUstream stream = nullptr;
    // Non-blocking: it must not wait for the legacy stream, which the user's code may use.
    RETURN_IF_ERROR(
        CudaStatus("cuStreamCreateWithPriority",
                   cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, priority)));
    return reinterpret_cast<CudaStreamHandle*>(stream);
  }
  absl::Status StreamDestroy(CudaStreamHandle* stream) override {
    return CudaStatus("cuStreamDestroy", cuStreamDestroy_(Native(stream)));
  }
  absl::Status CtxSynchronize() override {
    return CudaStatus("cuCtxSynchronize", cuCtxSynchronize_());
  }
  absl::Status StreamSynchronize(CudaStreamHandle* stream) override {
    return CudaStatus("cuStreamSynchronize", cuStreamSynchronize_(Native(stream)));
  }
  absl::Status StreamWaitEvent(CudaStreamHandle* stream, CudaEventHandle* event) override {
    return CudaStatus("cuStreamWaitEvent", cuStreamWaitEvent_(Native(stream), Native(event), 0));
  }
  absl::Status StreamWaitValue32(CudaStreamHandle* stream, CudaAddress word,
                                 uint32_t value) override {
    // Greater or equal by the signed difference, so tickets may wrap around.
    return CudaStatus("cuStreamWaitValue32",
                      cuStreamWaitValue32_(Native(stream), word, value, CU_STREAM_WAIT_VALUE_GEQ));
  }
  absl::Status LaunchHostFunc(CudaStreamHandle* stream, void (*function)(void*),
                              void* argument) override {
    return CudaStatus("cuLaunchHostFunc", cuLaunchHostFunc_(Native(stream), function, argument));
  }
  absl::Status MemcpyAsync(CudaAddress dst, CudaAddress src, int64_t size_bytes,
                           CudaStreamHandle* stream) override {
    return CudaStatus("cuMemcpyAsync", cuMemcpyAsync_(dst, src, size_bytes, Native(stream)));
  }
  absl::Status MemsetD8Async(CudaAddress dst, uint8_t value, int64_t size_bytes,
                             CudaStreamHandle* stream) override {
    return CudaStatus("cuMemsetD8Async", cuMemsetD8Async_(dst, value, size_bytes, Native(stream)));
  }
  absl::StatusOr<CudaEventHandle*> EventCreate() override {
    // Timing costs time. A waiting thread sleeps instead of burning a core.
    return NewEvent(CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  }
  absl::Status EventDestroy(CudaEventHandle* event) override {
    return CudaStatus("cuEventDestroy", cuEventDestroy_(Native(event)));
  }
  absl::Status EventRecord(CudaEventHandle* event, CudaStreamHandle* stream) override {
    return CudaStatus("cuEventRecord", cuEventRecord_(Native(event), Native(stream)));
  }
  absl::StatusOr<bool> EventQuery(CudaEventHandle* event) override {
    const CUresult result = cuEventQuery_(Native(event));
    // Not an error: a context keeps the first one that it sees.
    if (result == CUDA_ERROR_NOT_READY) return false;
    RETURN_IF_ERROR(CudaStatus("cuEventQuery", result));
    return true;
  }
  absl::Status EventSynchronize(CudaEventHandle* event) override {
    return CudaStatus("cuEventSynchronize", cuEventSynchronize_(Native(event)));
  }
  absl::StatusOr<CudaEventHandle*> EventCreateTimed() override {
    return NewEvent(CU_EVENT_BLOCKING_SYNC);
  }
  absl::StatusOr<double> EventElapsedTime(CudaEventHandle* start, CudaEventHandle* end) override {
    if (elapsed_time_ == nullptr) return CudaStatus("cuEventElapsedTime", kCudaNotSupported);
    float milliseconds = 0;
    RETURN_IF_ERROR(
        CudaStatus("cuEventElapsedTime", elapsed_time_(&milliseconds, Native(start), Native(end))));
    return milliseconds;
  }

  absl::Status StreamBeginCapture(CudaStreamHandle* stream) override {
    // Of this thread: other threads allocate and copy meanwhile.
    return CudaStatus("cuStreamBeginCapture",
                      cuStreamBeginCapture_(Native(stream), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  }
  absl::StatusOr<CudaGraphHandle*> StreamEndCapture(CudaStreamHandle* stream) override {
    CUgraph graph = nullptr;
    RETURN_IF_ERROR(CudaStatus("cuStreamEndCapture", cuStreamEndCapture_(Native(stream), &graph)));
    CUgraphExec instance = nullptr;
    absl::Status status =
        CudaStatus("cuGraphInstantiate", cuGraphInstantiateWithFlags_(&instance, graph, 0));
    // The instance does not need it.
    status.Update(CudaStatus("cuGraphDestroy", cuGraphDestroy_(graph)));
    RETURN_IF_ERROR(status);
    return reinterpret_cast<CudaGraphHandle*>(instance);
  }
  absl::Status GraphLaunch(CudaGraphHandle* graph, CudaStreamHandle* stream) override {
    return CudaStatus("cuGraphLaunch", cuGraphLaunch_(Native(graph), Native(stream)));
  }
  absl::Status GraphDestroy(CudaGraphHandle* graph) override {
    return CudaStatus("cuGraphExecDestroy", cuGraphExecDestroy_(Native(graph)));
  }

  absl::StatusOr<CudaEventHandle*> EventCreateInterprocess() override {
    // The driver allows timing for no event of several processes.
    return NewEvent(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  }
  absl::StatusOr<CudaIpcEventHandle> IpcGetEventHandle(CudaEventHandle* event) override {
    CUipcEventHandle native;
    RETURN_IF_ERROR(
        CudaStatus("cuIpcGetEventHandle", cuIpcGetEventHandle_(&native, Native(event))));
    CudaIpcEventHandle handle;
    std::memcpy(handle.bytes, native.reserved, sizeof(handle.bytes));
    return handle;
  }
  absl::StatusOr<CudaEventHandle*> IpcOpenEventHandle(const CudaIpcEventHandle& handle) override {
    CUipcEventHandle native;
    std::memcpy(native.reserved, handle.bytes, sizeof(handle.bytes));
    CUevent event = nullptr;
    RETURN_IF_ERROR(CudaStatus("cuIpcOpenEventHandle", cuIpcOpenEventHandle_(&event, native)));
    return reinterpret_cast<CudaEventHandle*>(event);
  }

  absl::StatusOr<int64_t> MemGetAllocationGranularity(int device) override {
    // Of memory that the network reaches, where there is such: it may be the larger one, and all
    // memory that processes share has the same.
    int rdma = 0;
    constexpr auto kRdma = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    RETURN_IF_ERROR(
        CudaStatus("cuDeviceGetAttribute", cuDeviceGetAttribute_(&rdma, kRdma, device)));
    size_t granularity = 0;
    const CUmemAllocationProp properties = PropertiesOf(device, rdma != 0);
    RETURN_IF_ERROR(
        CudaStatus("cuMemGetAllocationGranularity",
                   cuMemGetAllocationGranularity_(&granularity, &properties,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)));
    return static_cast<int64_t>(granularity);
  }
  absl::StatusOr<CudaMemHandle> MemCreate(int device, int64_t size_bytes,
                                          bool gpu_direct_rdma) override {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = PropertiesOf(device, gpu_direct_rdma);
    RETURN_IF_ERROR(
        CudaStatus("cuMemCreate", cuMemCreate_(&handle, size_bytes, &properties, /*flags=*/0)));
    return handle;
  }
  absl::Status MemRelease(CudaMemHandle handle) override {
    return CudaStatus("cuMemRelease", cuMemRelease_(handle));
  }
  absl::StatusOr<UniqueFd> MemExportToShareableHandle(CudaMemHandle handle) override {
    int descriptor = -1;
    // Owned at once, so that no error below leaks it.
    RETURN_IF_ERROR(CudaStatus(
        "cuMemExportToShareableHandle",
        cuMemExportToShareableHandle_(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      /*flags=*/0)));
    UniqueFd owned(descriptor);
    // It holds the memory, which programs that are started from here must not.
    if (fcntl(owned.get(), F_SETFD, FD_CLOEXEC) != 0)
      return ErrnoStatus(errno, "a descriptor of the device's memory");
    return owned;
  }
  absl::StatusOr<CudaMemHandle> MemImportFromShareableHandle(int descriptor) override {
    CUmemGenericAllocationHandle handle = 0;
    // The call takes the descriptor itself in place of a pointer.
    void* as_pointer = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
    RETURN_IF_ERROR(CudaStatus("cuMemImportFromShareableHandle",
                               cuMemImportFromShareableHandle_(
                                   &handle, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    return handle;
  }
  absl::StatusOr<CudaAddress> MemAddressReserve(int64_t size_bytes,
                                                int64_t alignment_bytes) override {
    CUdeviceptr address = 0;
    RETURN_IF_ERROR(CudaStatus(
        "cuMemAddressReserve",
        cuMemAddressReserve_(&address, size_bytes, alignment_bytes, /*addr=*/0, /*flags=*/0)));
    return address;
  }
  absl::Status MemAddressFree(CudaAddress address, int64_t size_bytes) override {
    return CudaStatus("cuMemAddressFree", cuMemAddressFree_(address, size_bytes));
  }
  absl::Status MemMap(CudaAddress address, int64_t size_bytes, CudaMemHandle handle) override {
    return CudaStatus("cuMemMap", cuMemMap_(address, size_bytes, /*offset=*/0, handle, 0));
  }
  absl::Status MemUnmap(CudaAddress address, int64_t size_bytes) override {
    return CudaStatus("cuMemUnmap", cuMemUnmap_(address, size_bytes));
  }
  absl::Status MemSetAccess(CudaAddress address, int64_t size_bytes, int device,
                            CudaAccess access) override {
    CUmemAccessDesc descriptor = {};
    // Only the location counts here.
    descriptor.location = PropertiesOf(device, /*gpu_direct_rdma=*/false).location;
    descriptor.flags = static_cast<CUmemAccess_flags>(access);
    return CudaStatus("cuMemSetAccess", cuMemSetAccess_(address, size_bytes, &descriptor, 1));
  }

 private:
  absl::StatusOr<CudaEventHandle*> NewEvent(unsigned flags) {
    CUevent event = nullptr;
    RETURN_IF_ERROR(CudaStatus("cuEventCreate", cuEventCreate_(&event, flags)));
    return reinterpret_cast<CudaEventHandle*>(event);
  }
  static CUmemAllocationProp PropertiesOf(int device, bool gpu_direct_rdma) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.allocFlags.gpuDirectRDMACapable = gpu_direct_rdma ? 1 : 0;
    return properties;
  }

#define TESSERA_CUDA_DECLARE(name) decltype(&name) name##_ = nullptr;
  TESSERA_CUDA_CALLS(TESSERA_CUDA_DECLARE)
#undef TESSERA_CUDA_DECLARE
  // Newer headers map the name to one that older drivers lack, and only measuring calls it.
  CUresult (*elapsed_time_)(float*, CUevent, CUevent) = nullptr;
};

}  // namespace

int LeastDriverVersion() { return std::max(12000, CUDA_VERSION / 1000 * 1000); }

// Once in a process. A failure stays: a driver is not installed meanwhile.
absl::StatusOr<CudaApi*> LoadCudaApi() {
  static Driver* const driver = new Driver();  // Never destroyed: threads may outlive main.
  static const absl::Status loaded = driver->Load();
  if (!loaded.ok()) return loaded;
  return driver;
}

}  // namespace tessera
