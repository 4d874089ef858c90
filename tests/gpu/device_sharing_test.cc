// Memory of a device between processes: over the driver of threads and memfds everywhere, and over
// the machine's own where it has a device. A driver does not survive a fork, so that no test calls
// one but in children.
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/shm/shm_test_group.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/device_region.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/cuda/keeper_memory.h"
#include "worker/memory/fd_passing.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

struct Driver {
  const char* name;
  absl::StatusOr<CudaApi*> (*load)();
};

absl::StatusOr<CudaApi*> LoadFake() {
  static auto* const api = [] {
    FakeCudaApi::Options options;
    options.pageable_copies_wait = true;
    return new FakeCudaApi(options);
  }();
  return api;
}

constexpr Driver kFake = {"Fake", LoadFake};

// What an executor has: a context and a stream.
struct Executor {
  static absl::StatusOr<Executor> Create(const Driver& driver) {
    Executor executor;
    ASSIGN_OR_RETURN(CudaApi* const api, driver.load());
    ASSIGN_OR_RETURN(executor.device, CudaDevice::Create(api, {}));
    ASSIGN_OR_RETURN(executor.stream, CudaStream::Create(executor.device->context(), "test", 0));
    executor.sharing = {api, 0, executor.device->context()};
    return executor;
  }
  absl::Status Write(std::byte* to, const std::vector<char>& bytes) const {
    device->Copy(stream.get(), to, bytes.data(), bytes.size());
    stream->Synchronize();
    return device->status();
  }
  absl::Status Write(const DeviceMapping& to, const std::vector<char>& bytes) const {
    return Write(to.data(), bytes);
  }
  absl::StatusOr<std::vector<char>> Read(const std::byte* from, int64_t size_bytes) const {
    std::vector<char> bytes(size_bytes);
    device->Copy(stream.get(), bytes.data(), from, size_bytes);
    stream->Synchronize();
    RETURN_IF_ERROR(device->status());
    return bytes;
  }
  absl::StatusOr<std::vector<char>> Read(const DeviceMapping& from, int64_t size_bytes) const {
    return Read(from.data(), size_bytes);
  }

  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<CudaStream> stream;
  SharingDevice sharing;
};

// What a keeper has: a context only where it cannot do without.
struct Keeper {
  static absl::StatusOr<Keeper> Create(const Driver& driver) {
    Keeper keeper;
    ASSIGN_OR_RETURN(CudaApi* const api, driver.load());
    const KeeperMemoryChoice choice = FindKeeperMemory(api, 0);
    const bool needs_context = choice.where == KeeperMemory::kWithContext;
    if (!needs_context && choice.where != KeeperMemory::kWithoutContext)
      return absl::UnimplementedError(choice.reason);
    keeper.sharing = {api, 0, nullptr};
    if (needs_context) {
      ASSIGN_OR_RETURN(keeper.context, PrimaryContext::Create(api, 0, 0));
      keeper.sharing.context = keeper.context.get();
    }
    return keeper;
  }

  std::unique_ptr<PrimaryContext> context;
  SharingDevice sharing;
};

absl::Status Send(int socket, const DeviceRegion& region) {
  ASSIGN_OR_RETURN(const UniqueFd descriptor, region.Export());
  return SendPacket(socket, absl::StrCat(region.size_bytes()), {descriptor.get()});
}

absl::StatusOr<DeviceMapping> Receive(int socket, const SharingDevice& device, CudaAccess access) {
  ASSIGN_OR_RETURN(const Packet packet, ReceivePacket(socket));
  RANK_EXPECT(packet.fds.size() == 1);
  return DeviceMapping::Import(device, packet.fds[0].get(), std::stoll(packet.bytes), access);
}

std::vector<char> Pattern(int64_t size_bytes) {
  std::vector<char> bytes(size_bytes);
  for (int64_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<char>(i * 31 + 7);
  return bytes;
}

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

constexpr int64_t kSizeBytes = (5 << 20) + 1;  // No multiple of any granularity.

class DeviceSharingTest : public testing::TestWithParam<Driver> {
 protected:
  void SetUp() override {
    const absl::Status status =
        RankProcess([] { return Keeper::Create(GetParam()).status(); }).Join();
    if (absl::IsNotFound(status) || absl::IsUnimplemented(status))
      GTEST_SKIP() << "nothing of what processes share of a GPU is tried: " << status.message();
    ASSERT_OK(status);
    for (auto* pair : {&to_writer_, &to_reader_}) {
      ASSERT_OK_AND_ASSIGN(*pair, CreatePacketSocketPair());
    }
  }

  // Each process closes what is the others', so that who waits for one that is gone is told.
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

// What an event of one process orders in another's streams.
struct EventUser {
  static absl::StatusOr<EventUser> Create(const Driver& driver) {
    EventUser user;
    ASSIGN_OR_RETURN(user.executor, Executor::Create(driver));
    user.api = user.executor.sharing.api;
    user.stream = user.executor.stream->handle();
    RETURN_IF_ERROR(user.executor.sharing.Use());
    return user;
  }
  // To a process whose socket this is, beside a region.
  absl::Status SendEvent(int socket, CudaEventHandle* event) const {
    ASSIGN_OR_RETURN(const CudaIpcEventHandle handle, api->IpcGetEventHandle(event));
    return SendPacket(socket, std::string(handle.bytes, sizeof(handle.bytes)));
  }
  absl::StatusOr<CudaEventHandle*> ReceiveEvent(int socket) const {
    ASSIGN_OR_RETURN(const Packet packet, ReceivePacket(socket));
    CudaIpcEventHandle handle;
    RANK_EXPECT(packet.bytes.size() == sizeof(handle.bytes));
    std::copy(packet.bytes.begin(), packet.bytes.end(), handle.bytes);
    return api->IpcOpenEventHandle(handle);
  }

  Executor executor;
  CudaApi* api = nullptr;
  CudaStreamHandle* stream = nullptr;
};

TEST_P(DeviceSharingTest, StreamOfOneProcessWaitsForAnEventOfAnothers) {
  RankProcess writer([this]() -> absl::Status {
    to_writer_ = {};
    to_reader_.second.Reset();
    const int socket = to_reader_.first.get();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceRegion region,
                     DeviceRegion::Create(user.executor.sharing, kSizeBytes));
    ASSIGN_OR_RETURN(const DeviceMapping mapping, region.Map(CudaAccess::kReadWrite));
    RETURN_IF_ERROR(user.executor.Write(mapping, std::vector<char>(kSizeBytes)));
    // Pinned: where it copies from other memory the driver may wait for the stream, which waits.
    ASSIGN_OR_RETURN(const Buffer bytes, user.executor.device->AllocatePinned(kSizeBytes));
    const std::vector<char> pattern = Pattern(kSizeBytes);
    std::copy(pattern.begin(), pattern.end(), bytes.data_as<char>());
    ASSIGN_OR_RETURN(const Buffer word, user.executor.device->AllocatePinned(sizeof(uint32_t)));
    auto* const released = new (word.data()) std::atomic<uint32_t>(0);
    ASSIGN_OR_RETURN(CudaEventHandle * event, user.api->EventCreateInterprocess());
    RETURN_IF_ERROR(
        user.api->StreamWaitValue32(user.stream, reinterpret_cast<CudaAddress>(word.data()), 1));
    user.executor.device->Copy(user.executor.stream.get(), mapping.data(), bytes.data(),
                               kSizeBytes);
    RETURN_IF_ERROR(user.api->EventRecord(event, user.stream));
    RETURN_IF_ERROR(Send(socket, region));
    RETURN_IF_ERROR(user.SendEvent(socket, event));
    RETURN_IF_ERROR(ReceivePacket(socket).status());  // The reader's stream waits.
    *released = 1;
    RETURN_IF_ERROR(ReceivePacket(socket).status());  // It has read.
    RETURN_IF_ERROR(user.api->EventDestroy(event));
    return user.executor.device->status();
  });
  RankProcess reader([this]() -> absl::Status {
    BeReader();
    const int socket = to_reader_.second.get();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceMapping mapping,
                     Receive(socket, user.executor.sharing, CudaAccess::kRead));
    ASSIGN_OR_RETURN(CudaEventHandle * event, user.ReceiveEvent(socket));
    ASSIGN_OR_RETURN(const bool reached, user.api->EventQuery(event));
    RANK_EXPECT(!reached);
    ASSIGN_OR_RETURN(const Buffer pinned, user.executor.device->AllocatePinned(kSizeBytes));
    RETURN_IF_ERROR(user.api->StreamWaitEvent(user.stream, event));
    user.executor.device->Copy(user.executor.stream.get(), pinned.data(), mapping.data(),
                               kSizeBytes);
    RETURN_IF_ERROR(SendPacket(socket, "waiting"));
    user.executor.stream->Synchronize();
    const std::vector<char> expected = Pattern(kSizeBytes);
    RANK_EXPECT(std::equal(expected.begin(), expected.end(), pinned.data_as<char>()));
    ASSIGN_OR_RETURN(const bool reached_now, user.api->EventQuery(event));
    RANK_EXPECT(reached_now);
    RETURN_IF_ERROR(user.api->EventDestroy(event));
    RETURN_IF_ERROR(SendPacket(socket, "read"));
    return user.executor.device->status();
  });
  to_writer_ = {};
  to_reader_ = {};
  EXPECT_OK(writer.Join());
  EXPECT_OK(reader.Join());
}

// A ring of two: each process records an event of its own and waits for the other's, so that a
// counter in memory of both goes up by turns.
TEST_P(DeviceSharingTest, ProcessesTakeTurnsByEventsOfBoth) {
  constexpr int kTurns = 20;
  const auto take_turns = [](const EventUser& user, const DeviceMapping& mapping, int socket,
                             bool is_first) -> absl::Status {
    ASSIGN_OR_RETURN(CudaEventHandle * own, user.api->EventCreateInterprocess());
    RETURN_IF_ERROR(user.SendEvent(socket, own));
    ASSIGN_OR_RETURN(CudaEventHandle * others, user.ReceiveEvent(socket));
    for (int turn = is_first ? 0 : 1; turn < 2 * kTurns; turn += 2) {
      if (turn > 0) {
        RETURN_IF_ERROR(ReceivePacket(socket).status());  // The other has recorded.
        RETURN_IF_ERROR(user.api->StreamWaitEvent(user.stream, others));
      }
      const auto at = reinterpret_cast<CudaAddress>(mapping.data());
      // Each byte is made of the one that the other process wrote before.
      if (turn > 0)
        RETURN_IF_ERROR(user.api->MemcpyAsync(at + turn, at + turn - 1, 1, user.stream));
      RETURN_IF_ERROR(user.api->EventRecord(own, user.stream));
      RETURN_IF_ERROR(SendPacket(socket, "recorded"));
    }
    if (is_first) RETURN_IF_ERROR(ReceivePacket(socket).status());  // Of the last turn.
    user.executor.stream->Synchronize();
    RETURN_IF_ERROR(SendPacket(socket, "done"));
    RETURN_IF_ERROR(ReceivePacket(socket).status());
    RETURN_IF_ERROR(user.api->EventDestroy(others));
    RETURN_IF_ERROR(SendPacket(socket, "closed"));
    RETURN_IF_ERROR(ReceivePacket(socket).status());
    return user.api->EventDestroy(own);
  };
  RankProcess first([&, this]() -> absl::Status {
    to_writer_ = {};
    to_reader_.second.Reset();
    const int socket = to_reader_.first.get();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceRegion region,
                     DeviceRegion::Create(user.executor.sharing, kSizeBytes));
    ASSIGN_OR_RETURN(const DeviceMapping mapping, region.Map(CudaAccess::kReadWrite));
    RETURN_IF_ERROR(user.executor.Write(mapping, std::vector<char>(1, 'x')));
    RETURN_IF_ERROR(Send(socket, region));
    RETURN_IF_ERROR(take_turns(user, mapping, socket, /*is_first=*/true));
    ASSIGN_OR_RETURN(const std::vector<char> bytes, user.executor.Read(mapping, 2 * kTurns));
    RANK_EXPECT(bytes == std::vector<char>(2 * kTurns, 'x'));
    return user.executor.device->status();
  });
  RankProcess second([&, this]() -> absl::Status {
    BeReader();
    const int socket = to_reader_.second.get();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(GetParam()));
    ASSIGN_OR_RETURN(const DeviceMapping mapping,
                     Receive(socket, user.executor.sharing, CudaAccess::kReadWrite));
    RETURN_IF_ERROR(take_turns(user, mapping, socket, /*is_first=*/false));
    return user.executor.device->status();
  });
  to_writer_ = {};
  to_reader_ = {};
  EXPECT_OK(first.Join());
  EXPECT_OK(second.Join());
}

// What needs no descriptors of a GPU's memory, which not each driver has.
class HostSharingTest : public testing::TestWithParam<Driver> {
 protected:
  void SetUp() override {
    const absl::Status status =
        RankProcess([] { return Executor::Create(GetParam()).status(); }).Join();
    if (absl::IsNotFound(status) || absl::IsUnimplemented(status)) GTEST_SKIP() << status;
    ASSERT_OK(status);
  }
};

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

// What a driver does with such events nobody says; the fake shows mistakes.
TEST(FakeSharingTest, EventThatItsCreatorDestroyedIsRefused) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  RankProcess creator([&]() -> absl::Status {
    sockets.second.Reset();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(kFake));
    ASSIGN_OR_RETURN(CudaEventHandle * event, user.api->EventCreateInterprocess());
    RETURN_IF_ERROR(user.SendEvent(sockets.first.get(), event));
    RETURN_IF_ERROR(user.SendEvent(sockets.first.get(), event));
    RETURN_IF_ERROR(ReceivePacket(sockets.first.get()).status());  // One was opened.
    RETURN_IF_ERROR(user.api->EventDestroy(event));
    RETURN_IF_ERROR(SendPacket(sockets.first.get(), "destroyed"));
    return ReceivePacket(sockets.first.get()).status();
  });
  RankProcess opener([&]() -> absl::Status {
    sockets.first.Reset();
    const int socket = sockets.second.get();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(kFake));
    ASSIGN_OR_RETURN(CudaEventHandle * event, user.ReceiveEvent(socket));
    ASSIGN_OR_RETURN(const Packet other, ReceivePacket(socket));
    RETURN_IF_ERROR(SendPacket(socket, "opened"));
    RETURN_IF_ERROR(ReceivePacket(socket).status());
    RANK_EXPECT(absl::IsInvalidArgument(user.api->StreamWaitEvent(user.stream, event)));
    RANK_EXPECT(absl::IsInvalidArgument(user.api->EventRecord(event, user.stream)));
    RANK_EXPECT(absl::IsInvalidArgument(user.api->EventQuery(event).status()));
    CudaIpcEventHandle handle;
    std::copy(other.bytes.begin(), other.bytes.end(), handle.bytes);
    RANK_EXPECT(absl::IsInvalidArgument(user.api->IpcOpenEventHandle(handle).status()));
    RETURN_IF_ERROR(user.api->EventDestroy(event));
    return SendPacket(socket, "refused");
  });
  sockets = {};
  EXPECT_OK(creator.Join());
  EXPECT_OK(opener.Join());
}

TEST(FakeSharingTest, EventOfAProcessThatWasKilledIsNeverReachedAndNotOpenedAnyMore) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  RankProcess creator([&]() -> absl::Status {
    sockets.second.Reset();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(kFake));
    ASSIGN_OR_RETURN(const Buffer word, user.executor.device->AllocatePinned(sizeof(uint32_t)));
    new (word.data()) std::atomic<uint32_t>(0);
    ASSIGN_OR_RETURN(CudaEventHandle * event, user.api->EventCreateInterprocess());
    RETURN_IF_ERROR(
        user.api->StreamWaitValue32(user.stream, reinterpret_cast<CudaAddress>(word.data()), 1));
    RETURN_IF_ERROR(user.api->EventRecord(event, user.stream));
    RETURN_IF_ERROR(user.SendEvent(sockets.first.get(), event));
    RETURN_IF_ERROR(user.SendEvent(sockets.first.get(), event));
    RETURN_IF_ERROR(ReceivePacket(sockets.first.get()).status());  // One was opened.
    raise(SIGKILL);
    return absl::OkStatus();
  });
  RankProcess opener([&]() -> absl::Status {
    sockets.first.Reset();
    const int socket = sockets.second.get();
    ASSIGN_OR_RETURN(const EventUser user, EventUser::Create(kFake));
    ASSIGN_OR_RETURN(CudaEventHandle * event, user.ReceiveEvent(socket));
    ASSIGN_OR_RETURN(const Packet other, ReceivePacket(socket));
    RETURN_IF_ERROR(SendPacket(socket, "opened"));
    RANK_EXPECT(absl::IsUnavailable(ReceivePacket(socket).status()));  // It is gone.
    ASSIGN_OR_RETURN(const bool reached, user.api->EventQuery(event));
    RANK_EXPECT(!reached);
    CudaIpcEventHandle handle;
    std::copy(other.bytes.begin(), other.bytes.end(), handle.bytes);
    RANK_EXPECT(absl::IsInvalidArgument(user.api->IpcOpenEventHandle(handle).status()));
    return user.api->EventDestroy(event);
  });
  sockets = {};
  EXPECT_THAT(creator.Join(), StatusIs(StatusCode::kInternal, HasSubstr("killed by signal 9")));
  EXPECT_OK(opener.Join());
}

std::string NameOf(const testing::TestParamInfo<Driver>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Fake, DeviceSharingTest, testing::Values(kFake), NameOf);
INSTANTIATE_TEST_SUITE_P(Device, DeviceSharingTest, testing::Values(Driver{"Device", LoadCudaApi}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Fake, HostSharingTest, testing::Values(kFake), NameOf);
INSTANTIATE_TEST_SUITE_P(Device, HostSharingTest, testing::Values(Driver{"Device", LoadCudaApi}),
                         NameOf);

}  // namespace
}  // namespace tessera
