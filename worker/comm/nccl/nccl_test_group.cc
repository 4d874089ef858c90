#include "worker/comm/nccl/nccl_test_group.h"

#include <memory>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "worker/comm/shm/shm_test_group.h"
#include "worker/device/cuda/fake_slice_kernels.h"

namespace tessera {
namespace {

// What a call that is stuck in the library may still use.
struct Machine {
  Machine(const NcclTestOptions& options, FakeNcclWorld* world, int rank)
      : cuda(options.cuda_of ? options.cuda_of(rank) : options.cuda),
        nccl(world, &cuda, options.nccl ? options.nccl(rank) : FakeNcclApi::Options()),
        kernels(&cuda) {}
  FakeCudaApi cuda;
  FakeNcclApi nccl;
  FakeSliceKernels kernels;
  std::unique_ptr<CudaDevice> device;
};

void KeepForEver(std::unique_ptr<Machine> machine) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const kept = new std::vector<std::unique_ptr<Machine>>();
  absl::MutexLock lock(&mu);
  kept->push_back(std::move(machine));
}

absl::Status RunRank(const NcclTestOptions& options, FakeNcclWorld* world,
                     const SharedMapping& mapping, char* shared, int rank,
                     const NcclTestBody& body) {
  NcclTestRank test;
  GroupOptions group;
  group.size = options.size;
  test.control_options = ShmOptions(group, mapping);
  test.control_options.rank = rank;
  ASSIGN_OR_RETURN(const std::unique_ptr<ShmCommunicator> control,
                   ShmCommunicator::Create(test.control_options));
  auto machine = std::make_unique<Machine>(options, world, rank);
  ASSIGN_OR_RETURN(machine->device, CudaDevice::Create(&machine->cuda, {}));
  ASSIGN_OR_RETURN(const std::unique_ptr<NcclThread> thread, NcclThread::Create());
  test.rank = rank;
  test.size = options.size;
  test.shared = shared;
  test.cuda = &machine->cuda;
  test.nccl = &machine->nccl;
  test.control = control.get();
  test.thread = thread.get();
  test.options.nccl = &machine->nccl;
  test.options.thread = thread.get();
  test.options.device = machine->device.get();
  test.options.kernels = &machine->kernels;
  test.options.control = control.get();
  test.options.control_aborted = [control = control.get()] { return control->aborted(); };
  test.options.staging_bytes = 16 << 10;  // Small, so that tests have many pieces.
  const absl::Status status = body(test);
  const int misuses = machine->nccl.misuses();
  if (thread->stuck()) KeepForEver(std::move(machine));
  if (misuses != 0) return absl::InternalError("NCCL was called as it must not be");
  return status;
}

std::vector<absl::Status> RunGroup(const GroupOptions& group, bool library_sums,
                                   const RankBody& body) {
  NcclTestOptions options;
  options.size = group.size;
  options.shared_bytes = group.shared_bytes;
  return RunNcclRanks(options, [&](NcclTestRank& rank) -> absl::Status {
    rank.options.library_sums = library_sums;
    ASSIGN_OR_RETURN(const std::unique_ptr<NcclCommunicator> comm,
                     NcclCommunicator::Create(rank.options));
    rank.control->set_timeout(group.timeout);  // Joining may take longer than a test allows.
    return body(RankContext{comm.get(), rank.shared});
  });
}

}  // namespace

std::vector<absl::Status> RunNcclRanks(const NcclTestOptions& options, const NcclTestBody& body) {
  GroupOptions group;
  group.size = options.size;
  const SharedMapping mapping(ShmBytes(group));
  const SharedMapping shared(options.shared_bytes);
  FakeNcclWorld world;
  std::vector<absl::Status> statuses(options.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = RunRank(options, &world, mapping, shared.data(), rank, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

std::vector<absl::Status> RunNcclGroup(const GroupOptions& options, const RankBody& body) {
  return RunGroup(options, /*library_sums=*/false, body);
}

std::vector<absl::Status> RunNcclGroupWithLibrarySums(const GroupOptions& options,
                                                      const RankBody& body) {
  return RunGroup(options, /*library_sums=*/true, body);
}

}  // namespace tessera
