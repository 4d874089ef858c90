// Shares over a fake GPU, by a clock of the test's: what takes time of it are a trainer's records
// of events, which are part of the executor's work, products, and kernels that this process
// launches: those of passes, and of reductions where the executor is in it.
#include "tests/gpu/step_overlap.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_gpu.h"
#include "worker/device/cuda/kernel_launch_on_host.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;
using testing::HasSubstr;
using testing_support::FakeGpu;

constexpr char kPasses[] = "passes over memory", kProducts[] = "products of matrices";
const char* const kWays[] = {"executor a process", "executor in the trainer"};
constexpr int kRowsOfAKind = 2 + 2 * 3;
constexpr int kUnits = 3;

std::atomic<int64_t> launches{0};

void CountLaunch(void* stream) {
  ++launches;
  FakeGpu()->AwaitStream(static_cast<CudaStreamHandle*>(stream));
}

class FakeGemm : public Gemm {
 public:
  // The one of that number fails; 0: none does.
  explicit FakeGemm(int64_t fails_at = 0) : fails_at_(fails_at) {}
  absl::Status Enqueue(CudaStreamHandle* stream) override {
    // A call that wants a context, as cuBLAS does.
    EXPECT_OK(FakeGpu()->CtxGetStreamPriorityRange());
    if (++enqueued_ == fails_at_) return absl::InternalError("cublasGemmEx said 13");
    FakeGpu()->RunOnStream(stream, [this] { ++done_; });
    return absl::OkStatus();
  }
  int64_t enqueued() const { return enqueued_; }
  int64_t done() const { return done_; }

 private:
  const int64_t fails_at_;
  int64_t enqueued_ = 0;
  std::atomic<int64_t> done_{0};
};

class StepOverlapTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(gpu_, testing_support::FindGpuUnderTest());
    held_ = FakeGpu()->Held();
    gpu::AwaitStreamsBeforeLaunches(CountLaunch);
    options_.steps.rounds = 3;
    options_.steps.warm_up_rounds = 1;
    options_.steps.steps_per_round = 2;
    options_.steps.num_units = kUnits;
    options_.steps.unit_numel = 1000;
    options_.forward_passes = 1;
    options_.host_seconds = [this] { return Now(gemm_); };
  }
  void TearDown() override { EXPECT_EQ(FakeGpu()->Held(), held_); }
  absl::StatusOr<std::vector<BenchRow>> Bench(absl::StatusOr<Gemm*> gemm) {
    std::vector<BenchRow> all;
    const auto add = [&](const std::vector<BenchRow>& rows) {
      all.insert(all.end(), rows.begin(), rows.end());
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(BenchStepOverlap(
        gpu_, options_, [&] { return gemm; }, add));
    return all;
  }
  double Now(const FakeGemm& gemm) {
    EXPECT_OK(FakeGpu()->CtxSetCurrent(nullptr));  // Code that needs one sets it itself.
    readings_ += reading_seconds_;
    return readings_ + record_seconds_ * FakeGpu()->num_calls("EventRecord") +
           launch_seconds_ * static_cast<double>(launches) +
           product_seconds_ * static_cast<double>(gemm.done());
  }
  std::map<std::string, BenchRow> ByName(const std::vector<BenchRow>& rows) {
    std::map<std::string, BenchRow> by_name;
    for (const BenchRow& row : rows) EXPECT_TRUE(by_name.emplace(row.name, row).second) << row.name;
    return by_name;
  }
  static std::string Alone(const std::string& kind) { return kind + " of a step, alone"; }
  static std::string Kernels(const std::string& kind) {
    return "copies and sums between " + kind + ", kernels alone";
  }
  static std::string Work(const std::string& kind, const std::string& way) {
    return "windows and reductions between " + kind + ", " + way;
  }
  static std::string Both(const std::string& kind, const std::string& way) {
    return kind + " beside windows and reductions, " + way;
  }
  static std::string Share(const std::string& kind, const std::string& way) {
    return "hidden share beside " + kind + ", " + way;
  }
  static void ExpectKind(const std::string& kind, std::map<std::string, BenchRow> rows) {
    EXPECT_EQ(rows[Alone(kind)].unit, "us");
    EXPECT_GT(rows[Alone(kind)].value.low, 0);
    EXPECT_EQ(rows[Kernels(kind)].unit, "us");
    EXPECT_GT(rows[Kernels(kind)].value.low, 0);
    for (const char* way : kWays) {
      SCOPED_TRACE(kind + " " + way);
      for (const std::string& time : {Work(kind, way), Both(kind, way)}) {
        EXPECT_EQ(rows[time].unit, "us");
        EXPECT_GT(rows[time].value.low, 0) << time;
      }
      EXPECT_EQ(rows[Both(kind, way)].ratio_to, Alone(kind));
      EXPECT_GT(rows[Both(kind, way)].ratio.low, 0);
      EXPECT_EQ(rows[Work(kind, way)].ratio_to, Kernels(kind));
      EXPECT_GT(rows[Work(kind, way)].ratio.low, 0);
      EXPECT_EQ(rows[Share(kind, way)].unit, "");
    }
  }

  testing_support::GpuUnderTest gpu_;
  StepOverlapOptions options_;
  FakeGemm gemm_;
  double readings_ = 0;
  double reading_seconds_ = 1e-4, record_seconds_ = 1e-3, launch_seconds_ = 2e-3,
         product_seconds_ = 1e-4;
  std::string held_;
};

TEST_F(StepOverlapTest, EachWayHasTimesAndSharesBesideEachKindOfCompute) {
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&gemm_));
  ASSERT_EQ(rows.size(), kRowsOfAKind + 1 + kRowsOfAKind);
  for (const BenchRow& row : rows) EXPECT_TRUE(row.measured()) << row.error << row.absent;
  std::map<std::string, BenchRow> by_name = ByName(rows);
  ExpectKind(kPasses, by_name);
  ExpectKind(kProducts, by_name);
  for (const char* way : kWays) {
    // By this clock all take their time, whatever runs concurrently.
    EXPECT_NEAR(by_name[Share(kPasses, way)].value.median, 0, 0.1) << way;
    EXPECT_NEAR(by_name[Share(kProducts, way)].value.median, 0, 0.1) << way;
  }
  // A unit has a pass in forward, two in backward and a cast; and a sum whose measure is a second
  // kernel.
  const double launch_us = launch_seconds_ * 1e6;
  EXPECT_NEAR(by_name[Alone(kPasses)].value.median, 4 * kUnits * launch_us, 0.5 * launch_us);
  EXPECT_NEAR(by_name[Kernels(kPasses)].value.median, 2 * kUnits * launch_us, 0.5 * launch_us);
}

TEST_F(StepOverlapTest, ProductsTakeThreeTimesAsLongAsTheLongerWork) {
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&gemm_));
  ASSERT_EQ(rows.size(), kRowsOfAKind + 1 + kRowsOfAKind);
  std::map<std::string, BenchRow> by_name = ByName(rows);
  double work_us[2];
  for (const int i : {0, 1}) work_us[i] = by_name[Work(kPasses, kWays[i])].value.median;
  EXPECT_GT(work_us[0], 5e3) << "each unit's events are recorded";
  EXPECT_GT(work_us[1], 1.2 * work_us[0]) << "and its kernels are launched by this process";
  const double products_us = by_name[Alone(kProducts)].value.median;
  EXPECT_GE(products_us, 3 * work_us[1] / 1.25);
  EXPECT_LE(products_us, 3 * work_us[1] * 1.25);
  const BenchRow& count = rows[kRowsOfAKind];
  EXPECT_EQ(count.name, "products of 2048 rows and columns in a step");
  EXPECT_EQ(count.unit, "");
  EXPECT_NEAR(count.value.median * product_seconds_ * 1e6, products_us, 0.1 * products_us);
}

TEST_F(StepOverlapTest, EachPartOfAUnitHasAProductHoweverLongThatTakes) {
  product_seconds_ = 10;
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&gemm_));
  ASSERT_EQ(rows.size(), kRowsOfAKind + 1 + kRowsOfAKind);
  EXPECT_EQ(rows[kRowsOfAKind].value.median, 3 * kUnits);
  EXPECT_NEAR(ByName(rows)[Alone(kProducts)].value.median, 3 * kUnits * 10e6, 1e5);
}

TEST_F(StepOverlapTest, RowsOfPassesAreKeptBeforeTheLibraryIsLoaded) {
  std::vector<size_t> added;
  const auto add = [&](const std::vector<BenchRow>& rows) {
    added.push_back(rows.size());
    return absl::OkStatus();
  };
  const auto load = [&]() -> absl::StatusOr<Gemm*> {
    EXPECT_THAT(added, testing::ElementsAre(kRowsOfAKind));
    return absl::NotFoundError("none");
  };
  EXPECT_OK(BenchStepOverlap(gpu_, options_, load, add));
  EXPECT_THAT(added, testing::ElementsAre(kRowsOfAKind, 1));
  int loaded = 0;
  const auto count_loads = [&]() -> absl::StatusOr<Gemm*> {
    ++loaded;
    return &gemm_;
  };
  const auto refuse = [](const std::vector<BenchRow>&) {
    return absl::ResourceExhaustedError("no room");
  };
  EXPECT_THAT(BenchStepOverlap(gpu_, options_, count_loads, refuse),
              StatusIs(StatusCode::kResourceExhausted, "no room"));
  EXPECT_EQ(loaded, 0);
}

TEST_F(StepOverlapTest, MachineWithoutTheLibraryIsToldAndThePassesAreMeasured) {
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows,
                       Bench(absl::NotFoundError("no cuBLAS: libcublas.so")));
  ASSERT_EQ(rows.size(), kRowsOfAKind + 1);
  EXPECT_EQ(rows.back().absent, "no cuBLAS: libcublas.so");
  EXPECT_EQ(rows.back().error, "");
  ExpectKind(kPasses, ByName(rows));
}

TEST_F(StepOverlapTest, LibraryThatRefusesIsAnErrorAndNotAbsent) {
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows,
                       Bench(absl::InternalError("cublasCreate said 3")));
  ASSERT_EQ(rows.size(), kRowsOfAKind + 1);
  EXPECT_THAT(rows.back().error, HasSubstr("cublasCreate said 3"));
  EXPECT_EQ(rows.back().absent, "");
  ExpectKind(kPasses, ByName(rows));
}

// At the first one; while their number is searched; and during windows and reductions, when a step
// has started.
TEST_F(StepOverlapTest, ProductThatFailsTakesTheRowsOfProductsAndNoOther) {
  ASSERT_OK(Bench(&gemm_).status());
  const int64_t all = gemm_.enqueued();
  for (const int64_t fails_at : {int64_t{1}, int64_t{3}, all / 2, all - 1}) {
    FakeGemm failing(fails_at);
    options_.host_seconds = [&] { return Now(failing); };
    ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&failing));
    ASSERT_EQ(rows.size(), kRowsOfAKind + 1) << fails_at << " of " << all;
    EXPECT_THAT(rows.back().error, HasSubstr("cublasGemmEx said 13"));
    ExpectKind(kPasses, ByName(rows));
  }
}

TEST_F(StepOverlapTest, ProductsOfWhichTheClockSeesNothingAreAnErrorWithWhatWasTried) {
  product_seconds_ = 0;
  options_.steps.steps_per_round = 1;
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&gemm_));
  ASSERT_EQ(rows.size(), kRowsOfAKind + 1);
  EXPECT_THAT(rows.back().error, HasSubstr("no number of products takes"));
  EXPECT_THAT(rows.back().error, HasSubstr("65536 took 0.0001 s"));
  ExpectKind(kPasses, ByName(rows));
}

TEST_F(StepOverlapTest, ClockThatStandsStillIsAnErrorAndNoShare) {
  reading_seconds_ = record_seconds_ = launch_seconds_ = product_seconds_ = 0;
  EXPECT_THAT(Bench(&gemm_).status(), StatusIs(StatusCode::kInternal, HasSubstr("stands still")));
}

TEST(HiddenSharesTest, AreOfTheShorterAndOfEachRound) {
  const std::vector<double> compute = {10, 10, 10, 4, 10}, work = {4, 4, 4, 10, 4},
                            both = {10, 14, 12, 10, 15};
  EXPECT_EQ(HiddenShares(compute, work, both), (std::vector<double>{1, 0, 0.5, 1, -0.25}));
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
