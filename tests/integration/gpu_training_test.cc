// Jobs whose ranks are on a GPU, which is a fake here: what they compute, and that they can do
// everything that a job on the host can.
#include "tests/testing/gpu_training.h"

#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/device_gradients.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::FakeGpuMemory;
using testing_support::MakeFakeGpuDevice;
using testing_support::ReadAllFrom;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::TrainToy;
using testing_support::TrainToyOn;

constexpr int kSteps = 4;
constexpr int kMaxRanks = 3;

enum class Gradients { kOnTheGpu, kInMemoryOfTheHost };

class GpuTrainingTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 32;  // Jobs stay.
    ASSERT_OK_AND_ASSIGN(on_host_, LocalCluster::Start(options));
    options.device_memory = FakeGpuMemory();
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = MakeFakeGpuDevice;
    ASSERT_OK_AND_ASSIGN(on_gpu_, LocalCluster::Start(options));
    ASSERT_OK_AND_ASSIGN(gpu_, MakeFakeGpuDevice(0));
    ASSERT_OK_AND_ASSIGN(host_, MakeFakeGpuDevice(kHostDevice));
  }

  // The same job, on the cluster.
  SessionOptions OptionsOn(const LocalCluster& cluster, const SessionOptions& job) {
    SessionOptions options = job;
    options.coordinator_address = cluster.coordinator_address();
    options.worker_address = cluster.worker_address();
    options.make_device = MakeFakeGpuDevice;
    return options;
  }
  SessionOptions Job(int world_size) {
    SessionOptions options = ToyOptions(*on_host_, absl::StrCat("job", ++num_jobs_), world_size);
    options.model = ToyModel(3, /*with_frozen=*/true);
    return options;
  }
  // Trains it and returns rank 0's view of the parameters.
  absl::StatusOr<std::vector<float>> Train(const LocalCluster& cluster, RankDevice* device,
                                           const SessionOptions& job, Gradients gradients,
                                           int micro_batches = 1) {
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(OptionsOn(cluster, job)));
    std::vector<float> values;
    RETURN_IF_ERROR(team.RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(gradients == Gradients::kOnTheGpu
                          ? TrainToyOn(session, device, kSteps, micro_batches)
                          : TrainToy(session, kSteps));
      ASSIGN_OR_RETURN(std::vector<float> all, ReadAllFrom(session, device));
      if (session->rank() == 0) values = std::move(all);
      return absl::OkStatus();
    }));
    return values;
  }
  void ExpectSameBits(const SessionOptions& job, Gradients gradients = Gradients::kOnTheGpu,
                      int micro_batches = 1) {
    ASSERT_OK_AND_ASSIGN(const std::vector<float> expected,
                         Train(*on_host_, host_.get(), job, gradients, micro_batches));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                         Train(*on_gpu_, gpu_.get(), job, gradients, micro_batches));
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(values, expected);
  }

  std::unique_ptr<LocalCluster> on_host_, on_gpu_;
  std::unique_ptr<RankDevice> gpu_, host_;
  int num_jobs_ = 0;
};

TEST_F(GpuTrainingTest, ParametersHaveTheBitsOfTheProcessorWhateverTheNumberOfRanks) {
  for (int world_size = 1; world_size <= kMaxRanks; ++world_size) {
    SCOPED_TRACE(world_size);
    SessionOptions job = Job(world_size);
    job.config.max_gradient_norm = 0.5;
    ExpectSameBits(job);
  }
}

TEST_F(GpuTrainingTest, EveryOptimizerAndNormHasTheBitsOfTheProcessor) {
  for (const OptimizerKind optimizer :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      SCOPED_TRACE(absl::StrCat("optimizer ", static_cast<int>(optimizer), ", norm ", p));
      SessionOptions job = Job(2);
      job.config.optimizer = optimizer;
      job.config.groups[0].momentum = optimizer == OptimizerKind::kSgd ? 0.9 : 0;
      job.config.max_gradient_norm = 0.5;
      job.config.gradient_norm_p = p;
      ExpectSameBits(job);
    }
  }
}

TEST_F(GpuTrainingTest, OffloadedStateHasTheSameBits) {
  for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    SessionOptions job = Job(2);
    job.config.optimizer = optimizer;
    job.config.cpu_offload = true;
    job.config.max_gradient_norm = 0.5;
    ExpectSameBits(job);
  }
}

TEST_F(GpuTrainingTest, GradientsMayLieInMemoryOfTheHost) {
  ExpectSameBits(Job(2), Gradients::kInMemoryOfTheHost);
}

TEST_F(GpuTrainingTest, ReductionsOfMicroBatchesAddUp) {
  ExpectSameBits(Job(2), Gradients::kOnTheGpu, /*micro_batches=*/3);
}

TEST_F(GpuTrainingTest, UpdatesInBackwardHaveTheSameBits) {
  SessionOptions job = Job(2);
  job.config.optimizer_in_backward = true;
  ExpectSameBits(job);
}

TEST_F(GpuTrainingTest, LowPrecisionGradientsThatAreKeptHaveTheSameBits) {
  SessionOptions job = Job(2);
  job.config.reduce_dtype = DType::kBf16;
  job.config.keep_low_precision_gradients = true;
  ExpectSameBits(job);
}

TEST_F(GpuTrainingTest, ClientWithoutTheGpuIsRefusedByName) {
  SessionOptions options = OptionsOn(*on_gpu_, Job(1));
  options.make_device = MakeHostRankDevice;
  EXPECT_THAT(Session::Open(options),
              StatusIs(absl::StatusCode::kUnimplemented,
                       testing::AllOf(HasSubstr("rank 0"), HasSubstr("GPU 0"))));
}

TEST_F(GpuTrainingTest, WhatIsNoGradientOfTheGpuIsRefusedByName) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam on_host, TrainerTeam::Open(OptionsOn(*on_host_, Job(1))));
  EXPECT_THAT(DeviceGradients(on_host.session(0)).Add(0, 0, nullptr, 1, DType::kFp32),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no GPU")));

  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsOn(*on_gpu_, Job(1))));
  Session* session = team.session(0);
  ASSERT_OK(TrainToyOn(session, gpu_.get(), 1));
  const int64_t numel = session->layout().units[1].flat.parameters()[0].numel;
  ASSERT_OK_AND_ASSIGN(const Buffer values, gpu_->Allocate(numel * sizeof(float)));
  DeviceGradients gradients(session);
  EXPECT_THAT(gradients.Add(1, 0, values.data(), numel - 1, DType::kFp32),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unit1.weight")));
  EXPECT_THAT(gradients.Add(1, 0, values.data(), numel, DType::kFp64),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fp64")));
  EXPECT_THAT(gradients.Add(1, 2, values.data(), 11, DType::kFp32),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unit1.frozen")));
  ASSERT_OK(session->AddGradient(1, 0, std::vector<float>(numel)));
  EXPECT_THAT(gradients.Add(1, 0, values.data(), numel, DType::kFp32),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'unit1'")));
}

}  // namespace
}  // namespace tessera
