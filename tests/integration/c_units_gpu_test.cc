// The driver of units over a GPU, which is a fake here: gradients stay the caller's until they are
// read, and are read after the streams that wrote them.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/c/handles.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/device_gradients.h"
#include "tessera/local_cluster.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/held_stream.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::FakeGpuMemory;
using testing_support::HeldStream;
using testing_support::InitializeToy;
using testing_support::MakeFakeGpuDevice;
using testing_support::ReadAll;
using testing_support::ToyOptions;

constexpr int kUnits = 6;

// A job of one rank, and a trainer that drives its units through the C interface.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Open(bool on_gpu) {
    auto trainer = std::make_unique<Trainer>();
    LocalCluster::Options options;
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = MakeFakeGpuDevice;
    if (on_gpu) options.device_memory = FakeGpuMemory();
    ASSIGN_OR_RETURN(trainer->cluster_, LocalCluster::Start(options));
    SessionOptions job = ToyOptions(*trainer->cluster_, "toy", /*world_size=*/1, kUnits);
    job.coordinator_address = trainer->cluster_->coordinator_address();
    job.worker_address = trainer->cluster_->worker_address(0);
    job.make_device = MakeFakeGpuDevice;
    ASSIGN_OR_RETURN(trainer->handle_.session, Session::Open(job));
    RETURN_IF_ERROR(InitializeToy(trainer->session()));
    const std::vector<int> modules(kUnits, 1);
    RETURN_IF_ERROR(c_api::FromCallback(
        tessera_units_new(&trainer->handle_, modules.data(), -1, &trainer->units_)));
    return trainer;
  }
  ~Trainer() { tessera_units_delete(units_); }

  Session* session() { return handle_.session.get(); }
  tessera_units* units() { return units_; }
  const std::vector<PlacedParameter>& Parameters(int unit) {
    return session()->layout().units[unit].flat.parameters();
  }

  absl::Status BeginBackward() {
    std::vector<tessera_unit_work> work;
    for (int unit = 0; unit < kUnits; ++unit)
      work.push_back({unit, 0, static_cast<int32_t>(Parameters(unit).size())});
    return c_api::FromCallback(tessera_units_begin_backward(units_, work.data(), work.size()));
  }
  absl::Status Give(int unit, int parameter, const std::vector<float>& values) {
    const tessera_gradient gradient = {values.data(), Parameters(unit)[parameter].numel, parameter,
                                       TESSERA_FP32};
    return c_api::FromCallback(tessera_units_gradients(units_, unit, &gradient, 1));
  }
  absl::Status EndBackward() {
    return c_api::FromCallback(tessera_units_end_backward(units_, /*failed=*/0));
  }
  std::vector<float> Values(int unit, int parameter, float value) {
    return std::vector<float>(Parameters(unit)[parameter].numel, value);
  }
  // Of unit `from` from its `first_parameter` on, then of the units before.
  absl::Status GiveAll(float value, int from = kUnits - 1, size_t first_parameter = 0) {
    for (int unit = from; unit >= 0; --unit) {
      for (size_t p = unit == from ? first_parameter : 0; p < Parameters(unit).size(); ++p) {
        kept_.push_back(Values(unit, static_cast<int>(p), value));
        RETURN_IF_ERROR(Give(unit, static_cast<int>(p), kept_.back()));
      }
    }
    return absl::OkStatus();
  }
  // A whole backward, and the step.
  absl::Status Train(float value) {
    RETURN_IF_ERROR(BeginBackward());
    RETURN_IF_ERROR(GiveAll(value));
    RETURN_IF_ERROR(EndBackward());
    return session()->Step().status();
  }

 private:
  std::unique_ptr<LocalCluster> cluster_;
  tessera_session handle_;
  tessera_units* units_ = nullptr;
  std::deque<std::vector<float>> kept_;
};

TEST(UnitsGpuTest, GradientsOnAGpuTrainToTheBitsOfHostMemory) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, Trainer::Open(/*on_gpu=*/true));
  ASSERT_OK_AND_ASSIGN(const auto host, Trainer::Open(/*on_gpu=*/false));
  EXPECT_EQ(tessera_units_reads(gpu->units(), 0), 0);
  for (const float value : {0.5f, -0.25f}) {
    ASSERT_OK(gpu->Train(value));
    ASSERT_OK(host->Train(value));
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ReadAll(host->session()));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> trained, ReadAll(gpu->session()));
  EXPECT_EQ(trained, expected);
}

TEST(UnitsGpuTest, AGradientIsReadAfterItsStreamThoughAnotherOneCameSince) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, Trainer::Open(/*on_gpu=*/true));
  ASSERT_OK_AND_ASSIGN(const auto host, Trainer::Open(/*on_gpu=*/false));
  ASSERT_OK_AND_ASSIGN(const auto device, MakeFakeGpuDevice(0));
  constexpr int kLast = kUnits - 1;
  std::vector<float> late = gpu->Values(kLast, 0, 77.0f);
  HeldStream writes(device.get(), [&] { std::fill(late.begin(), late.end(), 0.5f); });
  HeldStream idle(device.get());
  idle.LetGo();
  ASSERT_OK(gpu->BeginBackward());
  tessera_units_set_stream(gpu->units(), writes.stream());
  ASSERT_OK(gpu->Give(kLast, 0, late));
  EXPECT_EQ(tessera_units_reads(gpu->units(), kLast), 1);
  tessera_units_set_stream(gpu->units(), idle.stream());
  absl::Notification ended;
  std::thread rest([&] {
    EXPECT_OK(gpu->GiveAll(0.5f, /*from=*/kLast, /*first_parameter=*/1));
    EXPECT_OK(gpu->EndBackward());
    ended.Notify();
  });
  // It cannot end, however long it has.
  EXPECT_FALSE(ended.WaitForNotificationWithTimeout(absl::Milliseconds(300)));
  writes.LetGo();
  rest.join();
  for (int unit = 0; unit < kUnits; ++unit) EXPECT_EQ(tessera_units_reads(gpu->units(), unit), 0);
  ASSERT_OK(gpu->session()->Step());
  ASSERT_OK(host->Train(0.5f));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ReadAll(host->session()));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> trained, ReadAll(gpu->session()));
  EXPECT_EQ(trained, expected);
}

TEST(UnitsGpuTest, AfterABackwardThatFailedNothingOfItIsReadAgain) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, Trainer::Open(/*on_gpu=*/true));
  ASSERT_OK_AND_ASSIGN(const auto host, Trainer::Open(/*on_gpu=*/false));
  // Units share gradient slots, so that not all can keep a gradient that is not reduced.
  for (int unit = 0; unit < kUnits; ++unit) tessera_units_set_sync(gpu->units(), unit, 0);
  ASSERT_OK(gpu->BeginBackward());
  std::vector<std::vector<float>> kept;
  absl::Status status;
  for (int unit = kUnits - 1; unit >= 0; --unit) {
    for (size_t p = 0; p < gpu->Parameters(unit).size(); ++p) {
      kept.push_back(gpu->Values(unit, static_cast<int>(p), 3.0f));
      status.Update(gpu->Give(unit, static_cast<int>(p), kept.back()));
    }
  }
  status.Update(gpu->EndBackward());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("slot")));
  for (int unit = 0; unit < kUnits; ++unit) {
    EXPECT_EQ(tessera_units_reads(gpu->units(), unit), 0) << unit;
    tessera_units_set_sync(gpu->units(), unit, 1);
  }
  for (std::vector<float>& values : kept) std::fill(values.begin(), values.end(), 1e30f);
  ASSERT_OK(gpu->session()->DropGradients());
  ASSERT_OK(gpu->Train(0.5f));
  ASSERT_OK(host->Train(0.5f));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ReadAll(host->session()));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> trained, ReadAll(gpu->session()));
  EXPECT_EQ(trained, expected);
}

TEST(UnitsGpuTest, AGradientOfAnotherTypeIsRefusedWithTheUnitsName) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, Trainer::Open(/*on_gpu=*/true));
  ASSERT_OK(gpu->BeginBackward());
  const std::vector<double> values(gpu->Parameters(1)[0].numel, 1.0);
  const tessera_gradient gradient = {values.data(), gpu->Parameters(1)[0].numel, 0, TESSERA_FP64};
  EXPECT_EQ(tessera_units_gradients(gpu->units(), 1, &gradient, 1), TESSERA_INVALID_ARGUMENT);
  EXPECT_THAT(tessera_last_error(), HasSubstr("unit1"));
}

}  // namespace
}  // namespace tessera
