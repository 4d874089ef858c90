// Ranks over the machine's own NCCL, a process each, where it and a device are there: what every
// communicator must do, and ranks that are killed. What brings the ranks there runs over the fakes
// everywhere.
#include <signal.h>

#include <memory>
#include <tuple>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/communicator_conformance.h"
#include "worker/comm/nccl/nccl_processes.h"
#include "worker/comm/nccl/nccl_test_group.h"
#include "worker/comm/nccl/staged_communicator.h"
#include "worker/device/cuda/device_region.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

CommunicatorBackend Backend(
    const char* name,
    std::function<std::vector<absl::Status>(const GroupOptions&, const RankBody&)> run) {
  CommunicatorBackend backend;
  backend.name = name;
  backend.run = std::move(run);
  // Each rank has memory of its own, so to mapped operations it is a host.
  backend.hosts = [](int size) { return std::vector<int>(size, 1); };
  return backend;
}

// Threads, as in nccl_conformance_test.cc, but their buffers are the host's.
std::vector<absl::Status> RunStagedThreads(const GroupOptions& group, const RankBody& body) {
  NcclTestOptions options;
  options.size = group.size;
  options.shared_bytes = group.shared_bytes;
  options.nccl = [](int) {
    FakeNcclApi::Options nccl;
    nccl.device_buffers_only = true;
    return nccl;
  };
  return RunNcclRanks(options, [&](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<NcclCommunicator> comm,
                     NcclCommunicator::Create(rank.options));
    ASSIGN_OR_RETURN(const std::unique_ptr<StagedCommunicator> staged,
                     StagedCommunicator::Create(comm.get(), rank.options.device));
    RETURN_IF_ERROR(rank.control->Barrier());
    rank.control->set_timeout(group.timeout);
    return body(RankContext{staged.get(), rank.shared});
  });
}

std::vector<absl::Status> RunProcesses(MakeNcclMachine machine, bool library_sums,
                                       const GroupOptions& group, const RankBody& body) {
  NcclProcessOptions options;
  options.group = group;
  options.machine = std::move(machine);
  options.library_sums = library_sums;
  return RunNcclProcesses(options, body);
}

CommunicatorBackend FakeProcesses() {
  return Backend("fake", [](const GroupOptions& group, const RankBody& body) {
    return RunProcesses(MakeFakeNcclMachine, false, group, body);
  });
}

CommunicatorBackend RealProcesses(bool library_sums) {
  CommunicatorBackend backend =
      Backend("device", [library_sums](const GroupOptions& group, const RankBody& body) {
        return RunProcesses(MakeRealNcclMachine, library_sums, group, body);
      });
  backend.library_sums = library_sums;
  backend.available = [] {
    static const absl::Status found = FindRealNccl();
    return found;
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(StagedOverFakes, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("staged", RunStagedThreads)),
                                          testing::Values(1, 2, 3)));
INSTANTIATE_TEST_SUITE_P(ProcessOverFakes, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(FakeProcesses()), testing::Values(1)));
INSTANTIATE_TEST_SUITE_P(Device, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(RealProcesses(false)),
                                          testing::Values(1, 2, 3)));
// Of two there is only one order to add them in.
INSTANTIATE_TEST_SUITE_P(DeviceLibrarySums, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(RealProcesses(true)),
                                          testing::Values(2)));

TEST(PlaceNcclRankTest, RankHasADeviceOfItsOwnOrSharesOneWithoutNcclSeeingIt) {
  EXPECT_EQ(PlaceNcclRank(2, 3, 3, 22809).device, 2);
  EXPECT_THAT(PlaceNcclRank(2, 3, 4, 22809).environment, ElementsAre());
  const NcclPlacement old = PlaceNcclRank(2, 3, 2, 22907);
  EXPECT_EQ(old.device, 0);
  EXPECT_THAT(old.environment,
              ElementsAre(Pair("NCCL_HOSTID", "tessera-rank-2"), Pair("NCCL_NET", "Socket"),
                          Pair("NCCL_SOCKET_IFNAME", "lo"), Pair("NCCL_NVLS_ENABLE", "0")));
  EXPECT_NE(PlaceNcclRank(1, 2, 1, 22907).environment[0],
            PlaceNcclRank(0, 2, 1, 22907).environment[0]);
  EXPECT_THAT(PlaceNcclRank(1, 2, 1, 23003).environment[0],
              Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1"));
}

// Two ranks; the second one is killed.
class NcclKillTest : public testing::TestWithParam<CommunicatorBackend> {
 protected:
  void SetUp() override {
    const absl::Status available = GetParam().available();
    if (!available.ok()) GTEST_SKIP() << available;
  }
};

TEST_P(NcclKillTest, RankThatIsKilledBetweenOperationsIsNamedByTheOther) {
  NcclProcessOptions options;
  options.group.size = 2;
  options.group.timeout = absl::Milliseconds(500);
  const auto statuses = RunNcclProcesses(options, [](const RankContext& c) -> absl::Status {
    RETURN_IF_ERROR(c.comm->Barrier());
    if (c.comm->rank() == 1) raise(SIGKILL);
    const std::vector<char> send(1000);
    std::vector<char> recv(2000);
    return c.comm->AllGather(send.data(), recv.data(), 1000);
  });
  EXPECT_THAT(statuses[0], StatusIs(StatusCode::kDeadlineExceeded, HasSubstr(" 1 of 2")));
  EXPECT_THAT(statuses[1], StatusIs(StatusCode::kInternal, HasSubstr("killed by signal 9")));
}

// Dies where the first piece of an operation has come, before the next one is asked for.
class DyingKernels : public SliceKernels {
 public:
  absl::Status Reduce(CudaStreamHandle*, absl::Span<const void* const>, ElementType, int64_t,
                      double, bool, host::SumOutput, host::GradientStats*) override {
    return absl::UnimplementedError("not called");
  }
  absl::Status Combine(CudaStreamHandle*, absl::Span<const void* const>, ElementType, ReduceOp,
                       double, int64_t, void*) override {
    raise(SIGKILL);
    return absl::OkStatus();
  }
};

TEST_P(NcclKillTest, RankThatIsKilledInsideAnOperationIsAnErrorOfTheOtherWithinItsDeadline) {
  NcclProcessOptions options;
  options.group.size = 2;
  options.timeout = absl::Seconds(20);  // Of joining, too.
  options.machine = [](int rank, int size) -> absl::StatusOr<NcclMachine> {
    ASSIGN_OR_RETURN(NcclMachine machine, MakeRealNcclMachine(rank, size));
    if (rank == 1) machine.kernels = new DyingKernels();
    return machine;
  };
  const auto statuses = RunNcclProcesses(options, [](const RankContext& c) {
    std::vector<float> buffer(100'000, 1.0f);  // Many pieces.
    return c.comm->AllReduce(buffer.data(), buffer.size(), DType::kFp32, ReduceOp::kSum, 1);
  });
  EXPECT_THAT(statuses[0].code(), AnyOf(StatusCode::kDeadlineExceeded, StatusCode::kUnavailable,
                                        StatusCode::kInternal));
  EXPECT_THAT(std::string(statuses[0].message()),
              AnyOf(HasSubstr("AllReduce"), HasSubstr("ncclAllGather")));
  EXPECT_THAT(statuses[1], StatusIs(StatusCode::kInternal, HasSubstr("killed by signal 9")));
}

// One step's gather and reduction, of registered memory, by whole numbers.
absl::Status StepRegistered(NcclCommunicator::Options options) {
  constexpr int64_t kSlice = 100'000;
  const int size = options.control->size(), rank = options.control->rank();
  const int64_t bytes = size * kSlice * static_cast<int64_t>(sizeof(float));
  PrimaryContext* context = options.device->context();
  const SharingDevice sharing = {context->api(), context->device(), context};
  ASSIGN_OR_RETURN(const Buffer parameters, AllocateRegion(sharing, bytes));
  ASSIGN_OR_RETURN(const Buffer gradients, AllocateRegion(sharing, bytes));
  ASSIGN_OR_RETURN(const Buffer sums, AllocateRegion(sharing, bytes / size));
  options.registers = true;
  options.max_slice_bytes = bytes / size;
  for (const Buffer* buffer : {&parameters, &gradients})
    options.regions.push_back({buffer->data(), buffer->size_bytes()});
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, options.device->CreateStream("test"));
  std::vector<float> values(size * kSlice);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000 + rank);
  for (const Buffer* buffer : {&parameters, &gradients})
    options.device->Copy(stream.get(), buffer->data(), values.data(), bytes);
  stream->Synchronize();
  ASSIGN_OR_RETURN(const std::unique_ptr<NcclCommunicator> comm, NcclCommunicator::Create(options));
  RANK_EXPECT(comm->is_registered() || !options.nccl->registers(), "the library did not take it");
  RETURN_IF_ERROR(comm->AllGatherMapped(parameters.data_as<std::byte>(), bytes / size));
  std::vector<const void*> sends(size, nullptr);
  sends[rank] = gradients.data();
  std::vector<ElementRange> slices;
  for (int r = 0; r < size; ++r) slices.push_back({r * kSlice, (r + 1) * kSlice});
  const std::vector<ElementRange> parts = {{0, size * kSlice}};
  RETURN_IF_ERROR(comm->ReduceScatterMapped(sends, slices, parts, DType::kFp32, 1.0, false,
                                            sums.data_as<float>(), nullptr));
  std::vector<float> sum(kSlice);
  options.device->Copy(stream.get(), values.data(), parameters.data(), bytes);
  options.device->Copy(stream.get(), sum.data(), sums.data(), bytes / size);
  stream->Synchronize();
  for (int64_t i = 0; i < size * kSlice; ++i)
    RANK_EXPECT(values[i] == static_cast<float>(i % 1000 + i / kSlice), "parameter ", i);
  for (int64_t i = 0; i < kSlice; ++i) {
    const int64_t each = (rank * kSlice + i) % 1000;
    RANK_EXPECT(sum[i] == static_cast<float>(size * each + size * (size - 1) / 2), "sum ", i);
  }
  return options.device->status();
}

class NcclRegisteredTest : public testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(NcclRegisteredTest, MemoryOfTheKeepersKindIsTakenAndResultsAreRight) {
  const auto& [is_real, size] = GetParam();
  if (is_real) {
    const absl::Status found = FindRealNccl();
    if (!found.ok()) GTEST_SKIP() << found;
  }
  NcclProcessOptions options;
  options.group.size = size;
  if (!is_real) options.machine = MakeFakeNcclMachine;
  for (const absl::Status& status : RunNcclProcessesOnDevice(options, StepRegistered))
    EXPECT_OK(status);
}

INSTANTIATE_TEST_SUITE_P(Fake, NcclRegisteredTest, testing::Values(std::tuple(false, 1)));
INSTANTIATE_TEST_SUITE_P(Device, NcclRegisteredTest,
                         testing::Combine(testing::Values(true), testing::Values(2, 3)));
INSTANTIATE_TEST_SUITE_P(Device, NcclKillTest, testing::Values(RealProcesses(false)));

}  // namespace
}  // namespace tessera
