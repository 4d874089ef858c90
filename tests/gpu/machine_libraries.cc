#include "tests/gpu/machine_libraries.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_stream.h"

namespace tessera {
namespace gpu_check {
namespace {

// The numbers are those of cublas_api.h, library_types.h and cupti_activity.h.
constexpr int kCublasOpN = 0, kCublasGemmDefault = -1, kCublasCompute32F = 68;
constexpr int kCudaR16Bf = 14;
constexpr int kCuptiConcurrentKernel = 10;
constexpr int kCuptiMaxLimitReached = 12;
constexpr uint32_t kCuptiFlushForced = 1;

absl::StatusOr<void*> LoadFirst(const char* what, const std::vector<std::string>& names) {
  std::vector<std::string> errors;
  for (const std::string& name : names) {
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    errors.emplace_back(dlerror());
  }
  return absl::NotFoundError(absl::StrCat("no ", what, ": ", absl::StrJoin(errors, "; ")));
}

template <typename Function>
absl::Status Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("the library has no ", name));
}

absl::Status Said(const char* call, int result) {
  if (result == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, " said ", result));
}

// Finite bf16 between 1/8 and 1/2, of both signs. Bits that are all alike would take little power
// to multiply, and so leave the device faster than a model does.
std::vector<uint16_t> Noise(int64_t count) {
  std::minstd_rand bits(1);
  std::vector<uint16_t> halves(count);
  for (uint16_t& half : halves) half = 0x3E00 | ((bits() >> 8) & 0x80FF);
  return halves;
}

class CublasGemm : public Gemm {
 public:
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(CudaDevice* device, int size,
                                                      const std::vector<std::string>& names) {
    ASSIGN_OR_RETURN(void* const library, LoadFirst("cuBLAS", names));
    auto gemm = absl::WrapUnique(new CublasGemm(size));
    int (*create)(void**) = nullptr;
    RETURN_IF_ERROR(Find(library, "cublasCreate_v2", &create));
    RETURN_IF_ERROR(Find(library, "cublasSetStream_v2", &gemm->set_stream_));
    RETURN_IF_ERROR(Find(library, "cublasGemmEx", &gemm->gemm_));
    RETURN_IF_ERROR(device->context()->Use());
    RETURN_IF_ERROR(Said("cublasCreate", create(&gemm->handle_)));
    ASSIGN_OR_RETURN(const auto stream, CudaStream::Create(device->context(), "fill", 0));
    const std::vector<uint16_t> noise = Noise(int64_t{1} * size * size);
    for (Buffer& matrix : gemm->matrices_) {
      ASSIGN_OR_RETURN(matrix, device->Allocate(int64_t{2} * size * size));
    }
    // From here on nothing returns before the copies are through.
    for (const Buffer& matrix : gemm->matrices_)
      device->Copy(stream.get(), matrix.data(), noise.data(), matrix.size_bytes());
    stream->Synchronize();
    RETURN_IF_ERROR(device->status());
    return gemm;
  }

  absl::Status Enqueue(CudaStreamHandle* stream) override {
    const float alpha = 1, beta = 0;
    RETURN_IF_ERROR(Said("cublasSetStream", set_stream_(handle_, stream)));
    return Said("cublasGemmEx", gemm_(handle_, kCublasOpN, kCublasOpN, size_, size_, size_, &alpha,
                                      matrices_[0].data(), kCudaR16Bf, size_, matrices_[1].data(),
                                      kCudaR16Bf, size_, &beta, matrices_[2].data(), kCudaR16Bf,
                                      size_, kCublasCompute32F, kCublasGemmDefault));
  }

 private:
  explicit CublasGemm(int size) : size_(size) {}

  const int size_;
  void* handle_ = nullptr;  // Kept until the process ends, as the library is.
  Buffer matrices_[3];
  int (*set_stream_)(void* handle, void* stream) = nullptr;
  int (*gemm_)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
               const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
               const void* beta, void* c, int c_type, int ldc, int compute,
               int algorithm) = nullptr;
};

// CUPTI's own threads call back, with buffers that are full or were asked for.
class CuptiCounter : public KernelCounter {
 public:
  static absl::StatusOr<KernelCounter*> Create() {
    ASSIGN_OR_RETURN(void* const library,
                     LoadFirst("CUPTI", {"libcupti.so.13", "libcupti.so.12", "libcupti.so",
                                         "/usr/local/cuda/lib64/libcupti.so",
                                         "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"}));
    auto* const counter = new CuptiCounter();
    RETURN_IF_ERROR(Find(library, "cuptiActivityEnable", &counter->enable_));
    RETURN_IF_ERROR(Find(library, "cuptiActivityDisable", &counter->disable_));
    RETURN_IF_ERROR(Find(library, "cuptiActivityFlushAll", &counter->flush_));
    RETURN_IF_ERROR(Find(library, "cuptiActivityGetNextRecord", &next_record_));
    int (*register_callbacks)(decltype(Requested)*, decltype(Completed)*) = nullptr;
    RETURN_IF_ERROR(Find(library, "cuptiActivityRegisterCallbacks", &register_callbacks));
    RETURN_IF_ERROR(
        Said("cuptiActivityRegisterCallbacks", register_callbacks(Requested, Completed)));
    return counter;
  }

  absl::Status Start() override {
    // Where a process may not be looked into it says so here.
    const absl::Status enabled = Said("cuptiActivityEnable", enable_(kCuptiConcurrentKernel));
    if (!enabled.ok()) return absl::NotFoundError(enabled.message());
    count_ = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Stop() override {
    RETURN_IF_ERROR(Said("cuptiActivityFlushAll", flush_(kCuptiFlushForced)));
    RETURN_IF_ERROR(Said("cuptiActivityDisable", disable_(kCuptiConcurrentKernel)));
    return count_.load();
  }

 private:
  static constexpr size_t kBufferBytes = 1 << 20;

  static void Requested(uint8_t** buffer, size_t* size_bytes, size_t* max_records) {
    *buffer = static_cast<uint8_t*>(aligned_alloc(64, kBufferBytes));
    *size_bytes = *buffer == nullptr ? 0 : kBufferBytes;
    *max_records = 0;  // As many as there is room for.
  }
  static void Completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
    // Each record begins with its kind.
    int* record = nullptr;
    int result = valid_bytes == 0 ? kCuptiMaxLimitReached : 0;
    while (result == 0 && (result = next_record_(buffer, valid_bytes, &record)) == 0) {
      if (*record == kCuptiConcurrentKernel) ++count_;
    }
    // Whatever else it said would leave kernels uncounted, which must not look like none.
    if (result != kCuptiMaxLimitReached) count_ += int64_t{1} << 40;
    free(buffer);
  }

  static inline std::atomic<int64_t> count_{0};
  static inline int (*next_record_)(uint8_t* buffer, size_t valid_bytes, int** record) = nullptr;
  int (*enable_)(int kind) = nullptr;
  int (*disable_)(int kind) = nullptr;
  int (*flush_)(uint32_t flag) = nullptr;
};

}  // namespace

std::vector<std::string> CublasNames() {
  return {"libcublas.so.13", "libcublas.so.12", "libcublas.so",
          "/usr/local/cuda/lib64/libcublas.so"};
}

absl::StatusOr<std::unique_ptr<Gemm>> LoadCublasGemm(CudaDevice* device, int size,
                                                     const std::vector<std::string>& names) {
  return CublasGemm::Create(device, size, names);
}

absl::StatusOr<KernelCounter*> LoadCuptiCounter() {
  static const auto* const counter = new absl::StatusOr<KernelCounter*>(CuptiCounter::Create());
  return *counter;
}

}  // namespace gpu_check
}  // namespace tessera
