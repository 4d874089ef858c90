#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/machine_memory.h"
#include "base/page_bytes.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"
#include "job/job_memory.h"
#include "layout/dtype.h"
#include "shm/control_page.h"
#include "shm/fd_passing.h"
#include "shm/region.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(RegionTest, TwoMappingsOfOneRegionShowTheSameBytes) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 10000));
  ASSERT_OK_AND_ASSIGN(const Mapping writer, Mapping::CreateWhole(region.fd(), Access::kReadWrite));
  ASSERT_OK_AND_ASSIGN(const Mapping reader, Mapping::CreateWhole(region.fd(), Access::kReadOnly));
  writer.data()[9999] = std::byte{42};
  EXPECT_EQ(reader.data()[9999], std::byte{42});
  EXPECT_NE(reader.data(), writer.data());
}

TEST(RegionTest, SizeIsSealedSoThatNoHolderCanPullPagesAway) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 8192));
  EXPECT_NE(ftruncate(region.fd(), 4096), 0);
}

TEST(RegionTest, OnlyASealedFileOfThatSizeIsAdopted) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 8192));
  const auto adopt = [](int fd, int64_t size_bytes) {
    return SharedRegion::Adopt("job/state", UniqueFd(dup(fd)), size_bytes).status();
  };
  EXPECT_OK(adopt(region.fd(), 8192));
  EXPECT_THAT(adopt(region.fd(), 4096),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("job/state: 8192 bytes")));
  const UniqueFd open(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open.get(), 8192), 0);
  EXPECT_THAT(adopt(open.get(), 8192),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8192 sealed bytes")));
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(adopt(null.get(), 0).ok());
}

int64_t TakenBytes(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 ? info.st_blocks * 512 : -1;
}

TEST(RegionTest, MemoryThatIsTakenIsThereAndWhatWasWrittenStays) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 16 * kPageBytes));
  ASSERT_OK_AND_ASSIGN(const Mapping memory, Mapping::CreateWhole(region.fd(), Access::kReadWrite));
  memory.data()[5 * kPageBytes] = std::byte{42};
  EXPECT_EQ(TakenBytes(region.fd()), kPageBytes);
  EXPECT_OK(TakeMemory(region.fd(), 2 * kPageBytes, 8 * kPageBytes));
  EXPECT_EQ(TakenBytes(region.fd()), 8 * kPageBytes);
  EXPECT_EQ(lseek(region.fd(), 2 * kPageBytes, SEEK_HOLE), 10 * kPageBytes)
      << "who takes it again does not ask whether there is as much more";
  EXPECT_EQ(memory.data()[5 * kPageBytes], std::byte{42});
  GiveMemoryBack(region.fd(), 2 * kPageBytes, 8 * kPageBytes);
  EXPECT_EQ(TakenBytes(region.fd()), 0);
  EXPECT_EQ(memory.data()[5 * kPageBytes], std::byte{0});
}

TEST(RegionTest, MemoryThatTheMachineLacksIsRefusedBeforeTheKernelKillsSomebody) {
  const int64_t size_bytes = 2 * MachineMemoryBytes();
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", size_bytes));
  EXPECT_THAT(TakeMemory(region.fd(), 0, size_bytes),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory left")));
  EXPECT_EQ(TakenBytes(region.fd()), 0);
}

TEST(RegionTest, MappingOutsideTheRegionIsRefused) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 8192));
  EXPECT_THAT(Mapping::Create(region.fd(), 4096, 8192, Access::kReadOnly),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4096")));
  EXPECT_FALSE(Mapping::Create(region.fd(), 1, 8, Access::kReadOnly).ok());
  EXPECT_FALSE(SharedRegion::Create("test", 0).ok());
}

TEST(RegionTest, WritingThroughAReadOnlyMappingEndsTheProcess) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 8192));
  ASSERT_OK_AND_ASSIGN(const Mapping reader, Mapping::CreateWhole(region.fd(), Access::kReadOnly));
  EXPECT_DEATH({ *const_cast<volatile std::byte*>(reader.data()) = std::byte{1}; }, "");
}

TEST(FdPassingTest, DescriptorArrivesAndMapsTheSamePages) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 4096));
  ASSERT_OK_AND_ASSIGN(const Mapping mapping,
                       Mapping::CreateWhole(region.fd(), Access::kReadWrite));
  mapping.data()[0] = std::byte{7};
  ASSERT_OK(SendPacket(sockets.first.get(), "many", std::vector<int>(kMaxPacketFds, region.fd())));
  ASSERT_OK_AND_ASSIGN(const Packet many, ReceivePacket(sockets.second.get()));
  EXPECT_EQ(many.fds.size(), kMaxPacketFds) << "as many as the kernel allows";
  ASSERT_OK(SendPacket(sockets.first.get(), "hello", {region.fd()}));
  ASSERT_OK_AND_ASSIGN(const Packet packet, ReceivePacket(sockets.second.get()));
  EXPECT_EQ(packet.bytes, "hello");
  ASSERT_EQ(packet.fds.size(), 1);
  EXPECT_NE(fcntl(packet.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_OK_AND_ASSIGN(const Mapping other,
                       Mapping::CreateWhole(packet.fds[0].get(), Access::kReadOnly));
  EXPECT_EQ(other.data()[0], std::byte{7});
}

TEST(FdPassingTest, EndOfThePeerIsUnavailable) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  sockets.first.Reset();
  EXPECT_THAT(ReceivePacket(sockets.second.get()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
  EXPECT_THAT(SendPacket(sockets.second.get(), "x"),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST(FdPassingTest, SecondListenerIsRefusedAndAStaleSocketReplaced) {
  std::string folder = "/tmp/tessera-XXXXXX";  // The sandbox's own folder is too deep for a socket.
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/s";
  {
    ASSERT_OK_AND_ASSIGN(const UniqueFd first, ListenPacketSocket(path));
    EXPECT_THAT(ListenPacketSocket(path),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path)));
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_OK(ListenPacketSocket(path));
  unlink(path.c_str());
  rmdir(folder.c_str());
}

TEST(FdPassingTest, SocketOfAProcessThatListensStaysHoweverBusyItIs) {
  std::string folder = "/tmp/tessera-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/s";
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM}) {
    UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    std::vector<UniqueFd> waiting;
    if (type == SOCK_SEQPACKET) {
      ASSERT_EQ(listen(listener.get(), 0), 0);
      absl::StatusOr<UniqueFd> next = ConnectPacketSocket(path);
      for (; next.ok(); next = ConnectPacketSocket(path)) waiting.push_back(*std::move(next));
      ASSERT_FALSE(waiting.empty());
      EXPECT_THAT(next, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("as many wait")));
    } else if (type == SOCK_STREAM) {
      ASSERT_EQ(listen(listener.get(), 5), 0);
    }
    EXPECT_THAT(ListenPacketSocket(path),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path)))
        << type;
    EXPECT_EQ(access(path.c_str(), F_OK), 0) << type;
    unlink(path.c_str());
  }
  const UniqueFd file(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_FALSE(ListenPacketSocket(path).ok());
  EXPECT_EQ(unlink(path.c_str()), 0) << "a file of somebody";
  rmdir(folder.c_str());
}

auto Saying(const char* what) {
  return [what] { return std::string(what); };
}

class ControlPageTest : public testing::Test {
 protected:
  void SetUp() override {
    auto region = SharedRegion::Create("control", sizeof(ControlPage));
    ASSERT_OK(region);
    auto mapping = Mapping::CreateWhole(region->fd(), Access::kReadWrite);
    ASSERT_OK(mapping);
    mapping_ = *std::move(mapping);
    page_ = reinterpret_cast<ControlPage*>(mapping_.data());
  }
  Mapping mapping_;
  ControlPage* page_ = nullptr;
};

TEST_F(ControlPageTest, WaiterSeesTheEventThatMakesItsConditionTrue) {
  std::thread executor([this] {
    page_->units[3].state.store(2, std::memory_order_release);
    Bump(&page_->events);
  });
  EXPECT_OK(AwaitEvent(page_, 1, absl::Now() + absl::Seconds(30), Saying("unit 3"),
                       [this] { return page_->units[3].state.load() == 2; }));
  executor.join();
}

TEST_F(ControlPageTest, FailureOfTheEpochEndsTheWaitWithItsCause) {
  std::thread executor([this] { PublishFailure(page_, 5, absl::AbortedError("rank 2 died")); });
  EXPECT_THAT(
      AwaitEvent(page_, 5, absl::Now() + absl::Seconds(30), Saying("x"), [] { return false; }),
      StatusIs(absl::StatusCode::kAborted, "rank 2 died"));
  executor.join();
}

TEST_F(ControlPageTest, FailureOfAnOlderEpochIsNotSeen) {
  PublishFailure(page_, 5, absl::AbortedError("old"));
  EXPECT_OK(
      AwaitEvent(page_, 6, absl::Now() + absl::Seconds(30), Saying("x"), [] { return true; }));
}

TEST_F(ControlPageTest, LaterEpochEndsTheWaitsOfAnEarlierOne) {
  page_->epoch.store(6);
  EXPECT_THAT(
      AwaitEvent(page_, 5, absl::Now() + absl::Seconds(30), Saying("x"), [] { return true; }),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch 5 ended")));
}

TEST_F(ControlPageTest, DeadlineNamesWhatWasAwaited) {
  EXPECT_THAT(AwaitEvent(page_, 1, absl::Now(), Saying("unit 'blocks.0'"), [] { return false; }),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("unit 'blocks.0'")));
}

TEST_F(ControlPageTest, TextLongerThanItsRoomIsCutAndStillEnds) {
  char buffer[8];
  StoreText("0123456789", buffer, sizeof(buffer));
  EXPECT_EQ(LoadText(buffer, sizeof(buffer)), "0123456");
  StoreText("01234\u20ac", buffer, sizeof(buffer));
  EXPECT_EQ(LoadText(buffer, sizeof(buffer)), "01234") << "no half of a character";
}

ModelLayout SomeLayout(int num_units) {
  ModelSpec model;
  for (int i = 0; i < num_units; ++i) {
    model.units.push_back(
        {absl::StrCat("u", i), {{absl::StrCat("w", i), {100 + i, 3}, DType::kFp32}}});
  }
  return *ModelLayout::Create(model, LayoutOptions(), 3);
}

TEST(JobMemoryTest, UnitsDoNotOverlapAndNeighboursNeverShareAGradientSlot) {
  const ModelLayout layout = SomeLayout(9);
  JobConfig config;
  config.world_size = 3;
  ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(layout, config));
  int64_t parameter_end = 0, shard_end = 0;
  for (size_t i = 0; i < memory.units().size(); ++i) {
    const UnitMemory& unit = memory.units()[i];
    EXPECT_EQ(unit.parameter_offset_bytes % kPageBytes, 0);
    EXPECT_GE(unit.parameter_offset_bytes, parameter_end);
    parameter_end = unit.parameter_offset_bytes + unit.parameter_bytes;
    EXPECT_EQ(unit.shard_offset_elements, shard_end);
    shard_end += layout.units[i].shards.shard_numel();
    EXPECT_GE(memory.gradient_slot_bytes(), layout.units[i].shards.padded_numel() * 4);
    EXPECT_EQ(unit.gradient_slot == 0, i == 0);
    if (i > 1) {
      EXPECT_NE(unit.gradient_slot, memory.units()[i - 1].gradient_slot);
    }
  }
  EXPECT_LE(parameter_end, memory.parameter_region_bytes());
  EXPECT_EQ(shard_end, memory.shard_numel());
  EXPECT_EQ(memory.num_gradient_slots(), 3);
}

TEST(JobMemoryTest, UnitsOfLowPrecisionHaveAPlaceInFullPrecisionBehindAllUnits) {
  ModelLayout layout = SomeLayout(3);
  layout.units[1].compute_dtype = DType::kFp32;
  layout.units[2].reduce_dtype = DType::kBf16;
  JobConfig config;
  config.world_size = 3;
  config.compute_dtype = config.reduce_dtype = DType::kFp16;
  ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(layout, config));
  const std::vector<UnitMemory>& units = memory.units();
  EXPECT_EQ(units[0].compute_dtype, DType::kFp16);
  EXPECT_EQ(units[1].compute_dtype, DType::kFp32);
  EXPECT_EQ(units[1].reduce_dtype, DType::kFp16);
  EXPECT_EQ(units[2].reduce_dtype, DType::kBf16);
  EXPECT_EQ(units[1].full_offset_bytes, units[1].parameter_offset_bytes);
  EXPECT_EQ(units[0].full_offset_bytes, units[2].parameter_offset_bytes + units[2].parameter_bytes);
  EXPECT_EQ(units[2].full_offset_bytes, units[0].full_offset_bytes + units[0].full_bytes);
  EXPECT_EQ(memory.parameter_region_bytes(), units[2].full_offset_bytes + units[2].full_bytes);
  for (int unit : {0, 2}) {
    EXPECT_GE(units[unit].parameter_bytes, layout.units[unit].shards.padded_numel() * 2);
    EXPECT_GE(units[unit].full_bytes, layout.units[unit].shards.padded_numel() * 4);
  }
}

TEST(JobMemoryTest, UnitsInFp64TakeEightBytesAnElementAndAreAligned) {
  ModelSpec model;
  for (int u = 0; u < 4; ++u) {
    const DType dtype = u % 2 == 0 ? DType::kFp32 : DType::kFp64;
    const std::string name = absl::StrCat("u", u);
    model.units.push_back({name, {{name + ".w", {3 + 2 * u}, dtype}}});
  }
  model.units[3].compute_dtype = DType::kBf16;
  JobConfig config;
  config.world_size = 2;
  config.layout.shard_alignment_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(model, config));
  ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(layout, config));
  int64_t end_bytes = 0;
  for (int u = 0; u < 4; ++u) {
    const UnitMemory& unit = memory.units()[u];
    const int64_t size = u % 2 == 0 ? 4 : 8;
    EXPECT_EQ(unit.full_dtype, u % 2 == 0 ? DType::kFp32 : DType::kFp64);
    EXPECT_EQ(unit.compute_dtype, u == 3 ? DType::kBf16 : unit.full_dtype);
    EXPECT_EQ(unit.reduce_dtype, unit.full_dtype);
    EXPECT_EQ(memory.HasOtherFullMemory(u), u == 3);
    EXPECT_EQ(unit.shard_offset_bytes % size, 0);
    EXPECT_EQ(unit.shard_offset_bytes, unit.shard_offset_elements * size);
    EXPECT_GE(unit.shard_offset_bytes, end_bytes);
    EXPECT_LT(unit.shard_offset_bytes, end_bytes + 8);
    end_bytes = unit.shard_offset_bytes + layout.units[u].shards.shard_numel() * size;
    EXPECT_GE(memory.gradient_slot_bytes(), layout.units[u].shards.padded_numel() * size);
  }
  EXPECT_GE(memory.ReducedGradientOffsetBytes() / 6, end_bytes);
  EXPECT_GE(memory.units()[3].full_bytes, layout.units[3].shards.padded_numel() * 8);
}

TEST(JobMemoryTest, NoGradientSlotLimitGivesEachUnitItsOwn) {
  JobConfig config;
  config.world_size = 3;
  config.gradient_slots = 0;
  ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(SomeLayout(5), config));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(memory.units()[i].gradient_slot, i);
}

TEST(JobMemoryTest, OneUnitNeedsOneSlot) {
  JobConfig config;
  config.world_size = 3;
  ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(SomeLayout(1), config));
  EXPECT_EQ(memory.num_gradient_slots(), 1);
}

TEST(JobMemoryTest, AbsurdSizesAreRefusedByName) {
  ModelSpec model;
  model.units.push_back({"huge", {{"w", {int64_t{1} << 60}, DType::kFp32}}});
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, LayoutOptions(), 1));
  EXPECT_THAT(JobMemory::Create(layout, JobConfig()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::AllOf(HasSubstr("unit 'huge'"), HasSubstr("too large"))));
}

// A umask belongs to the whole process: files that other threads make meanwhile would have it.
TEST(FdPassingTest, ListeningLeavesTheUmaskAlone) {
  const auto umask_line = [] {
    std::ifstream status("/proc/self/status");
    std::string line;
    while (std::getline(status, line) && line.rfind("Umask:", 0) != 0) {
    }
    return line;
  };
  const std::string before = umask_line();
  ASSERT_FALSE(before.empty());
  std::string folder = "/tmp/tessera-XXXXXX";  // The sandbox's own folder is too deep for a socket.
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/s";
  std::atomic<bool> done = false;
  std::thread listens([&] {
    for (int i = 0; i < 500; ++i) EXPECT_OK(ListenPacketSocket(path));
    done = true;
  });
  while (!done) EXPECT_EQ(umask_line(), before);
  listens.join();
}

}  // namespace
}  // namespace tessera
