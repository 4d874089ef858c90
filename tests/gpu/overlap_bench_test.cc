// Products during gathers over a fake GPU, with a fake product and a fake counter.
#include "tests/gpu/overlap_bench.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_gpu.h"

namespace tessera {
namespace gpu_check {
namespace {

using testing::HasSubstr;

class FakeGemm : public Gemm {
 public:
  absl::Status Enqueue(CudaStreamHandle* stream) override {
    testing_support::FakeGpu()->RunOnStream(stream, [] {});
    ++count_;
    return absl::OkStatus();
  }
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
};

// Sees the products, or nothing.
class FakeCounter : public KernelCounter {
 public:
  FakeCounter(const FakeGemm* gemm, bool sees) : gemm_(gemm), sees_(sees) {}
  absl::Status Start() override {
    before_ = gemm_->count();
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Stop() override { return sees_ ? gemm_->count() - before_ : 0; }

 private:
  const FakeGemm* const gemm_;
  const bool sees_;
  int64_t before_ = 0;
};

OverlapOptions Small() {
  OverlapOptions options;
  options.rounds = 3;
  options.warm_up_rounds = 1;
  options.gemms = 2;
  options.unit_bytes = 4096;
  options.counted_windows = 3;
  return options;
}

TEST(OverlapBenchTest, ProductIsMeasuredAloneAndBesideAndWindowsAreCounted) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, testing_support::FindGpuUnderTest());
  FakeGemm gemm;
  FakeCounter counter(&gemm, true);
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows,
                       BenchOverlap(gpu, &gemm, &counter, Small()));
  ASSERT_EQ(rows.size(), 4);
  for (const BenchRow& row : rows) EXPECT_TRUE(row.measured()) << row.error << row.absent;
  EXPECT_EQ(rows[0].ratio_to, "");
  for (const int beside : {1, 2}) {
    EXPECT_EQ(rows[beside].ratio_to, rows[0].name);
    EXPECT_GT(rows[beside].ratio.median, 0);
  }
  EXPECT_GT(rows[1].aim, 0.97);
  EXPECT_EQ(rows[3].value.median, 0) << "windows launch nothing";
  EXPECT_EQ(rows[3].limit, 0);
  EXPECT_EQ(gemm.count(), 4 * 3 * 2 + 2) << "rounds, ways, products, and those that are counted";
}

TEST(OverlapBenchTest, CounterThatIsNotThereIsToldAndOneThatSeesNothingIsAnError) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, testing_support::FindGpuUnderTest());
  FakeGemm gemm;
  ASSERT_OK_AND_ASSIGN(
      const std::vector<BenchRow> without,
      BenchOverlap(gpu, &gemm, absl::NotFoundError("no CUPTI: libcupti.so"), Small()));
  EXPECT_EQ(without[3].absent, "no CUPTI: libcupti.so");
  EXPECT_EQ(without[3].error, "");
  FakeCounter blind(&gemm, false);
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, BenchOverlap(gpu, &gemm, &blind, Small()));
  EXPECT_THAT(rows[3].error, HasSubstr("of 2 products 0 kernels were counted"));
  EXPECT_TRUE(rows[1].measured());
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
