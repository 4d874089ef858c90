// How the kernels access memory: with the same bits at any alignment and any count, and without
// touching anything outside. Over the emulator also whether they took the wide path.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "worker/device/cuda/gpu_kernels_fixture.h"
#include "worker/device/cuda/kernel_math.h"
#ifdef TESSERA_KERNELS_EMULATED
#include "worker/device/cuda/emulated_accesses.h"
#endif

namespace tessera {
namespace {

// Elements on either side of each array that nobody writes.
constexpr int64_t kGuard = 32;

// An array whose first element is so many elements after a multiple of all access sizes.
template <typename T>
struct Placed {
  Buffer buffer;
  int64_t offset;
  int64_t count;

  T* data() const { return buffer.data_as<T>() + kGuard + offset; }
};

class GpuKernelsAccessDeviceTest : public GpuKernelsFixture {
 protected:
  template <typename T>
  Placed<T> Place(const std::vector<T>& values, int64_t offset) {
    std::vector<T> all(values.size() + 2 * kGuard + offset);
    std::memset(static_cast<void*>(all.data()), 0x5A, all.size() * sizeof(T));
    std::copy(values.begin(), values.end(), all.begin() + kGuard + offset);
    return {Upload(all), offset, static_cast<int64_t>(values.size())};
  }
  template <typename T>
  std::vector<T> Take(const Placed<T>& placed) {
    const std::vector<T> all = Download<T>(placed.buffer);
    const auto begin = all.begin() + kGuard + placed.offset;
    T guard;
    std::memset(static_cast<void*>(&guard), 0x5A, sizeof(T));
    for (auto at = all.begin(); at != all.end(); ++at) {
      if (at == begin) at += placed.count;
      EXPECT_EQ(*at, guard) << "beside the array, element " << at - begin;
    }
    return {begin, begin + placed.count};
  }
  template <typename Real>
  static std::vector<Real> Some(int seed, int64_t count) {
    const std::vector<float> floats = Values(seed, count);
    std::vector<Real> values(floats.begin(), floats.end());
    for (Real& value : values) value = value * static_cast<Real>(1.1);
    return values;
  }
  static std::vector<uint16_t> Halves(DType dtype, int seed, int64_t count) {
    std::vector<uint16_t> halves(count);
    host::CastFp32ToHalf(dtype, Values(seed, count).data(), halves.data(), count);
    return halves;
  }
  // Runs a kernel and says what it did, and whether that was by wide accesses where it is `wide`.
  void Launch(bool wide, const std::function<absl::Status()>& launch) {
#ifdef TESSERA_KERNELS_EMULATED
    const int64_t before = gpu::WideAccesses();
    ASSERT_OK(launch());
    EXPECT_EQ(gpu::WideAccesses() > before, wide);
#else
    ASSERT_OK(launch());
#endif
    stream_->Synchronize();
  }
  Buffer Stats() {
    absl::StatusOr<Buffer> stats = device_->AllocatePinned(sizeof(host::GradientStats));
    EXPECT_OK(stats);
    *stats->data_as<host::GradientStats>() = {};
    return *std::move(stats);
  }
  // Where the arrays of an update begin.
  struct Offsets {
    int64_t gradient, state, halves;
    bool wide;
  };
  template <typename Real>
  void ExpectAdam(const Offsets& at, int64_t count);
  template <typename Real>
  void ExpectSgd(const Offsets& at, int64_t count);
  void ExpectSum(DType dtype, int64_t inputs_at, int64_t sum_at, int64_t count, bool wide,
                 bool measure);
};

TEST_F(GpuKernelsAccessDeviceTest, CastsFromAndToEveryAddress) {
  constexpr int64_t kCount = 61;
  const std::vector<float> values = Values(1, kCount);
  std::vector<uint16_t> halves(kCount);
  host::CastFp32ToHalf(DType::kBf16, values.data(), halves.data(), kCount);
  std::vector<float> widened(kCount);
  host::CastHalfToFp32(DType::kBf16, halves.data(), widened.data(), kCount);
  for (int64_t wide_at = 0; wide_at < 4; ++wide_at) {
    for (int64_t half_at = 0; half_at < 8; ++half_at) {
      SCOPED_TRACE(testing::Message() << wide_at << ", " << half_at);
      const bool wide = half_at % 4 == wide_at;
      const auto from = Place(values, wide_at);
      const auto to = Place(std::vector<uint16_t>(kCount), half_at);
      Launch(wide, [&] {
        return kernels_->Cast(stream_->handle(), DType::kFp32, from.data(), DType::kBf16, to.data(),
                              kCount, 1);
      });
      EXPECT_EQ(Take(to), halves);
      const auto back = Place(std::vector<float>(kCount), wide_at);
      Launch(wide, [&] {
        return kernels_->Cast(stream_->handle(), DType::kBf16, to.data(), DType::kFp32, back.data(),
                              kCount, 1);
      });
      EXPECT_EQ(Take(back), widened);
    }
  }
}

// Of any count: with and without elements before and after the wide part.
TEST_F(GpuKernelsAccessDeviceTest, EightBitsAndEveryCount) {
  for (int64_t count = 1; count < 50; count += 3) {
    for (const int64_t offset : {0, 1, 15}) {
      SCOPED_TRACE(testing::Message() << count << " at " << offset);
      const std::vector<float> values = Values(2, count);
      std::vector<uint8_t> expected(count);
      for (int64_t i = 0; i < count; ++i) {
        gpu::Fp8E4M3 code;
        gpu::CastElement(values[i], 2.5, &code);
        expected[i] = code.bits;
      }
      const auto from = Place(values, offset);
      const auto to = Place(std::vector<uint8_t>(count), offset);
      // The first multiple of 16 is as many elements on, and 16 must follow.
      const bool wide = (16 - offset) % 16 + 16 <= count;
      Launch(wide, [&] {
        return kernels_->CastToFp8(stream_->handle(), DType::kFp32, from.data(), Fp8Format::kE4M3,
                                   to.data(), count, 2.5);
      });
      EXPECT_EQ(Take(to), expected);
    }
  }
}

TEST_F(GpuKernelsAccessDeviceTest, InPlaceAtEveryAddress) {
  constexpr int64_t kCount = 45;
  for (int64_t offset = 0; offset < 4; ++offset) {
    SCOPED_TRACE(offset);
    std::vector<float> values = Values(3, kCount);
    std::vector<double> doubles = Some<double>(3, kCount);
    const auto floats_at = Place(values, offset);
    const auto doubles_at = Place(doubles, offset);
    Launch(true, [&] {
      return kernels_->Scale(stream_->handle(), floats_at.data(), DType::kFp32, kCount, 0.3);
    });
    Launch(true, [&] {
      return kernels_->Scale(stream_->handle(), doubles_at.data(), DType::kFp64, kCount, 0.3);
    });
    for (float& value : values) value *= 0.3f;
    for (double& value : doubles) value *= 0.3;
    EXPECT_EQ(Take(floats_at), values);
    EXPECT_EQ(Take(doubles_at), doubles);
    Launch(true, [&] {
      return kernels_->RoundToHalf(stream_->handle(), DType::kFp16, DType::kFp32, floats_at.data(),
                                   kCount);
    });
    host::RoundToHalf(DType::kFp16, values.data(), kCount);
    EXPECT_EQ(Take(floats_at), values);
    Launch(true, [&] {
      return kernels_->Fill(stream_->handle(), DType::kFp32, floats_at.data(), kCount, 42);
    });
    EXPECT_EQ(Take(floats_at), std::vector<float>(kCount, 42));
  }
  for (int64_t offset = 0; offset < 8; ++offset) {
    const auto halves = Place(std::vector<uint16_t>(kCount), offset);
    Launch(true, [&] {
      return kernels_->Fill(stream_->handle(), DType::kBf16, halves.data(), kCount, 3);
    });
    EXPECT_EQ(Take(halves), std::vector<uint16_t>(kCount, 0x4040));
  }
}

void GpuKernelsAccessDeviceTest::ExpectSum(DType dtype, int64_t inputs_at, int64_t sum_at,
                                           int64_t count, bool wide, bool measure) {
  SCOPED_TRACE(testing::Message() << Name(dtype) << " at " << inputs_at << ", " << sum_at << ", "
                                  << count << (measure ? ", measured" : ""));
  std::vector<Placed<uint16_t>> halves;
  std::vector<Placed<float>> floats;
  std::vector<std::vector<uint16_t>> host_halves;
  std::vector<std::vector<float>> host_floats;
  std::vector<const void*> inputs, on_host;
  for (int rank = 0; rank < 3; ++rank) {
    if (dtype == DType::kFp32) {
      host_floats.push_back(Values(rank + 1, count));
      floats.push_back(Place(host_floats.back(), inputs_at));
      inputs.push_back(floats.back().data());
    } else {
      host_halves.push_back(Halves(dtype, rank + 1, count));
      halves.push_back(Place(host_halves.back(), inputs_at));
      inputs.push_back(halves.back().data());
    }
  }
  for (const auto& values : host_floats) on_host.push_back(values.data());
  for (const auto& values : host_halves) on_host.push_back(values.data());
  std::vector<float> expected = Values(9, count);
  const auto sum = Place(expected, sum_at);
  const Buffer stats = Stats();
  auto* const measured = stats.data_as<host::GradientStats>();
  Launch(wide, [&] {
    return kernels_->Reduce(stream_->handle(), inputs, dtype, count, 0.3, /*accumulate=*/true,
                            sum.data(), measure ? measured : nullptr);
  });
  host::GradientStats of_host;
  host::ReduceSlices(on_host, dtype, count, 0.3, true, expected.data(), &of_host);
  EXPECT_EQ(Take(sum), expected);
  if (!measure) return;
  EXPECT_EQ(measured->sum_of_squares, of_host.sum_of_squares);
  EXPECT_FALSE(measured->non_finite);
}

TEST_F(GpuKernelsAccessDeviceTest, SumsOfEveryAddress) {
  for (int64_t inputs_at = 0; inputs_at < 4; ++inputs_at) {
    for (int64_t sum_at = 0; sum_at < 4; ++sum_at) {
      ExpectSum(DType::kFp32, inputs_at, sum_at, 50, inputs_at == sum_at, false);
      ExpectSum(DType::kBf16, inputs_at, sum_at, 50, inputs_at == sum_at, false);
      ExpectSum(DType::kBf16, inputs_at + 4, sum_at, 50, inputs_at == sum_at, false);
    }
  }
}

// What is measured has places in blocks of 2048, and no head: it is wide from its first element on,
// but for a block that is not whole, or not at all. Of 16 bytes of sums its inputs are 8 of halves.
TEST_F(GpuKernelsAccessDeviceTest, SumsThatAreMeasured) {
  for (const int64_t count : {int64_t{7}, int64_t{2048}, int64_t{4096 + 37}}) {
    for (const auto& [inputs_at, sum_at] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {4, 4}, {1, 1}, {0, 2}, {3, 0}}) {
      const bool wide = count >= 2048 && inputs_at % 4 == 0 && sum_at % 4 == 0;
      ExpectSum(DType::kFp32, inputs_at, sum_at, count, wide, true);
      ExpectSum(DType::kFp16, inputs_at, sum_at, count, wide, true);
    }
  }
}

TEST_F(GpuKernelsAccessDeviceTest, MeasuresAndChecksumsOfEveryAddress) {
  for (const int64_t count : {int64_t{2047}, int64_t{3 * 2048 + 5}}) {
    for (int64_t offset = 0; offset < 4; ++offset) {
      SCOPED_TRACE(testing::Message() << count << " at " << offset);
      std::vector<float> values = Values(4, count);
      const std::vector<double> doubles = Some<double>(4, count);
      const auto floats_at = Place(values, offset);
      const auto doubles_at = Place(doubles, offset);
      const Buffer stats = Stats();
      auto* const measured = stats.data_as<host::GradientStats>();
      Launch(count >= 2048 && offset == 0, [&] {
        return kernels_->Measure(stream_->handle(), DType::kFp32, floats_at.data(), count,
                                 measured);
      });
      EXPECT_EQ(measured->sum_of_squares,
                host::MeasureGradient(values.data(), count).sum_of_squares);
      *measured = {};
      Launch(count >= 2048 && offset % 2 == 0, [&] {
        return kernels_->Measure(stream_->handle(), DType::kFp64, doubles_at.data(), count,
                                 measured);
      });
      EXPECT_EQ(measured->sum_of_squares,
                host::MeasureGradient(doubles.data(), count).sum_of_squares);
      EXPECT_FALSE(measured->non_finite);
      values[count - 1] = std::nanf("");
      const auto broken_at = Place(values, offset);
      ASSERT_OK(
          kernels_->Measure(stream_->handle(), DType::kFp32, broken_at.data(), count, measured));
      stream_->Synchronize();
      EXPECT_TRUE(measured->non_finite);

      ASSERT_OK_AND_ASSIGN(const Buffer sum, device_->AllocatePinned(sizeof(uint64_t)));
      *sum.data_as<uint64_t>() = 0;
      Launch(true, [&] {
        return kernels_->Checksum(stream_->handle(), DType::kFp32, floats_at.data(), count,
                                  sum.data_as<uint64_t>());
      });
      uint64_t expected = 0;
      values = Values(4, count);
      for (int64_t i = 0; i < count; ++i) {
        expected += gpu::ChecksumElement(i, gpu::BitsOf(values[i]));
      }
      EXPECT_EQ(*sum.data_as<uint64_t>(), expected);
    }
  }
}

TEST_F(GpuKernelsAccessDeviceTest, CombinationsOfEveryAddress) {
  constexpr int64_t kCount = 33;
  const std::vector<double> a = Some<double>(1, kCount), b = Some<double>(2, kCount);
  std::vector<double> expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) expected[i] = std::max(a[i], b[i]);
  for (int64_t b_at = 0; b_at < 2; ++b_at) {
    for (int64_t to_at = 0; to_at < 2; ++to_at) {
      const auto on_a = Place(a, 1), on_b = Place(b, b_at);
      const auto to = Place(std::vector<double>(kCount), to_at);
      const void* inputs[] = {on_a.data(), on_b.data()};
      Launch(b_at == 1 && to_at == 1, [&] {
        return kernels_->Combine(stream_->handle(), inputs, DType::kFp64, ReduceOp::kMax, 1, kCount,
                                 to.data());
      });
      EXPECT_EQ(Take(to), expected);
    }
  }
}

TEST_F(GpuKernelsAccessDeviceTest, CombinationsOfEightBitsOfEveryAddress) {
  constexpr int64_t kCount = 69;
  std::vector<uint8_t> a(kCount), b(kCount), expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<uint8_t>(i);
    b[i] = static_cast<uint8_t>(3 * i % 0x70);
  }
  const void* on_host[] = {a.data(), b.data()};
  host::CombineElements(on_host, Fp8Format::kE4M3, ReduceOp::kSum, 0.5, kCount, expected.data());
  std::vector<float> sums(kCount);
  host::SumElements(on_host, Fp8Format::kE4M3, kCount, 0.5, false, sums.data(), nullptr);
  for (int64_t b_at = 0; b_at < 16; b_at += 5) {
    for (int64_t to_at = 0; to_at < 16; to_at += 5) {
      const auto on_a = Place(a, 5), on_b = Place(b, b_at);
      const auto to = Place(std::vector<uint8_t>(kCount), to_at);
      const void* inputs[] = {on_a.data(), on_b.data()};
      Launch(b_at == 5 && to_at == 5, [&] {
        return kernels_->Combine(stream_->handle(), inputs, Fp8Format::kE4M3, ReduceOp::kSum, 0.5,
                                 kCount, to.data());
      });
      EXPECT_EQ(Take(to), expected);
    }
    // Sixteen codes are as many as four accesses of sums.
    const auto on_a = Place(a, 5), on_b = Place(b, b_at);
    const auto to = Place(std::vector<float>(kCount), 1);
    const void* inputs[] = {on_a.data(), on_b.data()};
    Launch(b_at == 5, [&] {
      return kernels_->Reduce(stream_->handle(), inputs, Fp8Format::kE4M3, kCount, 0.5, false,
                              to.data(), nullptr);
    });
    EXPECT_EQ(Take(to), sums);
  }
}

host::AdamParams SomeAdam() {
  host::AdamParams params;
  params.weight_decay = 0.1;
  params.gradient_scale = 0.7;
  params.bias_correction2 = 0.01;
  params.decoupled_weight_decay = true;
  return params;
}

template <typename Real>
void GpuKernelsAccessDeviceTest::ExpectAdam(const Offsets& at, int64_t count) {
  SCOPED_TRACE(testing::Message() << sizeof(Real) << " bytes at " << at.gradient << ", " << at.state
                                  << ", " << at.halves << ", " << count);
  const std::vector<Real> g = Some<Real>(1, count), p = Some<Real>(2, count);
  const std::vector<Real> m = Some<Real>(3, count), v(count, Real(0.25)), none(count);
  const auto on_g = Place(g, at.gradient);
  const auto on_p = Place(p, at.state), on_m = Place(m, at.state), on_v = Place(v, at.state);
  const auto new_p = Place(none, at.state), new_m = Place(none, at.state);
  const auto new_v = Place(none, at.state), full = Place(none, at.state);
  const auto halves = Place(std::vector<uint16_t>(count), at.halves);
  Launch(at.wide, [&] {
    return kernels_->AdamStep(stream_->handle(), SomeAdam(), count, on_g.data(), on_p.data(),
                              on_m.data(), on_v.data(), new_p.data(), new_m.data(), new_v.data(),
                              full.data(), {halves.data(), DType::kBf16});
  });
  std::vector<Real> p_out(count), m_out(count), v_out(count), published(count);
  std::vector<uint16_t> rounded(count);
  host::AdamStep(SomeAdam(), count, g.data(), p.data(), m.data(), v.data(), p_out.data(),
                 m_out.data(), v_out.data(), published.data(), {rounded.data(), DType::kBf16});
  EXPECT_EQ(Take(new_p), p_out);
  EXPECT_EQ(Take(new_m), m_out);
  EXPECT_EQ(Take(new_v), v_out);
  EXPECT_EQ(Take(full), published);
  EXPECT_EQ(Take(halves), rounded);
  EXPECT_EQ(Take(on_p), p) << "what it reads stays";
}

template <typename Real>
void GpuKernelsAccessDeviceTest::ExpectSgd(const Offsets& at, int64_t count) {
  SCOPED_TRACE(testing::Message() << sizeof(Real) << " bytes at " << at.gradient << ", " << at.state
                                  << ", " << at.halves << ", " << count);
  const std::vector<Real> g = Some<Real>(1, count), p = Some<Real>(2, count);
  const std::vector<Real> b = Some<Real>(3, count);
  host::SgdParams params;
  params.momentum = 0.9;
  params.weight_decay = 0.01;
  const auto on_g = Place(g, at.gradient), on_p = Place(p, at.state), on_b = Place(b, at.state);
  const auto halves = Place(std::vector<uint16_t>(count), at.halves);
  Launch(at.wide, [&] {
    return kernels_->SgdStep(stream_->handle(), params, count, on_g.data(), on_p.data(),
                             on_b.data(), on_p.data(), on_b.data(), nullptr,
                             {halves.data(), DType::kFp16});
  });
  std::vector<Real> p_out(count), b_out(count);
  std::vector<uint16_t> rounded(count);
  host::SgdStep(params, count, g.data(), p.data(), b.data(), p_out.data(), b_out.data(), nullptr,
                {rounded.data(), DType::kFp16});
  EXPECT_EQ(Take(on_p), p_out);
  EXPECT_EQ(Take(on_b), b_out);
  EXPECT_EQ(Take(halves), rounded);
}

TEST_F(GpuKernelsAccessDeviceTest, UpdatesOfEveryAddress) {
  for (int64_t state = 0; state < 4; ++state) {
    for (int64_t other = 0; other < 4; ++other) {
      const bool same = state == other, same_double = state % 2 == other % 2;
      ExpectAdam<float>({other, state, state, same}, 50);
      ExpectAdam<float>({state, state, other + 4, same}, 50);
      ExpectAdam<double>({state, state, other, same_double}, 50);
      ExpectSgd<float>({other, state, state, same}, 50);
      ExpectSgd<double>({state, state, other, same_double}, 50);
    }
    for (const int64_t count : {1, 2, 3, 4, 7, 8}) {
      const bool wide = (4 - state) % 4 + 4 <= count;
      ExpectAdam<float>({state, state, state, wide}, count);
    }
  }
}

// Compares the kernel of one pass with the two that it replaces.
}  // namespace
}  // namespace tessera
