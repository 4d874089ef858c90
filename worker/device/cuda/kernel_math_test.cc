// Compares the arithmetic of the GPU's kernels, on the CPU, with the host's kernels: same bits.
#include "worker/device/cuda/kernel_math.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"
#include "worker/device/cuda/gpu_factors.h"

namespace tessera {
namespace gpu {
namespace {

// Of all magnitudes, with what is special among them.
std::vector<float> Floats(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               65504.0f,
                               65519.9f,
                               65520.0f,
                               -1e-8f,
                               6e-8f,
                               3e-5f,
                               6.2e-5f,
                               3.4e38f,
                               -3.4e38f,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::denorm_min()};
  while (values.size() < count) {
    const uint32_t bits = static_cast<uint32_t>(random());
    const float value = FloatOf(bits);
    values.push_back(std::isnan(value) ? 0.5f : value);
  }
  values.resize(count);
  return values;
}

std::vector<float> Moderate(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = (static_cast<float>(random() % 20001) - 10000.0f) * (random() % 3 == 0 ? 1e-4f : 0.03f);
  }
  return values;
}

template <typename T>
bool SameBits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename Half>
void ExpectCastsOf(DType dtype) {
  const std::vector<float> values = Floats(/*seed=*/11, 100000);
  std::vector<uint16_t> expected(values.size());
  host::CastFp32ToHalf(dtype, values.data(), expected.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    Half half;
    CastElement(values[i], 1.0, &half);
    ASSERT_EQ(half.bits, expected[i]) << Name(dtype) << " of " << values[i] << ", seed 11";
  }
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    float wide = 0;
    host::CastHalfToFp32(dtype, &half, &wide, 1);
    const float ours = Widen(Half{half});
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(ours)) << Name(dtype) << " " << bits;
    } else {
      ASSERT_TRUE(SameBits(ours, wide)) << Name(dtype) << " " << bits;
    }
  }
}

TEST(KernelMathTest, CastsToAndFromHalvesAreThoseOfTheHost) {
  ExpectCastsOf<Bf16>(DType::kBf16);
  ExpectCastsOf<Fp16>(DType::kFp16);
  Bf16 bf16;
  Fp16 fp16;
  Narrow(std::nanf(""), &bf16);
  Narrow(std::nanf(""), &fp16);
  EXPECT_TRUE(std::isnan(Widen(bf16)) && std::isnan(Widen(fp16)));
}

TEST(KernelMathTest, CastsOfFp64GoByFp32AsTheHosts) {
  const std::vector<float> floats = Floats(/*seed=*/12, 20000);
  std::vector<double> values;
  for (float value : floats) values.push_back(value * (1 + 1e-11));
  std::vector<uint16_t> bf16(values.size()), fp16(values.size());
  host::CastFp64ToHalf(DType::kBf16, values.data(), bf16.data(), values.size());
  host::CastFp64ToHalf(DType::kFp16, values.data(), fp16.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    Bf16 to_bf16;
    Fp16 to_fp16;
    CastElement(values[i], 1.0, &to_bf16);
    CastElement(values[i], 1.0, &to_fp16);
    ASSERT_EQ(to_bf16.bits, bf16[i]) << values[i] << ", seed 12";
    ASSERT_EQ(to_fp16.bits, fp16[i]) << values[i] << ", seed 12";
  }
}

TEST(KernelMathTest, ScaleOfACastIsRoundedBeforeTheCast) {
  Fp16 half;
  CastElement(3.0f, 1.0 / 3.0, &half);
  EXPECT_EQ(Widen(half), 1.0f);
  double wide = 0;
  CastElement(Bf16{0x4040}, 0.1, &wide);  // 3.0
  EXPECT_EQ(wide, 3.0 * 0.1);
}

// An FP8 format, by its definition.
struct EightBits {
  int fraction_bits;
  int bias;
  int largest;  // Of the codes without a sign.

  double ValueOf(int code) const {
    const int exponent = code >> fraction_bits;
    const double fraction = code & ((1 << fraction_bits) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
    return std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  }
  // The nearest of all numbers, the largest for what is larger; of two that are as near the one
  // whose code is even.
  int Nearest(double magnitude) const {
    magnitude = std::min(magnitude, ValueOf(largest));
    int nearest = 0;
    for (int code = 1; code <= largest; ++code) {
      const double nearer =
          std::abs(ValueOf(nearest) - magnitude) - std::abs(ValueOf(code) - magnitude);
      if (nearer > 0 || (nearer == 0 && code % 2 == 0)) nearest = code;
    }
    return nearest;
  }
};
constexpr EightBits kE4M3 = {3, 7, 0x7E};
constexpr EightBits kE5M2 = {2, 15, 0x7B};

template <typename Fp8>
int CodeOf(float value) {
  Fp8 narrow;
  Narrow(value, &narrow);
  return narrow.bits;
}

template <typename Fp8>
void ExpectCodesOf(const EightBits& format) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int code = 0; code <= format.largest; ++code) {
    const float value = Widen(Fp8{static_cast<uint8_t>(code)});
    const float negative = Widen(Fp8{static_cast<uint8_t>(code | 0x80)});
    ASSERT_EQ(value, format.ValueOf(code)) << code;
    ASSERT_TRUE(SameBits(negative, -value)) << code;
    ASSERT_EQ(CodeOf<Fp8>(value), code);
    ASSERT_EQ(CodeOf<Fp8>(-value), code | 0x80);
    if (code == format.largest) break;
    // Between this number and the next one, and right next to the middle.
    const auto middle = static_cast<float>((format.ValueOf(code) + format.ValueOf(code + 1)) / 2);
    ASSERT_EQ(CodeOf<Fp8>(middle), code % 2 == 0 ? code : code + 1) << code;
    ASSERT_EQ(CodeOf<Fp8>(std::nextafter(middle, 0.0f)), code);
    ASSERT_EQ(CodeOf<Fp8>(std::nextafter(middle, infinity)), code + 1);
    ASSERT_EQ(CodeOf<Fp8>(-std::nextafter(middle, infinity)), (code + 1) | 0x80);
  }
  for (const float large : {infinity, 3.4e38f, static_cast<float>(format.ValueOf(format.largest)),
                            static_cast<float>(format.ValueOf(format.largest) * 1.0001)}) {
    EXPECT_EQ(CodeOf<Fp8>(large), format.largest) << large;
    EXPECT_EQ(CodeOf<Fp8>(-large), format.largest | 0x80) << large;
  }
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(Widen(Fp8{static_cast<uint8_t>(CodeOf<Fp8>(nan))})));
  EXPECT_TRUE(std::isnan(Widen(Fp8{static_cast<uint8_t>(CodeOf<Fp8>(-nan))})));
  for (const float value : Floats(/*seed=*/13, 100000)) {
    const int sign = std::signbit(value) ? 0x80 : 0;
    ASSERT_EQ(CodeOf<Fp8>(value), format.Nearest(std::abs(value)) | sign) << value << ", seed 13";
  }
}

TEST(KernelMathTest, EightBitsAreRoundedToTheNearestAtEachBoundaryAndSaturate) {
  ExpectCodesOf<Fp8E4M3>(kE4M3);
  ExpectCodesOf<Fp8E5M2>(kE5M2);
  // The NaNs among the 256 codes.
  EXPECT_TRUE(std::isnan(Widen(Fp8E4M3{0x7F})) && std::isnan(Widen(Fp8E4M3{0xFF})));
  EXPECT_EQ(Widen(Fp8E5M2{0x7C}), std::numeric_limits<float>::infinity());
  EXPECT_EQ(Widen(Fp8E5M2{0xFC}), -std::numeric_limits<float>::infinity());
  for (const uint8_t code : {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}) {
    EXPECT_TRUE(std::isnan(Widen(Fp8E5M2{code}))) << int{code};
  }
}

TEST(KernelMathTest, EightBitsAreScaledInFp32AndReadInFp64) {
  Fp8E4M3 narrow;
  CastElement(3.0, 1.0 / 3.0, &narrow);
  EXPECT_EQ(narrow.bits, 0x38) << "1.0";
  CastElement(Bf16{0x4040}, 200.0, &narrow);  // 3.0
  EXPECT_EQ(narrow.bits, 0x7E) << "600 is too large";
  double wide = 0;
  CastElement(Fp8E4M3{0x44}, 0.1, &wide);  // 3.0
  EXPECT_EQ(wide, 3.0 * 0.1);
}

template <typename Real>
void ExpectAdamOfTheHost(const host::AdamParams& params) {
  constexpr size_t kCount = 5003;
  const auto reals = [](uint32_t seed) {
    const std::vector<float> floats = Moderate(seed, kCount);
    return std::vector<Real>(floats.begin(), floats.end());
  };
  const std::vector<Real> gradient = reals(21);
  std::vector<Real> p = reals(22), m = reals(23), v = reals(24);
  for (Real& value : v) value = std::abs(value);
  std::vector<Real> p_out(kCount), m_out(kCount), v_out(kCount);
  host::AdamStep(params, kCount, gradient.data(), p.data(), m.data(), v.data(), p_out.data(),
                 m_out.data(), v_out.data(), nullptr, {});
  const AdamFactors<Real> factors = FactorsOf<Real>(params);
  for (size_t i = 0; i < kCount; ++i) {
    AdamElement(factors, gradient[i], &p[i], &m[i], &v[i]);
    ASSERT_TRUE(SameBits(p[i], p_out[i]) && SameBits(m[i], m_out[i]) && SameBits(v[i], v_out[i]))
        << "element " << i << ": " << p[i] << " and " << p_out[i];
  }
}

TEST(KernelMathTest, AdamIsThatOfTheHostBitForBit) {
  host::AdamParams params;
  params.weight_decay = 0.1;
  params.bias_correction1 = 1 - std::pow(0.9, 7);
  params.bias_correction2 = 1 - std::pow(0.999, 7);
  params.gradient_scale = 0.37;
  for (bool decoupled : {false, true}) {
    params.decoupled_weight_decay = decoupled;
    ExpectAdamOfTheHost<float>(params);
    ExpectAdamOfTheHost<double>(params);
  }
  params.weight_decay = 0;
  ExpectAdamOfTheHost<float>(params);
}

template <typename Real>
void ExpectSgdOfTheHost(const host::SgdParams& params) {
  constexpr size_t kCount = 5003;
  const auto reals = [](uint32_t seed) {
    const std::vector<float> floats = Moderate(seed, kCount);
    return std::vector<Real>(floats.begin(), floats.end());
  };
  const std::vector<Real> gradient = reals(31), b = reals(33);
  std::vector<Real> p = reals(32), p_out(kCount), b_out(kCount);
  host::SgdStep(params, kCount, gradient.data(), p.data(), b.data(), p_out.data(), b_out.data(),
                nullptr, {});
  const SgdFactors<Real> factors = FactorsOf<Real>(params);
  for (size_t i = 0; i < kCount; ++i) {
    const Real momentum = SgdElement(factors, gradient[i], b[i], &p[i]);
    ASSERT_TRUE(SameBits(p[i], p_out[i])) << "element " << i;
    if (factors.write_momentum) {
      ASSERT_TRUE(SameBits(momentum, b_out[i])) << "element " << i;
    }
  }
}

TEST(KernelMathTest, SgdIsThatOfTheHostBitForBit) {
  host::SgdParams params;
  params.learning_rate = 0.03;
  params.gradient_scale = 0.37;
  for (double momentum : {0.0, 0.9}) {
    for (double weight_decay : {0.0, 0.1}) {
      for (bool first_step : {false, true}) {
        params.momentum = momentum;
        params.weight_decay = weight_decay;
        params.first_step = first_step;
        ExpectSgdOfTheHost<float>(params);
        ExpectSgdOfTheHost<double>(params);
      }
    }
  }
}

// The host adds up fp32 in vectors.
TEST(KernelMathTest, MeasureByLanesIsThatOfTheHost) {
  for (size_t count : {size_t{1}, size_t{15}, size_t{2048}, size_t{2049}, size_t{1200007}}) {
    const std::vector<float> values = Moderate(/*seed=*/41, count);
    const double total = MeasuredSum<Measured::kSquares>(values.data(), count, 2);
    EXPECT_TRUE(SameBits(total, host::MeasureGradient(values.data(), count).sum_of_squares))
        << count;
  }
}

TEST(KernelMathTest, RoomOfAMeasureIsASumForEachBlockAndEachGroup) {
  EXPECT_EQ(MeasureRoom(1), 1 + 1);
  EXPECT_EQ(MeasureRoom(2048), 1 + 1);
  EXPECT_EQ(MeasureRoom(2049), 2 + 1);
  EXPECT_EQ(MeasureRoom(256 * 2048), 256 + 1);
  EXPECT_EQ(MeasureRoom(256 * 2048 + 1), 257 + 2);
}

TEST(KernelMathTest, LargerAndSmallerKeepNanAndTheFirstOfEquals) {
  const float nan = std::nanf("");
  for (const bool larger : {true, false}) {
    EXPECT_TRUE(std::isnan(Select(larger, nan, 1.0f)));
    EXPECT_TRUE(std::isnan(Select(larger, 1.0f, nan)));
    EXPECT_FALSE(std::signbit(Select(larger, 0.0f, -0.0f)));
    EXPECT_TRUE(std::signbit(Select(larger, -0.0f, 0.0f)));
  }
  EXPECT_EQ(Select(true, 1.5f, 2.0f), 2.0f);
  EXPECT_EQ(Select(false, 1.5f, 2.0f), 1.5f);
}

// Of all pairs of codes: as the numbers are, and one of the two as it was.
template <typename Fp8>
void ExpectSelectionsOfCodes() {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const Fp8 first{static_cast<uint8_t>(a)}, second{static_cast<uint8_t>(b)};
      const float x = Widen(first), y = Widen(second);
      const int larger = Select(true, first, second).bits;
      const int smaller = Select(false, first, second).bits;
      if (std::isnan(x) || std::isnan(y)) {
        EXPECT_EQ(larger, std::isnan(x) ? a : b);
        EXPECT_EQ(smaller, larger);
        continue;
      }
      EXPECT_EQ(larger, y > x ? b : a);
      EXPECT_EQ(smaller, y < x ? b : a);
    }
  }
}

TEST(KernelMathTest, SelectionsOfEightBitsAreThoseOfTheirNumbers) {
  ExpectSelectionsOfCodes<Fp8E4M3>();
  ExpectSelectionsOfCodes<Fp8E5M2>();
}

TEST(KernelMathTest, ChecksumSeesEachBitAndEachSwapAndNoOrderOfAdding) {
  std::mt19937_64 random(51);
  std::vector<uint64_t> values(64);
  for (uint64_t& value : values) value = random();
  const auto sum = [](const std::vector<uint64_t>& of) {
    uint64_t total = 0;
    for (size_t i = of.size(); i-- > 0;) total += ChecksumElement(i, of[i]);
    return total;
  };
  uint64_t forward = 0;
  for (size_t i = 0; i < values.size(); ++i) forward += ChecksumElement(i, values[i]);
  const uint64_t before = sum(values);
  EXPECT_EQ(before, forward);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int bit = 0; bit < 64; ++bit) {
      values[i] ^= uint64_t{1} << bit;
      ASSERT_NE(sum(values), before) << "bit " << bit << " of " << i << ", seed 51";
      values[i] ^= uint64_t{1} << bit;
    }
  }
  std::swap(values[3], values[40]);
  EXPECT_NE(sum(values), before);
  values.assign(64, 0);
  const uint64_t zeros = sum(values);
  values.push_back(0);
  EXPECT_NE(sum(values), zeros) << "a zero more is seen too";
}

}  // namespace
}  // namespace gpu
}  // namespace tessera
