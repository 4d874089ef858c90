// What RankKernels of every kind of device must do: the same as those of the host, to the bit. A
// device joins by linking this and naming its factory:
//
//   INSTANTIATE_TEST_SUITE_P(Host, RankKernelsConformanceTest,
//                            testing::Values(RankKernelsBackend{"Host", false, MakeHost}));
//
// One whose `create` returns Unavailable is skipped (the hardware is not here).
#ifndef TESSERA_WORKER_DEVICE_RANK_KERNELS_CONFORMANCE_H_
#define TESSERA_WORKER_DEVICE_RANK_KERNELS_CONFORMANCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "worker/device/host/host_rank_kernels.h"
#include "worker/device/rank_device.h"

namespace tessera {

struct RankKernelsBackend {
  struct Made {
    std::unique_ptr<RankDevice> device;
    UniqueFd region;  // Of that device's memory, of kRegionBytes.
  };
  static constexpr int64_t kRegionBytes = int64_t{32} << 20;

  std::string name;
  bool state_on_host = false;  // As RankDevice::KernelOptions.
  std::function<absl::StatusOr<Made>()> create;

  friend std::ostream& operator<<(std::ostream& os, const RankKernelsBackend& b) {
    return os << b.name;
  }
};

// Kernels with memory where a rank would have it.
class RankMemory {
 public:
  // Both runs of memory have half of RankKernelsBackend::kRegionBytes, and outlive this.
  RankMemory(RankKernels* kernels, std::byte* device, std::byte* state)
      : kernels_(kernels), device_(device), state_(state) {}

  RankKernels& kernels() const { return *kernels_; }
  // Where gradients of ranks and published parameters are: elements at an address that is good for
  // them alone.
  template <typename T>
  T* OnDevice(const std::vector<T>& values) {
    return Put(values, device_, &device_bytes_);
  }
  // Where a rank's shard and its reduced gradient are.
  template <typename T>
  T* InState(const std::vector<T>& values) {
    return Put(values, state_, &state_bytes_);
  }
  template <typename T>
  std::vector<T> Read(const T* at, int64_t count) {
    std::vector<T> values(count);
    kernels_->Copy(values.data(), at, count * static_cast<int64_t>(sizeof(T)));
    EXPECT_TRUE(kernels_->Finish().ok());
    return values;
  }

 private:
  template <typename T>
  T* Put(const std::vector<T>& values, std::byte* memory, int64_t* used_bytes) {
    const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* at = memory + *used_bytes + sizeof(T);
    *used_bytes += (size_bytes + 2 * static_cast<int64_t>(sizeof(T)) + 127) / 128 * 128;
    EXPECT_LE(*used_bytes, RankKernelsBackend::kRegionBytes / 2);
    kernels_->Copy(at, values.data(), size_bytes);
    EXPECT_TRUE(kernels_->Finish().ok());
    return reinterpret_cast<T*>(at);
  }

  RankKernels* const kernels_;
  std::byte *const device_, *const state_;
  int64_t device_bytes_ = 0, state_bytes_ = 0;
};

class RankKernelsConformanceTest : public testing::TestWithParam<RankKernelsBackend> {
 protected:
  static constexpr int64_t kMaxCount = 150'001;  // More than one piece of what is offloaded.

  void SetUp() override;
  // Of the device, and of the host alone. Memory of an earlier one is void.
  RankMemory OfDevice();
  RankMemory OfProcessor();
  absl::StatusOr<std::unique_ptr<RankKernels>> NewKernels();

  std::unique_ptr<RankDevice> device_;
  Buffer region_;
  std::unique_ptr<RankKernels> kernels_;
  HostRankKernels host_kernels_;

 private:
  std::vector<std::byte> host_;
  std::vector<std::byte> offloaded_;  // The state, where the device has none.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_RANK_KERNELS_CONFORMANCE_H_
