#include "worker/device/cuda/fake_cuda_api.h"

#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_handles.h"

namespace tessera {
namespace {

constexpr int64_t kAllocationAlignmentBytes = 256;

// As the driver's, and as far as a fake can tell one from another.
thread_local CudaContext* current_context = nullptr;

void* Pointer(CudaAddress address) { return reinterpret_cast<void*>(address); }

bool LiesIn(const std::map<void*, int64_t>& pieces, const void* address, int64_t size_bytes) {
  auto after = pieces.upper_bound(const_cast<void*>(address));
  if (after == pieces.begin()) return false;
  const auto& [begin, held_bytes] = *--after;
  return static_cast<const char*>(address) + size_bytes <= static_cast<char*>(begin) + held_bytes;
}

FakeCudaApi::Options WithVisible(FakeCudaApi::Options options) {
  if (!options.visible.empty()) options.num_devices = static_cast<int>(options.visible.size());
  return options;
}

bool Overlaps(const std::map<void*, int64_t>& pieces, const void* address, int64_t size_bytes) {
  const char* const begin = static_cast<const char*>(address);
  auto after = pieces.lower_bound(const_cast<char*>(begin) + size_bytes);
  if (after == pieces.begin()) return false;
  --after;
  return static_cast<char*>(after->first) + after->second > begin;
}

}  // namespace

FakeCudaApi::FakeCudaApi(const Options& options)
    : options_(WithVisible(options)), memory_(options.memory_bytes, options.granularity_bytes) {}

FakeCudaApi::~FakeCudaApi() {
  if (current_context == reinterpret_cast<CudaContext*>(this)) current_context = nullptr;
  for (const auto& [data, size_bytes] : allocations_) std::free(data);
}

void FakeCudaApi::FailCall(absl::string_view call, int error, int skip) {
  absl::MutexLock lock(&mu_);
  planned_.emplace(std::string(call), Planned{error, skip});
}

int FakeCudaApi::ForgetFailures() {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(std::exchange(planned_, {}).size());
}

int FakeCudaApi::num_calls(absl::string_view call) const {
  absl::MutexLock lock(&mu_);
  const auto found = calls_.find(std::string(call));
  return found == calls_.end() ? 0 : found->second;
}

std::string FakeCudaApi::Held() const {
  std::string text = memory_.Held();
  absl::MutexLock lock(&mu_);
  if (contexts_ + streams_.size() + events_ + allocations_.size() > 0) {
    absl::StrAppend(&text, " contexts=", contexts_, " streams=", streams_.size(),
                    " events=", events_, " allocations=", allocations_.size());
  }
  if (!registered_.empty()) absl::StrAppend(&text, " registered=", registered_.size());
  if (graphs_ > 0) absl::StrAppend(&text, " graphs=", graphs_);
  return text;
}

bool FakeCudaApi::Holds(const void* address, int64_t size_bytes) const {
  absl::MutexLock lock(&mu_);
  return LiesIn(allocations_, address, size_bytes) || LiesIn(registered_, address, size_bytes);
}

absl::Status FakeCudaApi::Enter(absl::string_view call, Needs needs) {
  const std::string native = absl::StrCat("cu", call);
  if (!FaultPoint("cuda.call").ok()) Break(kCudaIllegalAddress);
  if (!FaultPoint(absl::StrCat("cuda.", call)).ok()) return CudaStatus(native, kCudaOutOfMemory);
  absl::MutexLock lock(&mu_);
  ++calls_[std::string(call)];
  const auto [begin, end] = planned_.equal_range(std::string(call));
  for (auto planned = begin; planned != end; ++planned) {
    if (planned->second.skip-- > 0) continue;
    const int error = planned->second.error;
    planned_.erase(planned);
    return CudaStatus(native, error);
  }
  if (broken_ != kCudaSuccess) return CudaStatus(native, broken_);
  if (call != "Init" && call != "DriverGetVersion" && !initialized_) {
    return CudaStatus(native, kCudaNotInitialized);
  }
  if (needs == Needs::kContext && current_context != reinterpret_cast<CudaContext*>(this)) {
    return CudaStatus(native, kCudaInvalidContext);
  }
  return absl::OkStatus();
}

absl::Status FakeCudaApi::EnterSharing(absl::string_view call) {
  RETURN_IF_ERROR(Enter(call, options_.memory_needs_context ? Needs::kContext : Needs::kNothing));
  return options_.memory_management ? absl::OkStatus()
                                    : CudaStatus(absl::StrCat("cu", call), kCudaNotSupported);
}

absl::Status FakeCudaApi::CheckDevice(absl::string_view call, int device) const {
  const bool known = device >= 0 && device < options_.num_devices;
  return CudaStatus(call, known ? kCudaSuccess : kCudaInvalidDevice);
}

absl::StatusOr<int> FakeCudaApi::DriverGetVersion() {
  RETURN_IF_ERROR(Enter("DriverGetVersion", Needs::kNothing));
  return options_.driver_version;
}

absl::Status FakeCudaApi::Init() {
  RETURN_IF_ERROR(Enter("Init", Needs::kNothing));
  if (options_.num_devices == 0) return CudaStatus("cuInit", kCudaNoDevice);
  absl::MutexLock lock(&mu_);
  initialized_ = true;
  return absl::OkStatus();
}

absl::StatusOr<int> FakeCudaApi::DeviceGetCount() {
  RETURN_IF_ERROR(Enter("DeviceGetCount", Needs::kNothing));
  return options_.num_devices;
}

absl::StatusOr<int> FakeCudaApi::DeviceGetAttribute(CudaAttribute attribute, int device) {
  RETURN_IF_ERROR(Enter("DeviceGetAttribute", Needs::kNothing));
  RETURN_IF_ERROR(CheckDevice("cuDeviceGetAttribute", device));
  switch (attribute) {
    case CudaAttribute::kComputeCapabilityMajor:
      return options_.compute_capability;
    case CudaAttribute::kComputeCapabilityMinor:
      return 0;
    case CudaAttribute::kCanUseHostPointerForRegisteredMem:
      return 1;
    case CudaAttribute::kIpcEventSupported:
      return options_.ipc_events ? 1 : 0;
    case CudaAttribute::kVirtualMemoryManagementSupported:
      return options_.memory_management ? 1 : 0;
    case CudaAttribute::kPosixFileDescriptorSupported:
      return options_.descriptors ? 1 : 0;
    case CudaAttribute::kGpuDirectRdmaWithMemCreateSupported:
      return options_.gpu_direct_rdma ? 1 : 0;
  }
  return CudaStatus("cuDeviceGetAttribute", kCudaInvalidValue);
}

absl::StatusOr<std::string> FakeCudaApi::DeviceGetName(int device) {
  RETURN_IF_ERROR(Enter("DeviceGetName", Needs::kNothing));
  RETURN_IF_ERROR(CheckDevice("cuDeviceGetName", device));
  return std::string("a fake of threads");
}

DeviceUuid FakeCudaApi::UuidOf(int machines_number) {
  DeviceUuid uuid = {'f', 'a', 'k', 'e', ' ', 'G', 'P', 'U'};
  uuid.back() = static_cast<uint8_t>(machines_number);
  return uuid;
}

absl::StatusOr<DeviceUuid> FakeCudaApi::DeviceGetUuid(int device) {
  RETURN_IF_ERROR(Enter("DeviceGetUuid", Needs::kNothing));
  RETURN_IF_ERROR(CheckDevice("cuDeviceGetUuid", device));
  return UuidOf(options_.visible.empty() ? device : options_.visible[device]);
}

absl::StatusOr<std::string> FakeCudaApi::DeviceGetPciBusId(int device) {
  RETURN_IF_ERROR(Enter("DeviceGetPciBusId", Needs::kNothing));
  RETURN_IF_ERROR(CheckDevice("cuDeviceGetPCIBusId", device));
  const int machines_number = options_.visible.empty() ? device : options_.visible[device];
  return absl::StrCat("0000:0", options_.parts_of_one_gpu ? 0 : machines_number, ":00.0");
}

absl::StatusOr<CudaContext*> FakeCudaApi::DevicePrimaryCtxRetain(int device) {
  RETURN_IF_ERROR(Enter("DevicePrimaryCtxRetain", Needs::kNothing));
  RETURN_IF_ERROR(CheckDevice("cuDeviceGet", device));
  absl::MutexLock lock(&mu_);
  ++contexts_;
  return reinterpret_cast<CudaContext*>(this);
}

absl::Status FakeCudaApi::DevicePrimaryCtxRelease(int device) {
  absl::MutexLock lock(&mu_);
  ++calls_["DevicePrimaryCtxRelease"];
  if (contexts_ == 0) return CudaStatus("cuDevicePrimaryCtxRelease", kCudaInvalidContext);
  --contexts_;
  return absl::OkStatus();
}

absl::Status FakeCudaApi::CtxSetCurrent(CudaContext* context) {
  RETURN_IF_ERROR(Enter("CtxSetCurrent", Needs::kNothing));
  current_context = context;
  return absl::OkStatus();
}

absl::StatusOr<CudaPriorityRange> FakeCudaApi::CtxGetStreamPriorityRange() {
  RETURN_IF_ERROR(Enter("CtxGetStreamPriorityRange", Needs::kContext));
  return CudaPriorityRange{0, -5};
}

absl::StatusOr<CudaMemInfo> FakeCudaApi::MemGetInfo() {
  RETURN_IF_ERROR(Enter("MemGetInfo", Needs::kContext));
  return CudaMemInfo{memory_.free_bytes(), options_.memory_bytes};
}

absl::Status FakeCudaApi::HostMemory(absl::string_view call, int64_t size_bytes, void** memory) {
  if (size_bytes <= 0) return CudaStatus(call, kCudaInvalidValue);
  if (!memory_.Take(size_bytes)) return CudaStatus(call, kCudaOutOfMemory);
  if (posix_memalign(memory, kAllocationAlignmentBytes, size_bytes) != 0) {
    memory_.Give(size_bytes);
    return CudaStatus(call, kCudaOutOfMemory);
  }
  absl::MutexLock lock(&mu_);
  allocations_[*memory] = size_bytes;
  return absl::OkStatus();
}

absl::Status FakeCudaApi::FreeHostMemory(absl::string_view call, void* memory) {
  absl::MutexLock lock(&mu_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return CudaStatus(call, kCudaInvalidValue);
  memory_.Give(found->second);
  std::free(memory);
  allocations_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<CudaAddress> FakeCudaApi::MemAlloc(int64_t size_bytes) {
  RETURN_IF_ERROR(Enter("MemAlloc", Needs::kContext));
  void* memory = nullptr;
  RETURN_IF_ERROR(HostMemory("cuMemAlloc", size_bytes, &memory));
  return reinterpret_cast<CudaAddress>(memory);
}

absl::Status FakeCudaApi::MemFree(CudaAddress address) {
  RETURN_IF_ERROR(Enter("MemFree", Needs::kContext));
  return FreeHostMemory("cuMemFree", Pointer(address));
}

absl::StatusOr<void*> FakeCudaApi::MemHostAlloc(int64_t size_bytes) {
  RETURN_IF_ERROR(Enter("MemHostAlloc", Needs::kContext));
  void* memory = nullptr;
  RETURN_IF_ERROR(HostMemory("cuMemHostAlloc", size_bytes, &memory));
  return memory;
}

absl::Status FakeCudaApi::MemFreeHost(void* memory) {
  RETURN_IF_ERROR(Enter("MemFreeHost", Needs::kContext));
  return FreeHostMemory("cuMemFreeHost", memory);
}

absl::Status FakeCudaApi::MemHostRegister(void* memory, int64_t size_bytes) {
  RETURN_IF_ERROR(Enter("MemHostRegister", Needs::kContext));
  if (memory == nullptr || size_bytes <= 0) {
    return CudaStatus("cuMemHostRegister", kCudaInvalidValue);
  }
  absl::MutexLock lock(&mu_);
  if (Overlaps(registered_, memory, size_bytes) || Overlaps(allocations_, memory, size_bytes)) {
    return CudaStatus("cuMemHostRegister", kCudaHostMemoryAlreadyRegistered);
  }
  registered_[memory] = size_bytes;
  return absl::OkStatus();
}

absl::Status FakeCudaApi::MemHostUnregister(void* memory) {
  RETURN_IF_ERROR(Enter("MemHostUnregister", Needs::kContext));
  absl::MutexLock lock(&mu_);
  const bool known = registered_.erase(memory) == 1;
  return CudaStatus("cuMemHostUnregister", known ? kCudaSuccess : kCudaHostMemoryNotRegistered);
}

absl::StatusOr<CudaStreamHandle*> FakeCudaApi::StreamCreateWithPriority(int priority) {
  RETURN_IF_ERROR(Enter("StreamCreateWithPriority", Needs::kContext));
  auto stream = std::make_unique<FakeStream>();
  stream->priority = priority;
  if (priority < 0) ++num_urgent_streams_;
  absl::StatusOr<std::unique_ptr<HostStream>> queue = HostStream::Create("fake-cuda");
  if (!queue.ok()) return CudaStatus("cuStreamCreateWithPriority", kCudaOutOfMemory);
  stream->queue = *std::move(queue);
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<HostStream> of_stream = stream->queue;
  auto* const handle = reinterpret_cast<CudaStreamHandle*>(stream.release());
  streams_[handle] = of_stream;
  return handle;
}

FakeStream* FakeLegacyStream() {
  static FakeStream* const legacy = [] {
    absl::StatusOr<std::unique_ptr<HostStream>> queue = HostStream::Create("fake-cuda");
    TESSERA_CHECK(queue.ok());
    return new FakeStream{*std::move(queue), 0};
  }();
  return legacy;
}

absl::Status FakeCudaApi::StreamDestroy(CudaStreamHandle* stream) {
  const absl::Status entered = Enter("StreamDestroy", Needs::kContext);
  if (!entered.ok() && !IsBroken(entered)) return entered;
  {
    absl::MutexLock lock(&mu_);
    streams_.erase(stream);
  }
  delete Of(stream);  // A broken context takes its streams with it; the threads must end here.
  return entered;
}

absl::Status FakeCudaApi::StreamSynchronize(CudaStreamHandle* stream) {
  RETURN_IF_ERROR(Enter("StreamSynchronize", Needs::kContext));
  if (Of(stream)->captured != nullptr)
    return CudaStatus("cuStreamSynchronize", kCudaStreamCaptureUnsupported);
  Of(stream)->queue->Synchronize();
  return CudaStatus("cuStreamSynchronize", broken_);
}

absl::Status FakeCudaApi::CtxSynchronize() {
  RETURN_IF_ERROR(Enter("CtxSynchronize", Needs::kContext));
  std::vector<std::shared_ptr<HostStream>> queues;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [handle, queue] : streams_) queues.push_back(queue);
  }
  for (const std::shared_ptr<HostStream>& queue : queues) queue->Synchronize();
  FakeLegacyStream()->queue->Synchronize();
  return CudaStatus("cuCtxSynchronize", broken_);
}

absl::Status FakeCudaApi::StreamWaitValue32(CudaStreamHandle* stream, CudaAddress word,
                                            uint32_t value) {
  RETURN_IF_ERROR(Enter("StreamWaitValue32", Needs::kContext));
  Of(stream)->queue->Enqueue([this, word, value] {
    const auto* at = reinterpret_cast<const uint32_t*>(word);
    const auto reached = [&] {
      return static_cast<int32_t>(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) >= 0;
    };
    // A device polls the word too; nobody tells it.
    for (int polls = 0; !reached() && broken_ == kCudaSuccess; ++polls) {
      if (polls < 50)
        std::this_thread::yield();
      else
        absl::SleepFor(absl::Microseconds(50));
    }
  });
  return absl::OkStatus();
}

absl::Status FakeCudaApi::LaunchHostFunc(CudaStreamHandle* stream, void (*function)(void*),
                                         void* argument) {
  RETURN_IF_ERROR(Enter("LaunchHostFunc", Needs::kContext));
  RunOnStream(stream, [function, argument] { function(argument); });
  return absl::OkStatus();
}

absl::Status FakeCudaApi::MemcpyAsync(CudaAddress dst, CudaAddress src, int64_t size_bytes,
                                      CudaStreamHandle* stream) {
  RETURN_IF_ERROR(Enter("MemcpyAsync", Needs::kContext));
  RunOnStream(stream, [=] {
    std::memcpy(Pointer(dst), Pointer(src), size_bytes);
    if (options_.copy_bytes_per_second > 0) {
      AdvanceClock(static_cast<double>(size_bytes) / options_.copy_bytes_per_second);
    }
  });
  if (options_.pageable_copies_wait && (IsPageable(dst) || IsPageable(src))) AwaitStream(stream);
  return absl::OkStatus();
}

bool FakeCudaApi::IsPageable(CudaAddress address) const {
  const CudaAddress granule = address - address % options_.granularity_bytes;
  return !Holds(Pointer(address), 1) && !memory_.IsMapped(granule, options_.granularity_bytes);
}

absl::Status FakeCudaApi::MemsetD8Async(CudaAddress dst, uint8_t value, int64_t size_bytes,
                                        CudaStreamHandle* stream) {
  RETURN_IF_ERROR(Enter("MemsetD8Async", Needs::kContext));
  RunOnStream(stream, [=] { std::memset(Pointer(dst), value, size_bytes); });
  return absl::OkStatus();
}

void FakeCudaApi::RunOnStream(CudaStreamHandle* stream, absl::AnyInvocable<void()> work) {
  if (Of(stream)->captured != nullptr) {
    Of(stream)->captured->push_back(std::make_shared<absl::AnyInvocable<void()>>(std::move(work)));
    return;
  }
  Of(stream)->queue->Enqueue([this, work = std::move(work)]() mutable {
    if (broken_ == kCudaSuccess) work();
  });
}

void FakeCudaApi::AwaitStream(CudaStreamHandle* stream) { Of(stream)->queue->Synchronize(); }

int FakeCudaApi::PriorityOf(CudaStreamHandle* stream) const { return Of(stream)->priority; }

}  // namespace tessera
