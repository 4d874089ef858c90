// A worker, its executors and its trainers that see the machine's GPUs under other numbers, as
// where CUDA_VISIBLE_DEVICES differs: a GPU is meant by its UUID. Its memory is made by one driver
// and mapped by others, which are fakes.
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/device_gradients.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/host/host_rank_device.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::FakeGpu;
using testing_support::ReadAllFrom;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::TrainToyOn;

constexpr int kSteps = 3;
constexpr int kRanks = 2;

// A process's view of the machine's three GPUs.
class View {
 public:
  explicit View(std::vector<int> visible) : api_(OptionsOf(std::move(visible))) {}
  CudaApi* api() { return &api_; }
  MakeRankDevice Maker() {
    return [this](const DeviceName& device) -> absl::StatusOr<std::unique_ptr<RankDevice>> {
      if (device.is_host()) return MakeHostRankDevice(device);
      return CudaRankDevice::Create(&api_, device);
    };
  }

 private:
  static FakeCudaApi::Options OptionsOf(std::vector<int> visible) {
    FakeGpu();  // Has kernels wait for streams, of whichever driver.
    FakeCudaApi::Options options;
    options.visible = std::move(visible);
    return options;
  }
  FakeCudaApi api_;
};

class GpuVisibilityTest : public testing::Test {
 protected:
  // The worker's --gpu.
  void Start(const std::string& gpu, View* executors) {
    ASSERT_OK_AND_ASSIGN(const DeviceName name, ParseDeviceName(gpu));
    LocalCluster::Options options;
    options.num_devices = 2 * kRanks;
    ASSERT_OK_AND_ASSIGN(options.device_memory, CudaDeviceMemory::Create(worker_.api(), name));
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = executors->Maker();
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  absl::StatusOr<std::vector<float>> Train(LocalCluster* cluster, View* trainers, int number) {
    SessionOptions options = ToyOptions(*cluster, "toy", kRanks);
    options.make_device = trainers->Maker();
    ASSIGN_OR_RETURN(const auto device, trainers->Maker()(number));
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options));
    std::vector<float> values;
    RETURN_IF_ERROR(team.RunAll([&](Session* session) -> absl::Status {
      EXPECT_EQ(DeviceGradients(session).device(), number);
      RETURN_IF_ERROR(TrainToyOn(session, device.get(), kSteps));
      if (session->rank() == 0) {
        ASSIGN_OR_RETURN(values, ReadAllFrom(session, device.get()));
      }
      return absl::OkStatus();
    }));
    return values;
  }

  View worker_{{0, 1, 2}};
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(GpuVisibilityTest, EachProcessFindsItsOwnNumberOfTheGpuAndTheBitsAreThoseOfTheProcessor) {
  LocalCluster::Options on_host;
  on_host.num_devices = kRanks;
  ASSERT_OK_AND_ASSIGN(const auto host, LocalCluster::Start(on_host));
  View none({0});
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Train(host.get(), &none, kHostDevice));
  // Of the machine's GPU 2, which the one or the other is told of.
  for (const std::string& gpu : {std::string("2"), UuidText(FakeCudaApi::UuidOf(2))}) {
    SCOPED_TRACE(gpu);
    View executors({2, 0}), trainers({1, 2});
    Start(gpu, &executors);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Train(cluster_.get(), &trainers, 1));
    EXPECT_EQ(values, expected);
    cluster_.reset();
  }
}

TEST_F(GpuVisibilityTest, TrainerThatDoesNotSeeTheGpuIsToldByUuidAndNumber) {
  View executors({2}), trainers({0, 1});
  Start("2", &executors);
  SessionOptions options = ToyOptions(*cluster_, "toy", 1);
  options.make_device = trainers.Maker();
  const absl::Status status = Session::Open(options).status();
  cluster_.reset();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                               AllOf(HasSubstr("rank 0 is on another device"),
                                     HasSubstr(UuidText(FakeCudaApi::UuidOf(2)) +
                                               ", which is cuda:2 of the worker, is not among"),
                                     HasSubstr(UuidText(FakeCudaApi::UuidOf(1))))));
}

TEST_F(GpuVisibilityTest, WorkerThatDoesNotSeeTheGpuIsToldByUuid) {
  View worker({0});
  EXPECT_THAT(CudaDeviceMemory::Create(worker.api(), {kNoNumber, FakeCudaApi::UuidOf(2)}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr(UuidText(FakeCudaApi::UuidOf(2)) + " is not among")));
}

}  // namespace
}  // namespace tessera
