// What the kernels' wrappers refuse, everywhere; the kernels beside the host's, where there is a
// device.
#include "worker/device/cuda/gpu_kernels.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

TEST(GpuKernelsTest, ImpossibleArgumentsAreRefusedByNameAndNothingIsLaunched) {
  FakeCudaApi api;
  ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
  EXPECT_THAT(GpuKernels::Create(device.get(), 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("0 elements")));
  ASSERT_OK_AND_ASSIGN(auto kernels, GpuKernels::Create(device.get(), 100));
  float value = 1;
  float* null = nullptr;
  host::GradientStats stats;
  const void* inputs[] = {&value};
  const std::vector<const void*> too_many(kMaxSlices + 1, &value);
  const std::pair<absl::Status, const char*> refused[] = {
      {kernels->Cast(nullptr, DType::kFp32, &value, DType::kBf16, null, 1, 1), "Cast: a pointer"},
      {kernels->Cast(nullptr, DType::kInt32, &value, DType::kFp32, &value, 1, 1),
       "Cast: it has no"},
      {kernels->Scale(nullptr, &value, DType::kBf16, 1, 2), "Scale: it has no such dtype"},
      {kernels->Scale(nullptr, &value, DType::kFp32, -1, 2), "Scale: -1 elements"},
      {kernels->Fill(nullptr, DType::kFp32, null, 1, 42), "Fill: a pointer is null"},
      {kernels->Measure(nullptr, DType::kFp32, &value, 101, &stats), "101 elements, and 100"},
      {kernels->Reduce(nullptr, {}, DType::kFp32, 1, 1, false, &value, nullptr), "0 inputs"},
      {kernels->Reduce(nullptr, too_many, DType::kFp32, 1, 1, false, &value, nullptr),
       "257 inputs"},
      {kernels->Reduce(nullptr, inputs, DType::kFp64, 1, 1, false, &value, nullptr),
       "no such dtype"},
      {kernels->Combine(nullptr, inputs, DType::kFp16, SliceOp::kSum, 1, &value), "no such dtype"},
      {kernels->Checksum(nullptr, DType::kFp32, &value, 1, nullptr), "Checksum: a pointer is null"},
  };
  for (const auto& [status, text] : refused) {
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, HasSubstr(text)));
  }
  EXPECT_OK(kernels->Fill(nullptr, DType::kFp32, null, 0, 42)) << "nothing to do";
}

// With a device, or nothing.
class GpuKernelsDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<CudaApi*> api = LoadCudaApi();
    if (!api.ok()) GTEST_SKIP() << api.status();
    absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(*api, {});
    if (absl::IsNotFound(device.status())) GTEST_SKIP() << device.status();
    ASSERT_OK(device);
    device_ = *std::move(device);
    ASSERT_OK_AND_ASSIGN(kernels_, GpuKernels::Create(device_.get(), 1 << 20));
    ASSERT_OK_AND_ASSIGN(stream_, CudaStream::Create(device_->context(), "test", 0));
  }
  template <typename T>
  Buffer Upload(const std::vector<T>& values) {
    absl::StatusOr<Buffer> buffer = device_->Allocate(values.size() * sizeof(T));
    EXPECT_OK(buffer);
    device_->Copy(stream_.get(), buffer->data(), values.data(), values.size() * sizeof(T));
    stream_->Synchronize();
    return *std::move(buffer);
  }
  template <typename T>
  std::vector<T> Download(const Buffer& buffer) {
    std::vector<T> values(buffer.size_bytes() / sizeof(T));
    device_->Copy(stream_.get(), values.data(), buffer.data(), buffer.size_bytes());
    stream_->Synchronize();
    EXPECT_OK(device_->status());
    return values;
  }
  static std::vector<float> Values(int seed) {
    std::vector<float> values(10007);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i * (seed + 3))) * (i % 5 == 0 ? 1e-3f : 20.0f);
    }
    return values;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<GpuKernels> kernels_;
  std::unique_ptr<CudaStream> stream_;
};

TEST_F(GpuKernelsDeviceTest, SumMeasureAndCastHaveTheBitsOfTheHosts) {
  const std::vector<float> a = Values(1), b = Values(2);
  const int64_t count = a.size();
  const Buffer on_a = Upload(a), on_b = Upload(b), on_sum = Upload(a);
  ASSERT_OK_AND_ASSIGN(const Buffer stats, device_->AllocatePinned(sizeof(host::GradientStats)));
  *stats.data_as<host::GradientStats>() = {};
  const void* inputs[] = {on_a.data(), on_b.data()};
  ASSERT_OK(kernels_->Reduce(stream_->handle(), inputs, DType::kFp32, count, 0.3, false,
                             on_sum.data_as<float>(), stats.data_as<host::GradientStats>()));
  const std::vector<float> sum = Download<float>(on_sum);
  std::vector<float> expected(count);
  host::GradientStats measured;
  const void* on_host[] = {a.data(), b.data()};
  host::ReduceSlices(on_host, DType::kFp32, count, 0.3, false, expected.data(), &measured);
  EXPECT_EQ(sum, expected);
  EXPECT_EQ(stats.data_as<host::GradientStats>()->sum_of_squares, measured.sum_of_squares);
  EXPECT_FALSE(stats.data_as<host::GradientStats>()->non_finite);
  for (DType dtype : {DType::kBf16, DType::kFp16}) {
    const Buffer halves = Upload(std::vector<uint16_t>(count));
    ASSERT_OK(kernels_->CopyIn(stream_->handle(), DType::kFp32, on_sum.data(), dtype, halves.data(),
                               count));
    std::vector<uint16_t> narrow(count);
    host::CastFp32ToHalf(dtype, expected.data(), narrow.data(), count);
    EXPECT_EQ(Download<uint16_t>(halves), narrow) << Name(dtype);
  }
}

TEST_F(GpuKernelsDeviceTest, AdamHasTheBitsOfTheHosts) {
  const std::vector<float> g = Values(1), p = Values(2), m = Values(3), v(p.size(), 0.25f);
  const int64_t count = g.size();
  const Buffer on_g = Upload(g), on_p = Upload(p), on_m = Upload(m), on_v = Upload(v);
  const Buffer halves = Upload(std::vector<uint16_t>(count));
  host::AdamParams params;
  params.weight_decay = 0.1;
  params.decoupled_weight_decay = true;
  params.bias_correction2 = 0.01;
  ASSERT_OK(kernels_->AdamStep(stream_->handle(), params, count, on_g.data_as<float>(),
                               on_p.data_as<float>(), on_m.data_as<float>(), on_v.data_as<float>(),
                               on_p.data_as<float>(), on_m.data_as<float>(), on_v.data_as<float>(),
                               nullptr, {halves.data_as<uint16_t>(), DType::kBf16}));
  std::vector<float> p_out(count), m_out(count), v_out(count);
  std::vector<uint16_t> published(count);
  host::AdamStep(params, count, g.data(), p.data(), m.data(), v.data(), p_out.data(), m_out.data(),
                 v_out.data(), nullptr, {published.data(), DType::kBf16});
  EXPECT_EQ(Download<float>(on_p), p_out);
  EXPECT_EQ(Download<float>(on_m), m_out);
  EXPECT_EQ(Download<float>(on_v), v_out);
  EXPECT_EQ(Download<uint16_t>(halves), published);
}

}  // namespace
}  // namespace tessera
