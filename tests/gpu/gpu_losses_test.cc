// The demo's model on a GPU, and what its training is for: losses that fall, the same ones to the
// bit on ranks of the host.
//
// They can be the same since nothing between them rounds otherwise. Forward and backward are the
// same program's (byte_gpt_training.h), so a loss depends on parameters alone. A parameter depends
// on sums, on their norm and on AdamW: sums run in rank order in fp32 wherever the ranks are, NCCL
// only moves what a kernel then adds (docs/adr/0027), norms are added up in one order everywhere
// (docs/adr/0037), and kernels and CPU round each operation alike.
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/executor/host_executor.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/gpu/nccl_executors.h"
#include "tests/testing/byte_gpt_training.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace gpu_check {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_support::ByteGptOptions;
using testing_support::ByteGptTraining;
using testing_support::FindGpuUnderTest;
using testing_support::GpuUnderTest;
using testing_support::ReadAllFrom;
using testing_support::TrainByteGptOn;
using testing_support::TrainerTeam;
using testing_support::WordsOf;

// What a training came to.
struct Outcome {
  std::vector<std::vector<double>> losses;  // By rank and step.
  std::vector<float> parameters;            // In the end.
};

struct Case {
  int num_workers;
  int ranks_per_worker;

  int world_size() const { return num_workers * ranks_per_worker; }
};

class GpuLossesTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    absl::StatusOr<GpuUnderTest> gpu = FindGpuUnderTest();
    if (absl::IsNotFound(gpu.status()) || absl::IsUnimplemented(gpu.status()))
      GTEST_SKIP() << gpu.status().message();
    ASSERT_OK(gpu);
    gpu_ = *std::move(gpu);
    if (gpu_.in_process() && GetParam().ranks_per_worker > 1)
      GTEST_SKIP() << "a worker has one rank of a job here: " << gpu_.memory->why_not_shared();
    training_.text = WordsOf(/*seed=*/7, /*size_bytes=*/20'000);
  }
  LocalCluster::Options Workers() const {
    LocalCluster::Options options;
    options.num_workers = GetParam().num_workers;
    options.num_devices = GetParam().ranks_per_worker;
    return options;
  }
  LocalCluster::Options WorkersOnGpu() const {
    LocalCluster::Options options = Workers();
    options.device_memory = gpu_.memory;
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = gpu_.make_device;
    return options;
  }
  absl::StatusOr<Outcome> Train(const LocalCluster::Options& workers) {
    ASSIGN_OR_RETURN(const auto cluster, LocalCluster::Start(workers));
    const bool on_gpu = workers.device_memory != nullptr;
    ASSIGN_OR_RETURN(const auto device, gpu_.make_device(on_gpu ? 0 : kHostDevice));
    const int world_size = GetParam().world_size();
    SessionOptions options = ByteGptOptions(*cluster, "gpt", world_size, training_);
    options.make_device = gpu_.make_device;
    if (on_gpu && gpu_.in_process()) options.host_executor = RunExecutorHere({gpu_.make_device});
    std::vector<std::string> worker_addresses;
    for (int rank = 0; rank < world_size; ++rank) {
      worker_addresses.push_back(cluster->worker_address(rank / GetParam().ranks_per_worker));
    }
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options, worker_addresses));
    Outcome outcome;
    outcome.losses.resize(world_size);
    std::vector<std::vector<float>> parameters(world_size);
    RETURN_IF_ERROR(team.RunAll([&](Session* session) -> absl::Status {
      const int rank = session->rank();
      ASSIGN_OR_RETURN(outcome.losses[rank], TrainByteGptOn(session, device.get(), training_));
      ASSIGN_OR_RETURN(parameters[rank], ReadAllFrom(session, device.get()));
      return absl::OkStatus();
    }));
    EXPECT_EQ(parameters.front(), parameters.back());
    outcome.parameters = parameters.front();
    return outcome;
  }
  // The losses of ranks on the host, which show real training.
  absl::StatusOr<Outcome> Expected() {
    ASSIGN_OR_RETURN(Outcome outcome, Train(Workers()));
    const int64_t last = training_.steps - 1;
    const auto mean = [&](int64_t step) {
      double sum = 0;
      for (const std::vector<double>& of_rank : outcome.losses) sum += of_rank[step];
      return sum / static_cast<double>(outcome.losses.size());
    };
    // Of 256 bytes each is as likely at first: log 256 = 5.55.
    EXPECT_NEAR(mean(0), 5.55, 0.1);
    EXPECT_LT(mean(last), 3.0);
    EXPECT_NE(outcome.losses.front(), outcome.losses.back()) << "ranks have other windows";
    return outcome;
  }
  static void ExpectSame(const Outcome& found, const Outcome& expected) {
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (size_t rank = 0; rank < expected.losses.size(); ++rank)
      EXPECT_EQ(found.losses[rank], expected.losses[rank]) << "rank " << rank;
    EXPECT_EQ(found.parameters, expected.parameters);
  }

  GpuUnderTest gpu_;
  ByteGptTraining training_;
};

TEST_P(GpuLossesTest, AreThoseOfTheProcessorsRanksInEachStep) {
  ASSERT_OK_AND_ASSIGN(const Outcome expected, Expected());
  LocalCluster::Options workers = WorkersOnGpu();
  if (!gpu_.in_process()) workers.executor_binary = gpu_.executor_binary;
  ASSERT_OK_AND_ASSIGN(const Outcome found, Train(workers));
  ExpectSame(found, expected);
}

// Each rank a worker of its own, all on the one GPU.
class GpuNcclLossesTest : public GpuLossesTest {
 protected:
  void SetUp() override {
    GpuLossesTest::SetUp();
    if (IsSkipped()) return;
    if (gpu_.in_process()) GTEST_SKIP() << "nothing goes over NCCL here";
    const absl::Status found = executors_.SetUp(&gpu_);
    if (absl::IsUnimplemented(found)) GTEST_SKIP() << found.message();
    ASSERT_OK(found);
  }

  NcclExecutors executors_;
};

TEST_P(GpuNcclLossesTest, AreThoseOfTheProcessorsRanksInEachStep) {
  LocalCluster::Options workers = WorkersOnGpu();
  executors_.ChooseFor(&workers);
  const absl::StatusOr<Outcome> found = Train(workers);
  const std::string log = executors_.TakeLog();
  ASSERT_OK(found) << log;
  EXPECT_THAT(log, HasSubstr("data directly from GPU to GPU"));
  EXPECT_THAT(log, Not(HasSubstr("through host memory")));
  ASSERT_OK_AND_ASSIGN(const Outcome expected, Expected());
  ExpectSame(*found, expected);
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.world_size(), "ranksOn", info.param.num_workers, "workers");
}

INSTANTIATE_TEST_SUITE_P(Device, GpuLossesTest,
                         testing::Values(Case{1, 2}, Case{1, 4}, Case{2, 2}, Case{2, 1},
                                         Case{4, 1}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Device, GpuNcclLossesTest, testing::Values(Case{2, 1}, Case{4, 1}),
                         NameOf);

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
