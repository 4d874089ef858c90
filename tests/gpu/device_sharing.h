// Processes that share memory of a device and events, for tests: over the driver of threads and
// memfds everywhere, and over the machine's own where it has a device. A driver does not survive a
// fork, so that no test calls one but in children.
#ifndef TESSERA_TESTS_GPU_DEVICE_SHARING_H_
#define TESSERA_TESTS_GPU_DEVICE_SHARING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"
#include "worker/comm/shm/shm_test_group.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/device_region.h"

namespace tessera {
namespace gpu_check {

struct Driver {
  const char* name;
  absl::StatusOr<CudaApi*> (*load)();
};
absl::StatusOr<CudaApi*> LoadFakeDriver();
inline constexpr Driver kFake = {"Fake", LoadFakeDriver};
inline constexpr Driver kMachine = {"Device", LoadCudaApi};
inline std::string NameOf(const testing::TestParamInfo<Driver>& info) { return info.param.name; }

// What an executor has: a context and a stream.
struct Executor {
  static absl::StatusOr<Executor> Create(const Driver& driver);
  absl::Status Write(std::byte* to, const std::vector<char>& bytes) const;
  absl::Status Write(const DeviceMapping& to, const std::vector<char>& bytes) const {
    return Write(to.data(), bytes);
  }
  absl::StatusOr<std::vector<char>> Read(const std::byte* from, int64_t size_bytes) const;
  absl::StatusOr<std::vector<char>> Read(const DeviceMapping& from, int64_t size_bytes) const {
    return Read(from.data(), size_bytes);
  }

  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<CudaStream> stream;
  SharingDevice sharing;
};

// What a keeper has: a context only where it cannot do without.
struct Keeper {
  static absl::StatusOr<Keeper> Create(const Driver& driver);

  std::unique_ptr<PrimaryContext> context;
  SharingDevice sharing;
};

absl::Status Send(int socket, const DeviceRegion& region);
absl::StatusOr<DeviceMapping> Receive(int socket, const SharingDevice& device, CudaAccess access);

inline constexpr int64_t kSizeBytes = (5 << 20) + 1;  // No multiple of any granularity.
std::vector<char> Pattern(int64_t size_bytes);

// An executor whose events order another's streams.
struct EventUser {
  static absl::StatusOr<EventUser> Create(const Driver& driver);
  // To the process of this socket, in addition to a region.
  absl::Status SendEvent(int socket, CudaEventHandle* event) const;
  absl::StatusOr<CudaEventHandle*> ReceiveEvent(int socket) const;

  Executor executor;
  CudaApi* api = nullptr;
  CudaStreamHandle* stream = nullptr;
};

// Three processes and the sockets between them.
class SharingProcessesTest : public testing::TestWithParam<Driver> {
 protected:
  void SetUp() override;

  // Each process closes what is the others', so that a wait for one that is gone ends.
  void BeKeeper() {
    to_writer_.second.Reset();
    to_reader_.second.Reset();
  }
  void BeWriter() {
    to_writer_.first.Reset();
    to_reader_ = {};
  }
  void BeReader() {
    to_reader_.first.Reset();
    to_writer_ = {};
  }

  std::pair<UniqueFd, UniqueFd> to_writer_, to_reader_;
};

// What needs no descriptors of a GPU's memory, which not each driver has.
class HostProcessesTest : public testing::TestWithParam<Driver> {
 protected:
  void SetUp() override;
};

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_DEVICE_SHARING_H_
