// Memory of a device between processes: which of them writes, reads and owns it, and when it is
// freed.
#include "tests/gpu/device_sharing.h"

#include <fcntl.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

absl::StatusOr<int64_t> FreeBytes(const Executor& executor) {
  RETURN_IF_ERROR(executor.sharing.Use());
  ASSIGN_OR_RETURN(const CudaMemInfo memory, executor.sharing.api->MemGetInfo());
  return memory.free_bytes;
}
class DeviceSharingTest : public SharingProcessesTest {};

TEST_P(DeviceSharingTest, WhatOneProcessWritesAnotherReadsWhileAThirdOwnsIt) {
  RankProcess keeper([this]() -> absl::Status {
    BeKeeper();
    ASSIGN_OR_RETURN(const Keeper keeper, Keeper::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceRegion region, DeviceRegion::Create(keeper.sharing, kSizeBytes));
    RETURN_IF_ERROR(Send(to_writer_.first.get(), region));
    RETURN_IF_ERROR(ReceivePacket(to_writer_.first.get()).status());
    RETURN_IF_ERROR(Send(to_reader_.first.get(), region));
    return ReceivePacket(to_reader_.first.get()).status();
  });
  RankProcess writer([this]() -> absl::Status {
    BeWriter();
    ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceMapping mapping,
                     Receive(to_writer_.second.get(), executor.sharing, CudaAccess::kReadWrite));
    RANK_EXPECT(mapping.size_bytes() >= kSizeBytes);
    RETURN_IF_ERROR(executor.Write(mapping, Pattern(kSizeBytes)));
    return SendPacket(to_writer_.second.get(), "written");
  });
  RankProcess reader([this]() -> absl::Status {
    BeReader();
    ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceMapping mapping,
                     Receive(to_reader_.second.get(), executor.sharing, CudaAccess::kRead));
    ASSIGN_OR_RETURN(const std::vector<char> bytes, executor.Read(mapping, kSizeBytes));
    RANK_EXPECT(bytes == Pattern(kSizeBytes));
    return SendPacket(to_reader_.second.get(), "read");
  });
  to_writer_ = {};
  to_reader_ = {};
  EXPECT_OK(keeper.Join());
  EXPECT_OK(writer.Join());
  EXPECT_OK(reader.Join());
}

TEST_P(DeviceSharingTest, MemoryOutlivesItsOwnerThatIsKilled) {
  RankProcess keeper([this]() -> absl::Status {
    BeKeeper();
    to_reader_ = {};
    ASSIGN_OR_RETURN(const Keeper keeper, Keeper::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceRegion region, DeviceRegion::Create(keeper.sharing, kSizeBytes));
    RETURN_IF_ERROR(Send(to_writer_.first.get(), region));
    RETURN_IF_ERROR(ReceivePacket(to_writer_.first.get()).status());
    raise(SIGKILL);
    return absl::OkStatus();
  });
  RankProcess writer([this]() -> absl::Status {
    to_writer_.first.Reset();
    to_reader_.first.Reset();
    const int socket = to_writer_.second.get();
    ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceMapping mapping,
                     Receive(socket, executor.sharing, CudaAccess::kReadWrite));
    std::vector<char> bytes = Pattern(kSizeBytes);
    RETURN_IF_ERROR(executor.Write(mapping, bytes));
    RETURN_IF_ERROR(SendPacket(socket, "written"));
    RETURN_IF_ERROR(ReceivePacket(to_reader_.second.get()).status());  // The owner is gone.
    ASSIGN_OR_RETURN(const std::vector<char> kept, executor.Read(mapping, kSizeBytes));
    RANK_EXPECT(kept == bytes);
    bytes[0] = 'x';
    RETURN_IF_ERROR(executor.Write(mapping, bytes));
    ASSIGN_OR_RETURN(const std::vector<char> changed, executor.Read(mapping, kSizeBytes));
    RANK_EXPECT(changed == bytes);
    return absl::OkStatus();
  });
  to_writer_ = {};
  to_reader_.second.Reset();
  EXPECT_THAT(keeper.Join(), StatusIs(StatusCode::kInternal, HasSubstr("killed by signal 9")));
  EXPECT_OK(SendPacket(to_reader_.first.get(), "the owner is gone"));
  EXPECT_OK(writer.Join());
}

TEST_P(DeviceSharingTest, WriteThroughAReadOnlyMappingIsAnErrorOfWhoWritesAndChangesNothing) {
  RankProcess keeper([this]() -> absl::Status {
    BeKeeper();
    ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceRegion region, DeviceRegion::Create(executor.sharing, kSizeBytes));
    ASSIGN_OR_RETURN(const DeviceMapping mapping, region.Map(CudaAccess::kReadWrite));
    RETURN_IF_ERROR(executor.Write(mapping, Pattern(kSizeBytes)));
    RETURN_IF_ERROR(Send(to_writer_.first.get(), region));
    RETURN_IF_ERROR(ReceivePacket(to_reader_.first.get()).status());  // The writer is gone.
    ASSIGN_OR_RETURN(const std::vector<char> bytes, executor.Read(mapping, kSizeBytes));
    RANK_EXPECT(bytes == Pattern(kSizeBytes));
    return absl::OkStatus();
  });
  RankProcess writer([this]() -> absl::Status {
    BeWriter();
    ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceMapping mapping,
                     Receive(to_writer_.second.get(), executor.sharing, CudaAccess::kRead));
    return executor.Write(mapping, std::vector<char>(kSizeBytes));
  });
  to_writer_ = {};
  to_reader_.first.Reset();
  EXPECT_NE(writer.Join(), absl::OkStatus());
  EXPECT_OK(SendPacket(to_reader_.second.get(), "the writer is gone"));
  EXPECT_OK(keeper.Join());
}

// As the driver's documentation has it: with the last mapping, and not before.
TEST_P(DeviceSharingTest, MemoryIsFreeOnceNobodyHoldsItAndNotBefore) {
  EXPECT_OK(RankProcess([]() -> absl::Status {
              ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
              ASSIGN_OR_RETURN(const int64_t before, FreeBytes(executor));
              ASSIGN_OR_RETURN(DeviceRegion region,
                               DeviceRegion::Create(executor.sharing, int64_t{256} << 20));
              ASSIGN_OR_RETURN(DeviceMapping mapping, region.Map(CudaAccess::kReadWrite));
              const int64_t size_bytes = region.size_bytes();
              region.Reset();
              ASSIGN_OR_RETURN(const int64_t held, FreeBytes(executor));
              RANK_EXPECT(before - held >= size_bytes, before, " ", held);
              mapping.Reset();
              ASSIGN_OR_RETURN(const int64_t after, FreeBytes(executor));
              RANK_EXPECT(before - after < size_bytes / 2, before, " ", after);
              return executor.device->status();
            }).Join());
}

TEST_P(DeviceSharingTest, AttachmentsLeaveNothing) {
  EXPECT_OK(RankProcess([]() -> absl::Status {
              ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
              ASSIGN_OR_RETURN(const DeviceRegion region,
                               DeviceRegion::Create(executor.sharing, kSizeBytes));
              int64_t free_bytes = 0;
              int descriptors = 0;
              for (int i = 0; i < 1000; ++i) {
                ASSIGN_OR_RETURN(const UniqueFd descriptor, region.Export());
                RETURN_IF_ERROR(DeviceMapping::Import(executor.sharing, descriptor.get(),
                                                      region.size_bytes(), CudaAccess::kRead)
                                    .status());
                if (i > 0) continue;  // The first may take something for good.
                ASSIGN_OR_RETURN(free_bytes, FreeBytes(executor));
                descriptors = OpenDescriptors() - 1;
              }
              ASSIGN_OR_RETURN(const int64_t after, FreeBytes(executor));
              RANK_EXPECT(free_bytes - after < region.size_bytes(), free_bytes, " ", after);
              RANK_EXPECT(OpenDescriptors() == descriptors);
              return absl::OkStatus();
            }).Join());
}

TEST_P(DeviceSharingTest, WhatIsNoSuchMemoryIsRefusedAndTheDeviceGoesOn) {
  EXPECT_OK(RankProcess([]() -> absl::Status {
              ASSIGN_OR_RETURN(const Executor executor, Executor::Create(GetParam()));
              ASSIGN_OR_RETURN(const DeviceRegion region,
                               DeviceRegion::Create(executor.sharing, kSizeBytes));
              ASSIGN_OR_RETURN(const UniqueFd descriptor, region.Export());
              const UniqueFd other(open("/dev/null", O_RDWR | O_CLOEXEC));
              const auto import = [&](int fd, int64_t size_bytes) {
                return DeviceMapping::Import(executor.sharing, fd, size_bytes, CudaAccess::kRead)
                    .status();
              };
              RANK_EXPECT(!import(other.get(), region.size_bytes()).ok());
              RANK_EXPECT(!import(descriptor.get(), 2 * region.size_bytes()).ok());
              RANK_EXPECT(!import(descriptor.get(), region.size_bytes() - 1).ok());
              RETURN_IF_ERROR(import(descriptor.get(), region.size_bytes()));
              return executor.device->status();
            }).Join());
}
class HostSharingTest : public HostProcessesTest {};

TEST_P(HostSharingTest, HostMemoryThatProcessesShareIsRegisteredByEachAndReachedByItsCopies) {
  const SharedMapping shared(kSizeBytes);
  const auto copy = [&](bool to_host) {
    return RankProcess([&shared, to_host]() -> absl::Status {
             ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(GetParam()));
             ASSIGN_OR_RETURN(const Buffer on_gpu, user.executor.device->Allocate(kSizeBytes));
             auto* const on_device = on_gpu.data_as<std::byte>();
             char* const host = shared.MapAgain();
             RETURN_IF_ERROR(user.api->MemHostRegister(host, kSizeBytes));
             RANK_EXPECT(!user.api->MemHostRegister(host, kSizeBytes).ok());
             if (to_host) {
               RETURN_IF_ERROR(user.executor.Write(on_device, Pattern(kSizeBytes)));
               user.executor.device->Copy(user.executor.stream.get(), host, on_device, kSizeBytes);
             } else {
               user.executor.device->Copy(user.executor.stream.get(), on_device, host, kSizeBytes);
             }
             user.executor.stream->Synchronize();
             RETURN_IF_ERROR(user.api->MemHostUnregister(host));
             RANK_EXPECT(!user.api->MemHostUnregister(host).ok());
             ASSIGN_OR_RETURN(const std::vector<char> bytes,
                              user.executor.Read(on_device, kSizeBytes));
             RANK_EXPECT(bytes == Pattern(kSizeBytes));
             return user.executor.device->status();
           })
        .Join();
  };
  EXPECT_OK(copy(/*to_host=*/true));
  EXPECT_OK(copy(/*to_host=*/false));
}
INSTANTIATE_TEST_SUITE_P(Fake, DeviceSharingTest, testing::Values(kFake), NameOf);
INSTANTIATE_TEST_SUITE_P(Device, DeviceSharingTest, testing::Values(kMachine), NameOf);
INSTANTIATE_TEST_SUITE_P(Fake, HostSharingTest, testing::Values(kFake), NameOf);
INSTANTIATE_TEST_SUITE_P(Device, HostSharingTest, testing::Values(kMachine), NameOf);

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
