// Events of a device between processes: streams that wait for another process's work.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/gpu/device_sharing.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

class EventSharingTest : public SharingProcessesTest {};

TEST_P(EventSharingTest, StreamOfOneProcessWaitsForAnEventOfAnothers) {
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
TEST_P(EventSharingTest, ProcessesTakeTurnsByEventsOfBoth) {
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
INSTANTIATE_TEST_SUITE_P(Fake, EventSharingTest, testing::Values(kFake), NameOf);
INSTANTIATE_TEST_SUITE_P(Device, EventSharingTest, testing::Values(kMachine), NameOf);

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
