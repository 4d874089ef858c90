#include "worker/device/rank_kernels_conformance.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace tessera {

void RankKernelsConformanceTest::SetUp() {
  absl::StatusOr<RankKernelsBackend::Made> made = GetParam().create();
  if (absl::IsUnavailable(made.status())) GTEST_SKIP() << made.status();
  ASSERT_OK(made);
  device_ = std::move(made->device);
  ASSERT_OK_AND_ASSIGN(
      region_, device_->MapRegion(made->region.get(), RankKernelsBackend::kRegionBytes, true));
  ASSERT_OK_AND_ASSIGN(kernels_, NewKernels());
}

absl::StatusOr<std::unique_ptr<RankKernels>> RankKernelsConformanceTest::NewKernels() {
  RankDevice::KernelOptions options;
  options.state_on_host = GetParam().state_on_host;
  options.max_count = kMaxCount;
  return device_->CreateKernels(options);
}

RankMemory RankKernelsConformanceTest::OfDevice() {
  constexpr int64_t kHalf = RankKernelsBackend::kRegionBytes / 2;
  auto* const region = region_.data_as<std::byte>();
  if (!GetParam().state_on_host) return {kernels_.get(), region, region + kHalf};
  offloaded_.resize(kHalf);
  return {kernels_.get(), region, offloaded_.data()};
}

RankMemory RankKernelsConformanceTest::OfProcessor() {
  host_.resize(RankKernelsBackend::kRegionBytes);
  return {&host_kernels_, host_.data(), host_.data() + host_.size() / 2};
}

namespace {

const int64_t kCounts[] = {0, 1, 7, 1000, 65'539, 150'001};

// Of several sizes, so that rounding shows, and in fp64 with bits that fp32 has no room for.
template <typename Real>
std::vector<Real> RandomValues(int64_t count, int seed, bool positive = false) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-12, 4), sign(-1, 1);
  std::vector<Real> values(count);
  for (Real& value : values) {
    const double magnitude = std::exp2(exponent(random));
    value = static_cast<Real>(positive || sign(random) > 0 ? magnitude : -magnitude);
  }
  return values;
}

std::vector<uint16_t> RandomHalves(DType half, int64_t count, int seed) {
  const std::vector<float> values = RandomValues<float>(count, seed);
  std::vector<uint16_t> halves(count);
  host::CastFp32ToHalf(half, values.data(), halves.data(), count);
  return halves;
}

// What an operation left, array by array, to compare.
class Bits {
 public:
  template <typename T>
  void Add(const std::vector<T>& values) {
    std::string& bytes = arrays_.emplace_back(values.size() * sizeof(T), '\0');
    if (!values.empty()) memcpy(bytes.data(), values.data(), bytes.size());
  }
  // "" where they are the same.
  std::string DifferenceTo(const Bits& other) const {
    if (arrays_.size() != other.arrays_.size()) return "another number of arrays";
    for (size_t i = 0; i < arrays_.size(); ++i) {
      if (arrays_[i].size() != other.arrays_[i].size())
        return absl::StrCat("array ", i, " has another size");
      for (size_t k = 0; k < arrays_[i].size(); ++k) {
        if (arrays_[i][k] != other.arrays_[i][k])
          return absl::StrCat("array ", i, " differs at byte ", k, " of ", arrays_[i].size());
      }
    }
    return "";
  }

 private:
  std::vector<std::string> arrays_;
};

Bits TakeMeasures(RankMemory* memory) {
  Bits bits;
  host::GradientStats stats;
  EXPECT_OK(memory->kernels().TakeStats(&stats));
  bits.Add(std::vector<double>{stats.sum_of_squares});
  bits.Add(std::vector<char>{static_cast<char>(stats.non_finite ? 1 : 0)});
  const absl::StatusOr<double> part = memory->kernels().TakeNormPart();
  EXPECT_OK(part);
  bits.Add(std::vector<double>{part.value_or(-1)});
  return bits;
}

// Where what is updated is published.
enum class Publish { kNowhere, kFull, kBf16, kFp16 };

template <typename Real>
struct Update {
  UpdateArrays arrays;
  std::vector<Real*> outputs;
  Real* full = nullptr;
  uint16_t* half = nullptr;

  Update(RankMemory* memory, int64_t count, Publish publish) {
    arrays.dtype = DTypeOfReal<Real>();
    arrays.count = count;
    arrays.gradient = memory->InState(RandomValues<Real>(count, 1));
    arrays.p_in = memory->InState(RandomValues<Real>(count, 2));
    arrays.m_in = memory->InState(RandomValues<Real>(count, 3));
    arrays.v_in = memory->InState(RandomValues<Real>(count, 4, /*positive=*/true));
    for (int i = 0; i < 3; ++i) outputs.push_back(memory->InState(std::vector<Real>(count, 77)));
    arrays.p_out = outputs[0];
    arrays.m_out = outputs[1];
    arrays.v_out = outputs[2];
    if (publish == Publish::kFull) {
      arrays.publish_full = full = memory->OnDevice(std::vector<Real>(count, 77));
    } else if (publish != Publish::kNowhere) {
      half = memory->OnDevice(std::vector<uint16_t>(count, 77));
      arrays.publish_half = {half, publish == Publish::kBf16 ? DType::kBf16 : DType::kFp16};
    }
  }
  Bits Read(RankMemory* memory) const {
    Bits bits;
    for (const Real* output : outputs) bits.Add(memory->Read(output, arrays.count));
    if (full != nullptr) bits.Add(memory->Read(full, arrays.count));
    if (half != nullptr) bits.Add(memory->Read(half, arrays.count));
    return bits;
  }
};

template <typename Real>
Bits RunAdam(RankMemory memory, int64_t count, Publish publish, bool decoupled) {
  host::AdamParams params;
  params.weight_decay = 0.1;
  params.bias_correction1 = 1 - std::pow(0.9, 3);
  params.bias_correction2 = 1 - std::pow(0.999, 3);
  params.gradient_scale = 0.37;
  params.decoupled_weight_decay = decoupled;
  const Update<Real> update(&memory, count, publish);
  memory.kernels().AdamStep(params, update.arrays);
  EXPECT_OK(memory.kernels().Finish());
  return update.Read(&memory);
}

template <typename Real>
Bits RunSgd(RankMemory memory, int64_t count, Publish publish, double momentum, bool first) {
  host::SgdParams params;
  params.momentum = momentum;
  params.weight_decay = 0.1;
  params.gradient_scale = 0.37;
  params.first_step = first;
  Update<Real> update(&memory, count, publish);
  if (momentum == 0) update.arrays.m_in = update.arrays.m_out = nullptr;
  if (first) update.arrays.m_in = nullptr;
  memory.kernels().SgdStep(params, update.arrays);
  EXPECT_OK(memory.kernels().Finish());
  return update.Read(&memory);
}

TEST_P(RankKernelsConformanceTest, AdamHasTheBitsOfTheProcessors) {
  for (const int64_t count : kCounts) {
    for (const Publish publish :
         {Publish::kNowhere, Publish::kFull, Publish::kBf16, Publish::kFp16}) {
      SCOPED_TRACE(absl::StrCat(count, " elements, published ", static_cast<int>(publish)));
      for (const bool decoupled : {false, true}) {
        EXPECT_EQ(RunAdam<float>(OfDevice(), count, publish, decoupled)
                      .DifferenceTo(RunAdam<float>(OfProcessor(), count, publish, decoupled)),
                  "");
        EXPECT_EQ(RunAdam<double>(OfDevice(), count, publish, decoupled)
                      .DifferenceTo(RunAdam<double>(OfProcessor(), count, publish, decoupled)),
                  "");
      }
    }
  }
}

TEST_P(RankKernelsConformanceTest, SgdHasTheBitsOfTheProcessors) {
  for (const int64_t count : kCounts) {
    for (const Publish publish : {Publish::kNowhere, Publish::kFull, Publish::kBf16}) {
      for (const double momentum : {0.0, 0.9}) {
        for (const bool first : {false, true}) {
          SCOPED_TRACE(absl::StrCat(count, " elements, published ", static_cast<int>(publish),
                                    ", momentum ", momentum, first ? ", first" : ""));
          EXPECT_EQ(
              RunSgd<float>(OfDevice(), count, publish, momentum, first)
                  .DifferenceTo(RunSgd<float>(OfProcessor(), count, publish, momentum, first)),
              "");
          EXPECT_EQ(
              RunSgd<double>(OfDevice(), count, publish, momentum, first)
                  .DifferenceTo(RunSgd<double>(OfProcessor(), count, publish, momentum, first)),
              "");
        }
      }
    }
  }
}

// Also what no half can hold.
template <typename Real>
Bits RunRounding(RankMemory memory, DType half, int64_t count) {
  std::vector<Real> values = RandomValues<Real>(count, 5);
  const Real odd[] = {std::numeric_limits<Real>::infinity(), static_cast<Real>(-1e30),
                      static_cast<Real>(1e-42), static_cast<Real>(65520), static_cast<Real>(-0.0)};
  for (size_t i = 0; i < values.size() && i < std::size(odd); ++i) values[i] = odd[i];
  Real* const state = memory.InState(values);
  uint16_t* const cast = memory.OnDevice(std::vector<uint16_t>(count, 77));
  memory.kernels().CastToHalf(ConstValues(state, count, DTypeOfReal<Real>()), {cast, half});
  EXPECT_OK(memory.kernels().Finish());
  memory.kernels().RoundToHalf(half, Values(state, count, DTypeOfReal<Real>()));
  EXPECT_OK(memory.kernels().Finish());
  Bits bits;
  bits.Add(memory.Read(cast, count));
  bits.Add(memory.Read(state, count));
  return bits;
}

TEST_P(RankKernelsConformanceTest, RoundingHasTheBitsOfTheProcessors) {
  for (const int64_t count : kCounts) {
    for (const DType half : {DType::kBf16, DType::kFp16}) {
      SCOPED_TRACE(absl::StrCat(count, " elements to ", Name(half)));
      EXPECT_EQ(RunRounding<float>(OfDevice(), half, count)
                    .DifferenceTo(RunRounding<float>(OfProcessor(), half, count)),
                "");
      EXPECT_EQ(RunRounding<double>(OfDevice(), half, count)
                    .DifferenceTo(RunRounding<double>(OfProcessor(), half, count)),
                "");
    }
  }
}

// Of `num_inputs` ranks; measured, and measured again once more was added.
template <typename Real, typename In>
Bits RunReduce(RankMemory memory, const std::vector<std::vector<In>>& values, DType dtype,
               int64_t count) {
  std::vector<const void*> inputs;
  for (const std::vector<In>& of_rank : values) inputs.push_back(memory.OnDevice(of_rank));
  Real* const sum = memory.InState(RandomValues<Real>(count, 6));
  Bits bits;
  for (const bool accumulate : {false, true}) {
    memory.kernels().Reduce(inputs, dtype, count, 0.3, accumulate, sum, /*measure=*/accumulate);
    EXPECT_OK(memory.kernels().Finish());
    bits.Add(memory.Read(sum, count));
  }
  memory.kernels().Reduce(inputs, dtype, count, 1.0, true, sum, /*measure=*/true);
  inputs.clear();  // They are read at once.
  EXPECT_OK(memory.kernels().Finish());
  bits.Add(memory.Read(sum, count));
  host::GradientStats stats;
  EXPECT_OK(memory.kernels().TakeStats(&stats));
  bits.Add(std::vector<double>{stats.sum_of_squares});
  EXPECT_FALSE(stats.non_finite);
  return bits;
}

TEST_P(RankKernelsConformanceTest, SumsOverRanksHaveTheBitsOfTheProcessors) {
  for (const int64_t count : kCounts) {
    for (const int num_ranks : {1, 2, 5}) {
      SCOPED_TRACE(absl::StrCat(count, " elements of ", num_ranks, " ranks"));
      std::vector<std::vector<float>> floats;
      std::vector<std::vector<double>> doubles;
      std::vector<std::vector<uint16_t>> bf16s, fp16s;
      for (int rank = 0; rank < num_ranks; ++rank) {
        floats.push_back(RandomValues<float>(count, 10 + rank));
        doubles.push_back(RandomValues<double>(count, 20 + rank));
        bf16s.push_back(RandomHalves(DType::kBf16, count, 30 + rank));
        fp16s.push_back(RandomHalves(DType::kFp16, count, 40 + rank));
      }
      const auto expect_same = [&](auto real, const auto& values, DType dtype) {
        using Real = decltype(real);
        EXPECT_EQ(RunReduce<Real>(OfDevice(), values, dtype, count)
                      .DifferenceTo(RunReduce<Real>(OfProcessor(), values, dtype, count)),
                  "")
            << Name(dtype) << " into " << Name(DTypeOfReal<Real>());
      };
      expect_same(float(), floats, DType::kFp32);
      expect_same(float(), bf16s, DType::kBf16);
      expect_same(float(), fp16s, DType::kFp16);
      expect_same(double(), doubles, DType::kFp64);
      expect_same(double(), floats, DType::kFp32);
      expect_same(double(), bf16s, DType::kBf16);
    }
  }
}

template <typename Real>
Bits RunMeasures(RankMemory memory, int64_t count, double p, bool with_infinity) {
  std::vector<Real> values = RandomValues<Real>(count, 7);
  if (with_infinity && count > 0) values[count / 2] = std::numeric_limits<Real>::infinity();
  const DType dtype = DTypeOfReal<Real>();
  const Real* const state = memory.InState(values);
  memory.kernels().Measure(ConstValues(state, count, dtype));
  memory.kernels().Measure(ConstValues(state, count / 3, dtype));
  memory.kernels().AddToNormPart(ConstValues(state, count, dtype), p);
  memory.kernels().AddToNormPart(ConstValues(state, count / 3, dtype), p);
  return TakeMeasures(&memory);
}

TEST_P(RankKernelsConformanceTest, MeasuresAddUpToTheBitsOfTheProcessorsAndAreTakenOnce) {
  for (const int64_t count : kCounts) {
    for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      for (const bool with_infinity : {false, true}) {
        SCOPED_TRACE(
            absl::StrCat(count, " elements, p ", p, with_infinity ? ", with infinity" : ""));
        EXPECT_EQ(RunMeasures<float>(OfDevice(), count, p, with_infinity)
                      .DifferenceTo(RunMeasures<float>(OfProcessor(), count, p, with_infinity)),
                  "");
        EXPECT_EQ(RunMeasures<double>(OfDevice(), count, p, with_infinity)
                      .DifferenceTo(RunMeasures<double>(OfProcessor(), count, p, with_infinity)),
                  "");
      }
    }
  }
  host::GradientStats stats;
  stats.sum_of_squares = -1;
  ASSERT_OK(kernels_->TakeStats(&stats));
  EXPECT_EQ(stats.sum_of_squares, 0);
  EXPECT_FALSE(stats.non_finite);
  ASSERT_OK_AND_ASSIGN(const double part, kernels_->TakeNormPart());
  EXPECT_EQ(part, 0);
}

// Whose pow() is the device's own, and may differ in the last bits.
TEST_P(RankKernelsConformanceTest, PartsOfOtherNormsAreThoseOfTheProcessors) {
  for (const int64_t count : kCounts) {
    for (const double p : {0.5, 1.5, 3.0}) {
      SCOPED_TRACE(absl::StrCat(count, " elements, p ", p));
      const std::vector<float> values = RandomValues<float>(count, 9);
      const auto part_of = [&](RankMemory memory) {
        const float* const state = memory.InState(values);
        memory.kernels().AddToNormPart(ConstValues(state, count, DType::kFp32), p);
        memory.kernels().AddToNormPart(ConstValues(state, count / 2, DType::kFp32), p);
        return memory.kernels().TakeNormPart();
      };
      ASSERT_OK_AND_ASSIGN(const double expected, part_of(OfProcessor()));
      ASSERT_OK_AND_ASSIGN(const double part, part_of(OfDevice()));
      EXPECT_NEAR(part, expected, 1e-13 * expected);
    }
  }
}

TEST_P(RankKernelsConformanceTest, CopiesGoBothWaysInTheOrderOfTheCalls) {
  RankMemory memory = OfDevice();
  const std::vector<float> values = RandomValues<float>(kMaxCount, 8);
  const int64_t size_bytes = kMaxCount * static_cast<int64_t>(sizeof(float));
  float* const a = memory.OnDevice(values);
  float* const b = memory.OnDevice(std::vector<float>(kMaxCount));
  ASSERT_OK_AND_ASSIGN(const Buffer host, kernels_->AllocateOnHost(size_bytes));
  kernels_->Copy(b, a, size_bytes);
  kernels_->Clear(a, size_bytes);
  kernels_->Copy(host.data(), b, size_bytes);
  kernels_->Copy(nullptr, nullptr, 0);
  kernels_->Clear(nullptr, 0);
  ASSERT_OK(kernels_->Finish());
  EXPECT_EQ(memory.Read(host.data_as<float>(), kMaxCount), values);
  EXPECT_EQ(memory.Read(b, kMaxCount), values);
  EXPECT_EQ(memory.Read(a, kMaxCount), std::vector<float>(kMaxCount));
}

TEST_P(RankKernelsConformanceTest, ObjectsOfOneDeviceDoNotMixUpWhatTheyMeasure) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RankKernels> others, NewKernels());
  RankMemory memory = OfDevice();
  const float* const threes = memory.InState(std::vector<float>(100, 3.0f));
  kernels_->Measure(ConstValues(threes, 100, DType::kFp32));
  others->Measure(ConstValues(threes, 50, DType::kFp32));
  host::GradientStats stats;
  ASSERT_OK(kernels_->TakeStats(&stats));
  EXPECT_EQ(stats.sum_of_squares, 900);
  ASSERT_OK(others->TakeStats(&stats));
  EXPECT_EQ(stats.sum_of_squares, 450);
}

}  // namespace

}  // namespace tessera
