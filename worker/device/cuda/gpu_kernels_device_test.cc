// Compares the kernels with the host's, to the bit. Built three times: over the machine's device,
// where it has one, and, with TESSERA_KERNELS_ON_HOST and a fake device, over loops of the host in
// the kernels' place, and over the kernels themselves by threads of the host (see
// kernel_emulator.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/measured_sum.h"
#include "worker/device/cuda/gpu_kernels_fixture.h"
#include "worker/device/cuda/kernel_math.h"

namespace tessera {
namespace {

class GpuKernelsDeviceTest : public GpuKernelsFixture {
 protected:
  template <typename Real>
  void ExpectAdamOfTheHosts();
  template <typename Real>
  void ExpectSgdOfTheHosts();
  template <typename Fp8>
  void ExpectCastsOf(Fp8Format format);
  template <typename Real>
  void ExpectNormsOfTheHosts(DType dtype, int64_t count);
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

template <typename Real>
void GpuKernelsDeviceTest::ExpectAdamOfTheHosts() {
  const std::vector<Real> g = ValuesOf<Real>(1), p = ValuesOf<Real>(2), m = ValuesOf<Real>(3);
  const std::vector<Real> v(p.size(), Real(0.25));
  const int64_t count = g.size();
  host::AdamParams params;
  params.weight_decay = 0.1;
  params.gradient_scale = 0.7;
  params.bias_correction2 = 0.01;
  for (const bool decoupled : {true, false}) {
    params.decoupled_weight_decay = decoupled;
    const Buffer on_g = Upload(g), on_p = Upload(p), on_m = Upload(m), on_v = Upload(v);
    const Buffer full = Upload(std::vector<Real>(count));
    const Buffer halves = Upload(std::vector<uint16_t>(count));
    ASSERT_OK(kernels_->AdamStep(stream_->handle(), params, count, on_g.data_as<Real>(),
                                 on_p.data_as<Real>(), on_m.data_as<Real>(), on_v.data_as<Real>(),
                                 on_p.data_as<Real>(), on_m.data_as<Real>(), on_v.data_as<Real>(),
                                 full.data_as<Real>(), {halves.data_as<uint16_t>(), DType::kBf16}));
    std::vector<Real> p_out(count), m_out(count), v_out(count), published(count);
    std::vector<uint16_t> rounded(count);
    host::AdamStep(params, count, g.data(), p.data(), m.data(), v.data(), p_out.data(),
                   m_out.data(), v_out.data(), published.data(), {rounded.data(), DType::kBf16});
    EXPECT_EQ(Download<Real>(on_p), p_out);
    EXPECT_EQ(Download<Real>(on_m), m_out);
    EXPECT_EQ(Download<Real>(on_v), v_out);
    EXPECT_EQ(Download<Real>(full), published);
    EXPECT_EQ(Download<uint16_t>(halves), rounded);
  }
}

TEST_F(GpuKernelsDeviceTest, AdamHasTheBitsOfTheHosts) {
  ExpectAdamOfTheHosts<float>();
  ExpectAdamOfTheHosts<double>();
}

template <typename Real>
void GpuKernelsDeviceTest::ExpectSgdOfTheHosts() {
  const std::vector<Real> g = ValuesOf<Real>(1), p = ValuesOf<Real>(2), b = ValuesOf<Real>(3);
  const int64_t count = g.size();
  for (const bool first_step : {true, false}) {
    const Buffer on_g = Upload(g), on_p = Upload(p), on_b = Upload(b);
    const Buffer full = Upload(std::vector<Real>(count));
    const Buffer halves = Upload(std::vector<uint16_t>(count));
    host::SgdParams params;
    params.momentum = 0.9;
    params.weight_decay = 0.01;
    params.gradient_scale = 0.5;
    params.first_step = first_step;
    ASSERT_OK(kernels_->SgdStep(stream_->handle(), params, count, on_g.data_as<Real>(),
                                on_p.data_as<Real>(), on_b.data_as<Real>(), on_p.data_as<Real>(),
                                on_b.data_as<Real>(), full.data_as<Real>(),
                                {halves.data_as<uint16_t>(), DType::kFp16}));
    std::vector<Real> p_out(count), b_out(count), published(count);
    std::vector<uint16_t> rounded(count);
    host::SgdStep(params, count, g.data(), p.data(), b.data(), p_out.data(), b_out.data(),
                  published.data(), {rounded.data(), DType::kFp16});
    EXPECT_EQ(Download<Real>(on_p), p_out);
    EXPECT_EQ(Download<Real>(on_b), b_out);
    EXPECT_EQ(Download<Real>(full), published);
    EXPECT_EQ(Download<uint16_t>(halves), rounded);
  }
}

TEST_F(GpuKernelsDeviceTest, SgdHasTheBitsOfTheHosts) {
  ExpectSgdOfTheHosts<float>();
  ExpectSgdOfTheHosts<double>();
}

template <typename Fp8>
void GpuKernelsDeviceTest::ExpectCastsOf(Fp8Format format) {
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), uint8_t{0});
  const Buffer on_codes = Upload(codes), wide = Upload(std::vector<float>(256));
  ASSERT_OK(kernels_->CastFromFp8(stream_->handle(), format, on_codes.data_as<uint8_t>(),
                                  DType::kFp32, wide.data(), 256, 0.5));
  const std::vector<float> values = Download<float>(wide);
  for (int code = 0; code < 256; ++code) {
    const float expected = gpu::Widen(Fp8{static_cast<uint8_t>(code)}) * 0.5f;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(values[code])) << code;
    } else {
      EXPECT_EQ(values[code], expected) << code;
    }
  }
  const std::vector<float> floats = Values(6);
  const Buffer on_floats = Upload(floats), narrow = Upload(std::vector<uint8_t>(floats.size()));
  ASSERT_OK(kernels_->CastToFp8(stream_->handle(), DType::kFp32, on_floats.data(), format,
                                narrow.data_as<uint8_t>(), floats.size(), 37));
  const std::vector<uint8_t> rounded = Download<uint8_t>(narrow);
  for (size_t i = 0; i < floats.size(); ++i) {
    Fp8 expected;
    gpu::CastElement(floats[i], 37, &expected);
    ASSERT_EQ(rounded[i], expected.bits) << floats[i];
  }
}

TEST_F(GpuKernelsDeviceTest, CastsOfEightBitsHaveTheBitsOfTheHosts) {
  ExpectCastsOf<gpu::Fp8E4M3>(Fp8Format::kE4M3);
  ExpectCastsOf<gpu::Fp8E5M2>(Fp8Format::kE5M2);
}

TEST_F(GpuKernelsDeviceTest, RoundingInPlaceHasTheBitsOfTheHosts) {
  const std::vector<float> values = Values(1);
  std::vector<double> wide(values.begin(), values.end());
  // Outside the range of fp32, so that a detour through fp32 shows.
  for (double& value : wide) value *= 1 + 1e-11;
  wide[7] = 1 + 0x1p-11 + 0x1p-40;  // By fp32 a tie of fp16, which goes down to even.
  for (DType half : {DType::kBf16, DType::kFp16}) {
    const Buffer on_values = Upload(values), on_wide = Upload(wide);
    ASSERT_OK(kernels_->RoundToHalf(stream_->handle(), half, DType::kFp32, on_values.data(),
                                    values.size()));
    ASSERT_OK(
        kernels_->RoundToHalf(stream_->handle(), half, DType::kFp64, on_wide.data(), wide.size()));
    std::vector<float> expected = values;
    std::vector<double> expected_wide = wide;
    host::RoundToHalf(half, expected.data(), expected.size());
    host::RoundToHalf(half, expected_wide.data(), expected_wide.size());
    EXPECT_EQ(Download<float>(on_values), expected) << Name(half);
    EXPECT_EQ(Download<double>(on_wide), expected_wide) << Name(half);
    EXPECT_NE(expected, values);
    if (half == DType::kFp16) {
      EXPECT_EQ(expected_wide[7], 1);
    }
  }
}

TEST_F(GpuKernelsDeviceTest, SumsOfHalvesAndOfFp64HaveTheBitsOfTheHosts) {
  const std::vector<float> a = Values(1), b = Values(2), c = Values(3);
  const int64_t count = a.size();
  for (DType dtype : {DType::kBf16, DType::kFp16}) {
    std::vector<std::vector<uint16_t>> halves(3, std::vector<uint16_t>(count));
    host::CastFp32ToHalf(dtype, a.data(), halves[0].data(), count);
    host::CastFp32ToHalf(dtype, b.data(), halves[1].data(), count);
    host::CastFp32ToHalf(dtype, c.data(), halves[2].data(), count);
    const Buffer on_a = Upload(halves[0]), on_b = Upload(halves[1]), on_c = Upload(halves[2]);
    const Buffer on_sum = Upload(a);
    const void* inputs[] = {on_a.data(), on_b.data(), on_c.data()};
    const void* on_host[] = {halves[0].data(), halves[1].data(), halves[2].data()};
    ASSERT_OK(kernels_->Reduce(stream_->handle(), inputs, dtype, count, 0.3, /*accumulate=*/true,
                               on_sum.data_as<float>(), nullptr));
    std::vector<float> expected = a;
    host::ReduceSlices(on_host, dtype, count, 0.3, true, expected.data(), nullptr);
    EXPECT_EQ(Download<float>(on_sum), expected) << Name(dtype);
  }
  const std::vector<double> wide(a.begin(), a.end()), other(b.begin(), b.end());
  const Buffer on_wide = Upload(wide), on_other = Upload(other), on_sum = Upload(wide);
  const void* inputs[] = {on_wide.data(), on_other.data()};
  const void* on_host[] = {wide.data(), other.data()};
  ASSERT_OK(kernels_->Reduce(stream_->handle(), inputs, DType::kFp64, count, 0.3, false,
                             on_sum.data_as<double>(), nullptr));
  std::vector<double> expected(count);
  host::ReduceSlices(on_host, DType::kFp64, count, 0.3, false, expected.data(), nullptr);
  EXPECT_EQ(Download<double>(on_sum), expected);
}

TEST_F(GpuKernelsDeviceTest, CombineTakesEachElementAndKeepsNan) {
  std::vector<float> a = Values(1), b = Values(2);
  a[5] = b[10000] = std::numeric_limits<float>::quiet_NaN();
  const int64_t count = a.size();
  const Buffer on_a = Upload(a), on_b = Upload(b), on_result = Upload(a);
  const void* inputs[] = {on_a.data(), on_b.data()};
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    ASSERT_OK(
        kernels_->Combine(stream_->handle(), inputs, DType::kFp32, op, 1, count, on_result.data()));
    const std::vector<float> result = Download<float>(on_result);
    for (int64_t i = 0; i < count; ++i) {
      if (i == 5 || i == 10000) {
        EXPECT_TRUE(std::isnan(result[i]));
        continue;
      }
      const float expected = op == ReduceOp::kSum   ? a[i] + b[i]
                             : op == ReduceOp::kMax ? std::max(a[i], b[i])
                                                    : std::min(a[i], b[i]);
      ASSERT_EQ(result[i], expected) << i;
    }
  }
}

// Random codes of a type, in addition to `Values`, which are rounded to it.
std::vector<uint8_t> CodesOf(ElementType type, const std::vector<float>& values, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t element_bytes = SizeBytes(type);
  std::vector<uint8_t> codes(values.size() * element_bytes);
  for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random());
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 3 == 0 || element_bytes > 2) continue;
    uint8_t* const to = &codes[i * element_bytes];
    if (!type.is_fp8()) {
      host::CastFp32ToHalf(type.dtype(), &values[i], reinterpret_cast<uint16_t*>(to), 1);
    } else if (type == Fp8Format::kE4M3) {
      gpu::Narrow(values[i], reinterpret_cast<gpu::Fp8E4M3*>(to));
    } else {
      gpu::Narrow(values[i], reinterpret_cast<gpu::Fp8E5M2*>(to));
    }
  }
  return codes;
}

// Element i of `codes`, for comparing: all NaNs are equal.
double ElementOf(ElementType type, const std::vector<uint8_t>& codes, int64_t i) {
  const auto as = [&](auto element) {
    std::memcpy(static_cast<void*>(&element), &codes[i * sizeof(element)], sizeof(element));
    const double value = gpu::Widen(element);
    return std::isnan(value) ? std::numeric_limits<double>::max() : value;
  };
  if (type == Fp8Format::kE4M3) return as(gpu::Fp8E4M3());
  if (type == Fp8Format::kE5M2) return as(gpu::Fp8E5M2());
  if (type == DType::kBf16) return as(gpu::Bf16());
  if (type == DType::kFp16) return as(gpu::Fp16());
  return type == DType::kFp64 ? as(double()) : as(float());
}

const ElementType kTypes[] = {DType::kFp32, DType::kBf16,     DType::kFp16,
                              DType::kFp64, Fp8Format::kE4M3, Fp8Format::kE5M2};

TEST_F(GpuKernelsDeviceTest, CombinationsOfEachTypeHaveTheBitsOfTheHosts) {
  for (const ElementType type : kTypes) {
    const std::vector<uint8_t> a = CodesOf(type, Values(1), 61), b = CodesOf(type, Values(2), 62);
    const std::vector<uint8_t> c = CodesOf(type, Values(3), 63);
    const int64_t count = static_cast<int64_t>(a.size()) / SizeBytes(type);
    const Buffer on_a = Upload(a), on_b = Upload(b), on_c = Upload(c), on_result = Upload(a);
    const void* inputs[] = {on_a.data(), on_b.data(), on_c.data()};
    const void* on_host[] = {a.data(), b.data(), c.data()};
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      ASSERT_OK(
          kernels_->Combine(stream_->handle(), inputs, type, op, 0.3, count, on_result.data()));
      const std::vector<uint8_t> result = Download<uint8_t>(on_result);
      std::vector<uint8_t> expected(a.size());
      host::CombineElements(on_host, type, op, 0.3, count, expected.data());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(ElementOf(type, result, i), ElementOf(type, expected, i))
            << Name(type) << " element " << i << ", op " << static_cast<int>(op);
      }
    }
  }
}

TEST_F(GpuKernelsDeviceTest, SumsOfEightBitsHaveTheBitsOfTheHosts) {
  ASSERT_OK_AND_ASSIGN(const Buffer stats, device_->AllocatePinned(sizeof(host::GradientStats)));
  for (const Fp8Format format : {Fp8Format::kE4M3, Fp8Format::kE5M2}) {
    std::vector<uint8_t> a = CodesOf(format, Values(1), 64), b = CodesOf(format, Values(2), 65);
    for (std::vector<uint8_t>* codes : {&a, &b})
      for (uint8_t& code : *codes) code &= 0xBF;  // All are numbers, and none is large.
    const int64_t count = static_cast<int64_t>(a.size());
    const std::vector<float> before = Values(7, count);
    const Buffer on_a = Upload(a), on_b = Upload(b), on_sum = Upload(before);
    const void* inputs[] = {on_a.data(), on_b.data()};
    const void* on_host[] = {a.data(), b.data()};
    *stats.data_as<host::GradientStats>() = {};
    ASSERT_OK(kernels_->Reduce(stream_->handle(), inputs, format, count, 0.3, /*accumulate=*/true,
                               on_sum.data_as<float>(), stats.data_as<host::GradientStats>()));
    std::vector<float> expected = before;
    host::GradientStats measured;
    host::SumElements(on_host, format, count, 0.3, true, expected.data(), &measured);
    EXPECT_EQ(Download<float>(on_sum), expected) << Name(ElementType(format));
    EXPECT_EQ(stats.data_as<host::GradientStats>()->sum_of_squares, measured.sum_of_squares);
    ASSERT_OK(kernels_->Reduce(stream_->handle(), inputs, format, count, 1, false,
                               on_sum.data_as<float>(), nullptr));
    host::SumElements(on_host, format, count, 1, false, expected.data(), nullptr);
    EXPECT_EQ(Download<float>(on_sum), expected) << Name(ElementType(format));
  }
}

TEST_F(GpuKernelsDeviceTest, OneNonFiniteElementAnywhereIsSeen) {
  ASSERT_OK_AND_ASSIGN(const Buffer stats, device_->AllocatePinned(sizeof(host::GradientStats)));
  auto* const measured = stats.data_as<host::GradientStats>();
  for (const int64_t at : {int64_t{-1}, int64_t{0}, int64_t{5000}, int64_t{10006}}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> values = Values(1);
      if (at >= 0) values[at] = bad;
      const Buffer on_values = Upload(values);
      *measured = {};
      ASSERT_OK(kernels_->Measure(stream_->handle(), DType::kFp32, on_values.data(), values.size(),
                                  measured));
      stream_->Synchronize();
      EXPECT_EQ(measured->non_finite, at >= 0) << at;
    }
  }
}

// What is promised of powers: each term within a unit in the last place on either side, and one
// rounding for each addition on a term's way.
double PowersTolerance(int64_t count) {
  const double additions = 128 + kMeasureLanes + kMeasureGroupBlocks +
                           static_cast<double>(MeasureGroupsOf(MeasureBlocksOf(count)));
  return 2 * (additions + 1) * std::numeric_limits<double>::epsilon();
}

template <typename Real>
void GpuKernelsDeviceTest::ExpectNormsOfTheHosts(DType dtype, int64_t count) {
  const std::vector<float> floats = Values(4, count);
  std::vector<Real> values(floats.begin(), floats.end());
  for (Real& value : values) value = value * static_cast<Real>(1.1);
  values[0] = 3;
  values.resize(count + 64, std::numeric_limits<Real>::quiet_NaN());  // Nobody reads those.
  const Buffer on_values = Upload(values);
  ASSERT_OK_AND_ASSIGN(const Buffer part, device_->AllocatePinned(sizeof(double)));
  for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity(), 0.5, 3.0, 4.5}) {
    SCOPED_TRACE(testing::Message() << Name(dtype) << ", p = " << p << ", " << count);
    *part.data_as<double>() = 0.75;
    ASSERT_OK(kernels_->AddToNormPart(stream_->handle(), dtype, on_values.data(), count, p,
                                      part.data_as<double>()));
    stream_->Synchronize();
    const double expected = WithMeasured(p, [&](auto measured) {
      constexpr Measured kWhat = decltype(measured)::value;
      return AddTerm<kWhat>(0.75, MeasuredSum<kWhat>(values.data(), count, p));
    });
    const bool is_exact = p == 1 || p == 2 || std::isinf(p);
    const double tolerance = is_exact ? 0 : expected * PowersTolerance(count);
    EXPECT_GT(expected, 0.75);
    EXPECT_NEAR(*part.data_as<double>(), expected, tolerance);
  }
  EXPECT_OK(device_->status());
}

TEST_F(GpuKernelsDeviceTest, NormsHaveTheBitsOfTheHostsAndPowersAreNearThem) {
  // Of 4090 the last block has rows of lanes of which only some are there.
  for (const int64_t count : {int64_t{1}, int64_t{4090}, int64_t{10007}, kLargeCount}) {
    ExpectNormsOfTheHosts<float>(DType::kFp32, count);
    ExpectNormsOfTheHosts<double>(DType::kFp64, count);
  }
}

TEST_F(GpuKernelsDeviceTest, NanStaysInEveryNorm) {
  ASSERT_OK_AND_ASSIGN(const Buffer part, device_->AllocatePinned(sizeof(double)));
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    for (const size_t at : {0, 2047, 10006}) {
      std::vector<float> values = Values(1);
      values[at] = std::nanf("");
      const Buffer on_values = Upload(values);
      *part.data_as<double>() = 1;
      ASSERT_OK(kernels_->AddToNormPart(stream_->handle(), DType::kFp32, on_values.data(),
                                        values.size(), p, part.data_as<double>()));
      stream_->Synchronize();
      EXPECT_TRUE(std::isnan(*part.data_as<double>())) << "p = " << p << ", element " << at;
    }
  }
}

TEST_F(GpuKernelsDeviceTest, MeasureOfFp64HasTheBitsOfTheHosts) {
  ASSERT_OK_AND_ASSIGN(const Buffer stats, device_->AllocatePinned(sizeof(host::GradientStats)));
  auto* const measured = stats.data_as<host::GradientStats>();
  std::vector<double> values = ValuesOf<double>(5);
  for (const double element : {1.0, 1e200, std::numeric_limits<double>::infinity()}) {
    values[4321] = element;  // The square of the second is infinite, and itself it is not.
    const Buffer on_values = Upload(values);
    *measured = {};
    ASSERT_OK(kernels_->Measure(stream_->handle(), DType::kFp64, on_values.data(), values.size(),
                                measured));
    stream_->Synchronize();
    const host::GradientStats expected = host::MeasureGradient(values.data(), values.size());
    EXPECT_EQ(measured->sum_of_squares, expected.sum_of_squares) << element;
    EXPECT_EQ(measured->non_finite, expected.non_finite) << element;
    EXPECT_EQ(measured->non_finite, std::isinf(element));
  }
}

// Each kernel's grid at a count that leaves a piece over.
TEST_F(GpuKernelsDeviceTest, EveryElementOfALargeArrayIsCovered) {
  const std::vector<float> values = Values(1, kLargeCount);
  const Buffer on_values = Upload(values);
  ASSERT_OK_AND_ASSIGN(const Buffer stats, device_->AllocatePinned(sizeof(host::GradientStats)));
  *stats.data_as<host::GradientStats>() = {};
  ASSERT_OK(kernels_->Measure(stream_->handle(), DType::kFp32, on_values.data(), kLargeCount,
                              stats.data_as<host::GradientStats>()));
  ASSERT_OK_AND_ASSIGN(const Buffer sum, device_->AllocatePinned(sizeof(uint64_t)));
  *sum.data_as<uint64_t>() = 0;
  ASSERT_OK(kernels_->Checksum(stream_->handle(), DType::kFp32, on_values.data(), kLargeCount,
                               sum.data_as<uint64_t>()));
  stream_->Synchronize();
  const host::GradientStats expected = host::MeasureGradient(values.data(), kLargeCount);
  EXPECT_EQ(stats.data_as<host::GradientStats>()->sum_of_squares, expected.sum_of_squares);
  uint64_t checksum = 0;
  for (int64_t i = 0; i < kLargeCount; ++i) {
    checksum += gpu::ChecksumElement(i, gpu::BitsOf(values[i]));
  }
  EXPECT_EQ(*sum.data_as<uint64_t>(), checksum);

  const Buffer scaled = Upload(std::vector<float>(kLargeCount, -1));
  ASSERT_OK(kernels_->Cast(stream_->handle(), DType::kFp32, on_values.data(), DType::kFp32,
                           scaled.data(), kLargeCount, 0.5));
  ASSERT_OK(kernels_->Scale(stream_->handle(), scaled.data(), DType::kFp32, kLargeCount, 4));
  const std::vector<float> doubled = Download<float>(scaled);
  for (int64_t i = 0; i < kLargeCount; ++i) ASSERT_EQ(doubled[i], values[i] * 2) << i;
  ASSERT_OK(kernels_->Fill(stream_->handle(), DType::kFp32, scaled.data(), kLargeCount, 42));
  EXPECT_EQ(Download<float>(scaled), std::vector<float>(kLargeCount, 42));
}

}  // namespace
}  // namespace tessera
