#include "tests/gpu/device_sharing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/cuda/keeper_memory.h"

namespace tessera {
namespace gpu_check {

absl::StatusOr<CudaApi*> LoadFakeDriver() {
  static auto* const api = [] {
    FakeCudaApi::Options options;
    options.pageable_copies_wait = true;
    return new FakeCudaApi(options);
  }();
  return api;
}

absl::StatusOr<Executor> Executor::Create(const Driver& driver) {
  Executor executor;
  ASSIGN_OR_RETURN(CudaApi* const api, driver.load());
  ASSIGN_OR_RETURN(executor.device, CudaDevice::Create(api, {}));
  ASSIGN_OR_RETURN(executor.stream, CudaStream::Create(executor.device->context(), "test", 0));
  executor.sharing = {api, 0, executor.device->context()};
  return executor;
}

absl::Status Executor::Write(std::byte* to, const std::vector<char>& bytes) const {
  device->Copy(stream.get(), to, bytes.data(), bytes.size());
  stream->Synchronize();
  return device->status();
}

absl::StatusOr<std::vector<char>> Executor::Read(const std::byte* from, int64_t size_bytes) const {
  std::vector<char> bytes(size_bytes);
  device->Copy(stream.get(), bytes.data(), from, size_bytes);
  stream->Synchronize();
  RETURN_IF_ERROR(device->status());
  return bytes;
}

absl::StatusOr<Keeper> Keeper::Create(const Driver& driver) {
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

absl::StatusOr<EventUser> EventUser::Create(const Driver& driver) {
  EventUser user;
  ASSIGN_OR_RETURN(user.executor, Executor::Create(driver));
  user.api = user.executor.sharing.api;
  user.stream = user.executor.stream->handle();
  RETURN_IF_ERROR(user.executor.sharing.Use());
  return user;
}

absl::Status EventUser::SendEvent(int socket, CudaEventHandle* event) const {
  ASSIGN_OR_RETURN(const CudaIpcEventHandle handle, api->IpcGetEventHandle(event));
  return SendPacket(socket, std::string(handle.bytes, sizeof(handle.bytes)));
}

absl::StatusOr<CudaEventHandle*> EventUser::ReceiveEvent(int socket) const {
  ASSIGN_OR_RETURN(const Packet packet, ReceivePacket(socket));
  CudaIpcEventHandle handle;
  RANK_EXPECT(packet.bytes.size() == sizeof(handle.bytes));
  std::copy(packet.bytes.begin(), packet.bytes.end(), handle.bytes);
  return api->IpcOpenEventHandle(handle);
}

void SharingProcessesTest::SetUp() {
  const absl::Status status =
      RankProcess([] { return Keeper::Create(GetParam()).status(); }).Join();
  if (absl::IsNotFound(status) || absl::IsUnimplemented(status))
    GTEST_SKIP() << "nothing of what processes share of a GPU is tried: " << status.message();
  ASSERT_OK(status);
  for (auto* pair : {&to_writer_, &to_reader_}) {
    ASSERT_OK_AND_ASSIGN(*pair, CreatePacketSocketPair());
  }
}

void HostProcessesTest::SetUp() {
  const absl::Status status =
      RankProcess([] { return Executor::Create(GetParam()).status(); }).Join();
  if (absl::IsNotFound(status) || absl::IsUnimplemented(status)) GTEST_SKIP() << status;
  ASSERT_OK(status);
}

}  // namespace gpu_check
}  // namespace tessera
