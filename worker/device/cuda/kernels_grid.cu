// How large grids are, and which kernels there are.
#include <map>
#include <mutex>
#include <tuple>

#include "worker/device/cuda/kernels_common.cuh"

namespace tessera {
namespace gpu {
namespace {

// Of all files' kernels; null before the first one is listed.
const ListedKernel* listed_kernels = nullptr;

cudaError_t Ask(const void* kernel, int threads, int device, int64_t* blocks) {
  int multiprocessors = 0, on_each = 0;
  cudaError_t error =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&on_each, kernel, threads, 0);
  if (error != cudaSuccess) return error;
  *blocks = int64_t{multiprocessors} * (on_each > 0 ? on_each : 1);
  return cudaSuccess;
}

// The runtime hands an error out again at the next launch, unless it is taken.
int Taken(cudaError_t error) {
  cudaGetLastError();
  return static_cast<int>(error);
}

}  // namespace

ListedKernel::ListedKernel(const void* of_kernel, int of_threads)
    : kernel(of_kernel), threads(of_threads), next(listed_kernels) {
  listed_kernels = this;
}

int LoadKernels() {
  for (const ListedKernel* each = listed_kernels; each != nullptr; each = each->next) {
    int64_t blocks = 0;  // To ask how many fit makes the driver load it.
    const int asked = ResidentBlocks(each->kernel, each->threads, &blocks);
    // Onto a fake of a device nothing is loaded; launches say so.
    if (asked == cudaErrorInsufficientDriver || asked == cudaErrorNoDevice) return 0;
    if (asked != 0) return asked;
  }
  return 0;
}

int ResidentBlocks(const void* kernel, int threads, int64_t* blocks) {
  using Key = std::tuple<int, const void*, int>;
  static auto* const mu = new std::mutex();
  static auto* const known = new std::map<Key, int64_t>();
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return Taken(error);
  std::lock_guard<std::mutex> lock(*mu);
  const auto found = known->find({device, kernel, threads});
  if (found != known->end()) {
    *blocks = found->second;
    return 0;
  }
  error = Ask(kernel, threads, device, blocks);
  if (error != cudaSuccess) return Taken(error);
  known->insert({{device, kernel, threads}, *blocks});
  return 0;
}

}  // namespace gpu
}  // namespace tessera
