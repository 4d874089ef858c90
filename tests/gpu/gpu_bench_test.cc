// The benchmark over a fake device whose clock goes as the test says.
#include "tests/gpu/gpu_bench.h"

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/gpu/device_kernels.h"
#include "tests/gpu/graph_bench.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr double kCopyBytesPerSecond = 1e9;  // Each counts twice: it is read and written.

// Kernels of the host, in the order of the stream, that take as long as their floor does at some
// part of the rate of a copy.
class FakeKernels : public MeasuredKernels {
 public:
  FakeKernels(FakeCudaApi* api, double part_of_copy) : api_(api), part_of_copy_(part_of_copy) {}
  absl::Status Adam(CudaStreamHandle* stream, int64_t count, const float* gradient, float* p,
                    float* m, float* v, uint16_t* published) override {
    return Enqueue(stream, 30 * count, [=] {
      host::AdamStep({}, count, gradient, p, m, v, p, m, v, nullptr, {published, DType::kBf16});
    });
  }
  absl::Status Cast(CudaStreamHandle* stream, DType from_dtype, const void* from, DType, void* to,
                    int64_t count, double) override {
    if (!cast_error.ok()) return cast_error;
    return Enqueue(stream, 6 * count, [=] {
      if (from_dtype == DType::kFp32) {
        host::CastFp32ToHalf(DType::kBf16, static_cast<const float*>(from),
                             static_cast<uint16_t*>(to), count);
      } else {
        host::CastHalfToFp32(DType::kBf16, static_cast<const uint16_t*>(from),
                             static_cast<float*>(to), count);
      }
    });
  }
  absl::Status Measure(CudaStreamHandle* stream, const float* values, int64_t count,
                       host::GradientStats* stats) override {
    return Enqueue(stream, 4 * count, [=] { *stats = host::MeasureGradient(values, count); });
  }
  absl::Status Sum(CudaStreamHandle* stream, absl::Span<const void* const> ranks, int64_t count,
                   float* sum, host::GradientStats* stats) override {
    const std::vector<const void*> inputs(ranks.begin(), ranks.end());
    return Enqueue(stream, 20 * count, [=] {
      host::ReduceSlices(inputs, DType::kFp32, count, 0.25, /*accumulate=*/false,
                         {sum, DType::kFp32}, stats);
    });
  }
  absl::Status Touch(CudaStreamHandle* stream, float* value) override {
    return Enqueue(stream, 0, [=] { *value = 0; });
  }

  absl::Status cast_error;

 private:
  absl::Status Enqueue(CudaStreamHandle* stream, int64_t bytes, std::function<void()> work) {
    const double seconds = bytes / (2 * kCopyBytesPerSecond * part_of_copy_);
    api_->RunOnStream(stream, [api = api_, seconds, work] {
      work();
      api->AdvanceClock(seconds);
    });
    return absl::OkStatus();
  }

  FakeCudaApi* const api_;
  const double part_of_copy_;
};

class GpuBenchTest : public testing::Test {
 protected:
  GpuBenchTest() {
    FakeCudaApi::Options options;
    options.copy_bytes_per_second = kCopyBytesPerSecond;
    api_ = std::make_unique<FakeCudaApi>(options);
    bench_.rounds = 3;
    bench_.warm_up_rounds = 1;
    bench_.repeats = 2;
    bench_.array_bytes = 1 << 20;
    bench_.region_bytes = 64 << 10;
    bench_.host_seconds = [this] { return host_seconds_ += 0.25; };
  }
  absl::StatusOr<std::vector<BenchRow>> Bench(MeasuredKernels* kernels) {
    absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(api_.get(), {});
    if (!device.ok()) return device.status();
    return BenchGpu(device->get(), kernels, bench_);
  }

  std::unique_ptr<FakeCudaApi> api_;
  BenchOptions bench_;
  double host_seconds_ = 0;
};

TEST_F(GpuBenchTest, RatesAreFloorsByTheDevicesTimeAndRatiosAreToItsCopy) {
  FakeKernels kernels(api_.get(), 0.5);
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&kernels));
  ASSERT_EQ(rows.size(), 13);
  const double copy = 2 * kCopyBytesPerSecond * 1e-9;
  EXPECT_NEAR(rows[0].value.median, copy, 1e-3 * copy);
  EXPECT_EQ(rows[0].unit, "GB/s");
  EXPECT_EQ(rows[0].ratio_to, "");
  for (int i = 1; i <= 5; ++i) {
    EXPECT_NEAR(rows[i].value.median, 0.5 * copy, 1e-3 * copy) << rows[i].name;
    EXPECT_NEAR(rows[i].ratio.low, 0.5, 1e-3) << rows[i].name;
    EXPECT_NEAR(rows[i].ratio.high, 0.5, 1e-3) << rows[i].name;
    EXPECT_EQ(rows[i].ratio_to, rows[0].name);
    EXPECT_TRUE(rows[i].misses_aim()) << rows[i].name;
  }
  for (int i = 6; i <= 7; ++i) {  // Of host copies each byte counts once.
    EXPECT_NEAR(rows[i].value.median, copy / 2, 1e-3 * copy) << rows[i].name;
    EXPECT_EQ(rows[i].aim, 0) << rows[i].name;
  }
  // By the host's clock, which a test has: 3 MiB in a quarter of a second.
  EXPECT_NEAR(rows[8].value.median, 3 * (1 << 20) / 0.25 * 1e-9, 1e-6);
  EXPECT_EQ(rows[8].ratio_to, rows[7].name);
  EXPECT_TRUE(rows[8].misses_aim());
  for (int i = 9; i <= 12; ++i) {
    EXPECT_NEAR(rows[i].value.median, 0.25e6, 1) << rows[i].name;
    EXPECT_EQ(rows[i].unit, "us");
  }
  EXPECT_EQ(rows[9].ratio_to, rows[10].name) << "a stall, and the least that it could be";
  EXPECT_EQ(rows[9].aim, 1);
  EXPECT_EQ(rows[9].ratio.median, 1) << "the test's clock makes them alike";
  EXPECT_EQ(api_->Held(), "");
}

TEST_F(GpuBenchTest, KernelAsFastAsACopyMeetsItsAim) {
  FakeKernels kernels(api_.get(), 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&kernels));
  for (const BenchRow& row : rows) {
    if (row.ratio_to != rows[0].name) continue;
    EXPECT_FALSE(row.misses_aim()) << row.name;
  }
}

TEST_F(GpuBenchTest, WhatCannotBeMeasuredSaysWhyAndTheRestIsMeasured) {
  FakeKernels kernels(api_.get(), 1);
  kernels.cast_error = absl::UnimplementedError("built without nvcc");
  // After some rounds, too: half of a figure is none.
  api_->FailCall("MemImportFromShareableHandle", kCudaNotPermitted, /*skip=*/2);
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&kernels));
  for (size_t i = 0; i < rows.size(); ++i) {
    const char* error = i == 2 || i == 3 ? "built without nvcc" : i == 11 ? "NOT_PERMITTED" : "";
    EXPECT_THAT(rows[i].error, HasSubstr(error)) << rows[i].name;
    EXPECT_EQ(rows[i].measured(), *error == '\0') << rows[i].name;
  }
  EXPECT_EQ(api_->Held(), "");
}

TEST_F(GpuBenchTest, DeviceThatBreaksMakesEveryRowVoid) {
  class Breaking : public FakeKernels {
   public:
    explicit Breaking(FakeCudaApi* api) : FakeKernels(api, 1), api_(api) {}
    absl::Status Touch(CudaStreamHandle* stream, float* value) override {
      api_->Break(kCudaIllegalAddress);
      return FakeKernels::Touch(stream, value);
    }
    FakeCudaApi* const api_;
  };
  Breaking kernels(api_.get());
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&kernels));
  for (const BenchRow& row : rows) {
    EXPECT_THAT(row.error, HasSubstr("ILLEGAL_ADDRESS")) << row.name;
  }
}

TEST_F(GpuBenchTest, ClockThatStandsStillIsAnErrorAndNoInfiniteRate) {
  api_ = std::make_unique<FakeCudaApi>();
  FakeKernels kernels(api_.get(), 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&kernels));
  EXPECT_THAT(rows[0].error, HasSubstr("stands still"));
  EXPECT_TRUE(rows[1].measured());
  EXPECT_EQ(rows[1].ratio_to, "") << "there is no copy to compare it with";
}

TEST_F(GpuBenchTest, WithoutADeviceOrMemoryNothingIsMeasured) {
  FakeCudaApi::Options options;
  options.num_devices = 0;
  api_ = std::make_unique<FakeCudaApi>(options);
  FakeKernels none(api_.get(), 1);
  EXPECT_THAT(Bench(&none), StatusIs(StatusCode::kNotFound, HasSubstr("NO_DEVICE")));
  options = {};
  options.memory_bytes = 15 * kMinArrayBytes;
  api_ = std::make_unique<FakeCudaApi>(options);
  FakeKernels small(api_.get(), 1);
  EXPECT_THAT(Bench(&small), StatusIs(StatusCode::kResourceExhausted, HasSubstr("bytes are free")));
  EXPECT_EQ(api_->Held(), "");
}

// What is measured on a device, over kernels that are loops of the host.
TEST(DeviceKernelsTest, EachIsTheKernelOfItsName) {
  FakeCudaApi api;
  ASSERT_OK_AND_ASSIGN(const auto device, CudaDevice::Create(&api, {}));
  ASSERT_OK_AND_ASSIGN(const auto gpu_kernels, GpuKernels::Create(device.get(), 2));
  DeviceKernels kernels(gpu_kernels.get());
  const float gradient[] = {1, 1};
  float p[] = {3, 3}, m[] = {0, 0}, v[] = {0, 0}, widened[] = {0, 0};
  uint16_t published[] = {0, 0};
  ASSERT_OK(kernels.Adam(nullptr, 2, gradient, p, m, v, published));
  EXPECT_LT(p[1], 3);
  EXPECT_GT(m[1], 0);
  EXPECT_GT(v[1], 0);
  EXPECT_EQ(published[1], 0x4040) << "3 as bf16: the step is below its last place";
  ASSERT_OK(kernels.Cast(nullptr, DType::kBf16, published, DType::kFp32, widened, 2, 0.5));
  EXPECT_EQ(widened[1], 1.5f);
  ASSERT_OK(kernels.Cast(nullptr, DType::kFp32, widened, DType::kBf16, published, 2, 2));
  EXPECT_EQ(published[1], 0x4040);
  host::GradientStats stats;
  ASSERT_OK(kernels.Measure(nullptr, widened, 2, &stats));
  EXPECT_EQ(stats.sum_of_squares, 4.5);
  stats = {};
  float sum[] = {0, 0};
  ASSERT_OK(kernels.Sum(nullptr, {widened, gradient, widened, gradient}, 2, sum, &stats));
  EXPECT_EQ(sum[1], 1.25f) << "the mean";
  EXPECT_EQ(stats.sum_of_squares, 2 * 1.25 * 1.25);
  ASSERT_OK(kernels.Touch(nullptr, widened));
  EXPECT_EQ(widened[0], 0);
  EXPECT_EQ(widened[1], 1.5f);
}

TEST_F(GpuBenchTest, GraphsOfAStepsHalvesHaveTheBitsOfItsLaunchesAndTheirTimesAreAUnits) {
  FakeKernels kernels(api_.get(), 1);
  ASSERT_OK_AND_ASSIGN(const auto device, CudaDevice::Create(api_.get(), {}));
  GraphBenchOptions options;
  options.rounds = 3;
  options.num_units = 5;
  options.unit_numel = 100;
  options.host_seconds = bench_.host_seconds;
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows,
                       BenchGraph(device.get(), &kernels, options));
  ASSERT_EQ(rows.size(), 5);
  for (const int half : {0, 2}) {
    EXPECT_NEAR(rows[half].value.median, 0.25e6 / 5, 1);
    EXPECT_NEAR(rows[half + 1].value.median, 0.25e6 / 5, 1);
    EXPECT_EQ(rows[half + 1].ratio_to, rows[half].name);
    EXPECT_NEAR(rows[half + 1].ratio.median, 1, 1e-6);
    EXPECT_EQ(rows[half + 1].aim, 0);
  }
  EXPECT_NEAR(rows[4].value.median, 2 * 0.25e6 / 5, 1)
      << "a unit has its own graph and is in that of all";
  EXPECT_EQ(rows[4].aim, 1);
  EXPECT_TRUE(rows[4].misses_aim()) << "a hundred thousand microseconds are more than one";
  for (const char* call : {"StreamBeginCapture", "StreamEndCapture", "GraphLaunch"}) {
    for (const int skip : {0, 1, 5}) {  // Of the first two units' sums, and of the updates.
      api_->FailCall(call, kCudaNotSupported, skip);
      EXPECT_THAT(BenchGraph(device.get(), &kernels, options),
                  StatusIs(StatusCode::kUnimplemented, HasSubstr(call)));
    }
  }
  EXPECT_THAT(api_->Held(), testing::Not(HasSubstr("graphs")));
  const int before = api_->num_calls("GraphLaunch");
  ASSERT_OK(BenchGraph(device.get(), &kernels, options).status());
  const int launches = api_->num_calls("GraphLaunch") - before;
  EXPECT_EQ(launches, (1 + 3 + 3) * 6)
      << "when compared and in six rounds: of five sums and of all updates";
}

// A graph has what was captured: kernels that do something else once they are called again show
// that the comparison sees it, in whatever they write.
TEST_F(GpuBenchTest, GraphThatLeavesOtherBitsThanItsLaunchesIsAnError) {
  class Drifting : public FakeKernels {
   public:
    Drifting(FakeCudaApi* api, int array, int at)
        : FakeKernels(api, 1), api_(api), array_(array), at_(at) {}
    absl::Status Sum(CudaStreamHandle* stream, absl::Span<const void* const> ranks, int64_t count,
                     float* sum, host::GradientStats* stats) override {
      RETURN_IF_ERROR(FakeKernels::Sum(stream, ranks, count, sum, stats));
      void* const written[] = {const_cast<void*>(ranks[0]), sum, &stats->sum_of_squares,
                               &stats->non_finite};
      if (++sums_ == at_ && array_ < 4) Flip(stream, written[array_]);
      return absl::OkStatus();
    }
    absl::Status Adam(CudaStreamHandle* stream, int64_t count, const float* gradient, float* p,
                      float* m, float* v, uint16_t* published) override {
      RETURN_IF_ERROR(FakeKernels::Adam(stream, count, gradient, p, m, v, published));
      void* const written[] = {p, m, v, published};
      if (++updates_ == at_ && array_ >= 4) Flip(stream, written[array_ - 4]);
      return absl::OkStatus();
    }

   private:
    void Flip(CudaStreamHandle* stream, void* byte) {
      api_->RunOnStream(stream, [byte] { *static_cast<char*>(byte) ^= 1; });
    }

    FakeCudaApi* const api_;
    const int array_, at_;
    int sums_ = 0, updates_ = 0;
  };
  ASSERT_OK_AND_ASSIGN(const auto device, CudaDevice::Create(api_.get(), {}));
  GraphBenchOptions options;
  options.rounds = 1;
  options.num_units = 5;
  options.unit_numel = 100;
  options.host_seconds = bench_.host_seconds;
  for (int array = 0; array < 8; ++array) {
    // The first five warm up, the next five are captured.
    for (const int at : {8, 13}) {
      Drifting kernels(api_.get(), array, at);
      EXPECT_THAT(BenchGraph(device.get(), &kernels, options),
                  StatusIs(StatusCode::kDataLoss, HasSubstr("have not the bits")))
          << array << " " << at;
    }
    Drifting warms_up(api_.get(), array, /*at=*/3);
    EXPECT_OK(BenchGraph(device.get(), &warms_up, options).status()) << array;
  }
}

TEST(ArrayBytesTest, AreWhatIsWantedOrASixteenthOfWhatIsFree) {
  EXPECT_EQ(*ArrayBytes(1 << 20, int64_t{1} << 40), 1 << 20);
  EXPECT_EQ(*ArrayBytes(int64_t{1} << 40, 16 << 20), 1 << 20);
  EXPECT_EQ(*ArrayBytes((1 << 20) + 1, int64_t{1} << 40), 1 << 20) << "whole pieces";
  EXPECT_THAT(ArrayBytes(1 << 20, 16 * kMinArrayBytes - 1),
              StatusIs(StatusCode::kResourceExhausted, testing::_));
}

TEST_F(GpuBenchTest, StallThatIsLongerThanTheLeastOneMissesItsAim) {
  FakeKernels kernels(api_.get(), 1);
  // Of the ten readings of a round the third and fourth are the stall's, the next two the record's.
  int readings = 0;
  bench_.host_seconds = [&, this] {
    const bool of_stall = ++readings % 10 == 4;
    return host_seconds_ += of_stall ? 0.5 : 0.25;
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, Bench(&kernels));
  EXPECT_EQ(rows[9].ratio.median, 0.5) << "times: the least by this one's";
  EXPECT_TRUE(rows[9].misses_aim());
}

TEST(BenchRowTest, RowsGoThroughJsonAndWhatIsNoneIsRefused) {
  BenchRow rate;
  rate.name = "AdamW";
  rate.unit = "GB/s";
  rate.value = {1, 2, 3};
  rate.ratio_to = "copy";
  rate.ratio = {0.5, 0.875, 1};
  rate.aim = 0.9;
  rate.gate = 0.875;
  BenchRow none;
  none.name = "import";
  none.error = "refused";
  BenchRow count;
  count.name = "kernels";
  count.value = {1, 1, 1};
  count.limit = 0;
  const std::string text = RowsToJson({rate, none, count});
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, RowsFromJson(text));
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(RowsToJson(rows), text);
  EXPECT_EQ(rows[0].ratio.median, 0.875);
  EXPECT_TRUE(rows[0].misses_aim());
  EXPECT_FALSE(rows[0].misses_gate());
  EXPECT_FALSE(rows[0].misses_limit()) << "there is none";
  EXPECT_TRUE(rows[2].misses_limit());
  EXPECT_EQ(rows[1].error, "refused");
  for (const char* bad : {"", "[]", "{}", "{\"rows\": []}", "{\"rows\": [{}]}",
                          "{\"rows\": [{\"name\": \"x\", \"unit\": 1}]}"}) {
    EXPECT_THAT(RowsFromJson(bad), StatusIs(StatusCode::kInvalidArgument, testing::_)) << bad;
  }
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
