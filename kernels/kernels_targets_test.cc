// Every instruction set that this CPU has gives the same bits.
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/kernels.h"

namespace tessera {
namespace host {
namespace {

constexpr int kCount = 5003;

// The bytes that every kernel writes, and its numbers, from one fixed input.
std::vector<char> OutputOfEveryKernel() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<std::vector<float>> in(5, std::vector<float>(kCount));
  for (std::vector<float>& values : in) {
    for (float& v : values) v = normal(random);
  }
  for (float& v : in[3]) v = v < 0 ? -v : v;
  std::vector<char> bytes;
  const auto keep = [&bytes](const void* data, size_t size) {
    const char* begin = static_cast<const char*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  const void* inputs[] = {in[0].data(), in[1].data(), in[2].data()};
  std::vector<float> out(kCount, 0.5f), p(kCount), m(kCount), v(kCount);
  std::vector<uint16_t> half(kCount);
  GradientStats stats;
  ReduceSlices(inputs, DType::kFp32, kCount, 0.3f, true, out.data(), &stats);
  keep(out.data(), kCount * sizeof(float));
  keep(&stats.sum_of_squares, sizeof(double));
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    std::vector<std::vector<uint16_t>> narrow(3, std::vector<uint16_t>(kCount));
    for (int r = 0; r < 3; ++r) CastFp32ToHalf(dtype, in[r].data(), narrow[r].data(), kCount);
    const void* halves[] = {narrow[0].data(), narrow[1].data(), narrow[2].data()};
    ReduceSlices(halves, dtype, kCount, 0.3f, false, out.data(), nullptr);
    keep(out.data(), kCount * sizeof(float));
  }
  Accumulate(out.data(), in[0].data(), kCount);
  keep(out.data(), kCount * sizeof(float));
  AdamParams adam;
  adam.weight_decay = 0.1;
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    AdamStep(adam, kCount, in[0].data(), in[1].data(), in[2].data(), in[3].data(), p.data(),
             m.data(), v.data(), nullptr, {half.data(), dtype});
    keep(half.data(), kCount * sizeof(uint16_t));
    CastHalfToFp32(dtype, half.data(), out.data(), kCount);
    keep(out.data(), kCount * sizeof(float));
  }
  for (const std::vector<float>* written : {&p, &m, &v}) {
    keep(written->data(), kCount * sizeof(float));
  }
  SgdParams sgd;
  sgd.momentum = 0.9;
  sgd.weight_decay = 0.01;
  SgdStep(sgd, kCount, in[0].data(), in[1].data(), in[2].data(), p.data(), m.data(), nullptr, {});
  keep(p.data(), kCount * sizeof(float));
  return bytes;
}

TEST(KernelTargetsTest, EveryInstructionSetGivesTheSameBits) {
  const std::vector<char> expected = OutputOfEveryKernel();
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    EXPECT_STREQ(hwy::TargetName(target), SimdTargetName());
    EXPECT_TRUE(expected == OutputOfEveryKernel());
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace host
}  // namespace tessera
