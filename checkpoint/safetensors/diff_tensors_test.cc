#include "checkpoint/safetensors/diff_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/element_diff.h"
#include "checkpoint/safetensors/stored_tensors.h"
#include "gtest/gtest.h"
#include "layout/stored_dtype.h"

namespace tessera {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

template <typename Number>
std::string BytesOf(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

ElementDiff Compare(StoredDType dtype, absl::string_view a, absl::string_view b) {
  ElementDiff diff;
  CompareElements(dtype, a, b, 100, &diff);
  return diff;
}

void ExpectDiff(const ElementDiff& diff, int64_t num_different, int64_t first_element,
                int64_t num_non_finite, double largest) {
  EXPECT_EQ(diff.num_different, num_different);
  EXPECT_EQ(diff.first_element, first_element);
  EXPECT_EQ(diff.num_non_finite, num_non_finite);
  EXPECT_EQ(diff.largest, largest);
}

template <typename Real>
void ExpectRealsAreCompared(StoredDType dtype) {
  const Real a[] = {1, 2, Real(kNan), -0.0, Real(kInf), Real(kInf), Real(kNan)};
  const Real b[] = {1, 2.5, -Real(kNan), 0.0, Real(kInf), -Real(kInf), 7};
  const auto bytes = [](const Real* reals) { return BytesOf(std::vector<Real>(reals, reals + 7)); };
  ExpectDiff(Compare(dtype, bytes(a), bytes(b)), 4, 101, 2, 0.5);
  ExpectDiff(Compare(dtype, bytes(b), bytes(a)), 4, 101, 2, 0.5);
  EXPECT_EQ(Compare(dtype, bytes(a), bytes(a)).num_different, 0);
}

TEST(ElementDiffTest, RealsDifferByTheirBitsButTwoNaNAreEqual) {
  ExpectRealsAreCompared<float>(StoredDType::kF32);
  ExpectRealsAreCompared<double>(StoredDType::kF64);
}

TEST(ElementDiffTest, RealsFurtherApartThanADoubleCanSayAreFinite) {
  const double most = std::numeric_limits<double>::max();
  ExpectDiff(Compare(StoredDType::kF64, BytesOf<double>({most}), BytesOf<double>({-most})), 1, 100,
             0, most);
}

TEST(ElementDiffTest, HalvesAreComparedAsTheNumbersThatTheyAre) {
  // 1, NaN, infinite, and in b 1.5, another NaN, infinite.
  const auto bf16 = [](uint16_t first) { return BytesOf<uint16_t>({first, 0x7fc0, 0x7f80}); };
  ExpectDiff(Compare(StoredDType::kBf16, bf16(0x3f80), bf16(0x3fc0)), 1, 100, 0, 0.5);
  const auto fp16 = [](uint16_t first, uint16_t nan) {
    return BytesOf<uint16_t>({first, nan, 0x7c00});
  };
  ExpectDiff(Compare(StoredDType::kF16, fp16(0x3c00, 0x7e00), fp16(0x3e00, 0x7e01)), 1, 100, 0,
             0.5);
  std::vector<uint16_t> many(5000, 0x3c00), other = many;
  other[4999] = 0x7c00;
  ExpectDiff(Compare(StoredDType::kF16, BytesOf(many), BytesOf(other)), 1, 5099, 1, 0);
}

TEST(ElementDiffTest, IntegersDoNotOverflow) {
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t most = std::numeric_limits<int64_t>::max();
  ExpectDiff(Compare(StoredDType::kI64, BytesOf<int64_t>({5, least}), BytesOf<int64_t>({5, most})),
             1, 101, 0, std::ldexp(1.0, 64));
  ExpectDiff(Compare(StoredDType::kI8, BytesOf<int8_t>({-128}), BytesOf<int8_t>({127})), 1, 100, 0,
             255);
  ExpectDiff(Compare(StoredDType::kU32, BytesOf<uint32_t>({4000000000u}), BytesOf<uint32_t>({0})),
             1, 100, 0, 4e9);
  ExpectDiff(Compare(StoredDType::kBool, BytesOf<char>({0, 1}), BytesOf<char>({1, 1})), 1, 100, 0,
             1);
}

TEST(ElementDiffTest, ElementsBelowAByteAreCounted) {
  EXPECT_FALSE(HasDifferences(StoredDType::kF4));
  ExpectDiff(Compare(StoredDType::kF4, "\x12\x34", "\x13\x44"), 2, 100, 0, 0);
  ExpectDiff(Compare(StoredDType::kF6E2M3, absl::string_view("\0\0\0", 3),
                     absl::string_view("\0\x10\x80", 3)),
             2, 102, 0, 0);
  ExpectDiff(Compare(StoredDType::kC64, BytesOf<float>({1, 2, 3, 4}), BytesOf<float>({1, 2, 3, 5})),
             1, 101, 0, 0);
}

// Entries in memory, which note the largest piece that was read.
class FakeTensors final : public StoredTensors {
 public:
  void Add(const std::string& name, StoredDType dtype, std::vector<int64_t> shape,
           std::string bytes) {
    StoredEntry& entry = entries_[{"model", name}];
    entry.dtype = dtype;
    entry.size_bytes = static_cast<int64_t>(bytes.size());
    entry.numel = entry.size_bytes * 8 / SizeBits(dtype);
    entry.shape = std::move(shape);
    bytes_[name] = std::move(bytes);
  }
  absl::Status Read(const StoredKey& key, int64_t begin_elements, int64_t count,
                    char* into) const override {
    const int64_t bits = SizeBits(*entries_.at(key).dtype);
    const std::string& bytes = bytes_.at(key.second);
    largest_elements_ = std::max(largest_elements_, count);
    memcpy(into, bytes.data() + begin_elements * bits / 8, count * bits / 8);
    return absl::OkStatus();
  }
  int64_t largest_elements() const { return largest_elements_; }

 private:
  std::map<std::string, std::string> bytes_;
  mutable int64_t largest_elements_ = 0;
};

TEST(DiffTensorsTest, EachKindOfDifferenceIsFoundAndOfEqualTensorsNone) {
  FakeTensors a, b;
  a.Add("only a", StoredDType::kF32, {1}, BytesOf<float>({1}));
  b.Add("only b", StoredDType::kF32, {1}, BytesOf<float>({1}));
  a.Add("dtype", StoredDType::kF32, {1}, BytesOf<float>({1}));
  b.Add("dtype", StoredDType::kI32, {1}, BytesOf<float>({1}));
  a.Add("shape", StoredDType::kF32, {2, 1}, BytesOf<float>({1, 2}));
  b.Add("shape", StoredDType::kF32, {1, 2}, BytesOf<float>({1, 2}));
  a.Add("values", StoredDType::kF32, {2}, BytesOf<float>({1, 2}));
  b.Add("values", StoredDType::kF32, {2}, BytesOf<float>({1, 4}));
  for (FakeTensors* tensors : {&a, &b}) {
    tensors->Add("equal", StoredDType::kF32, {2}, BytesOf<float>({1, 2}));
    tensors->Add("empty", StoredDType::kF32, {0, 3}, "");
  }
  ASSERT_OK_AND_ASSIGN(const TensorsDiff found, DiffTensors(a, b, {}));
  EXPECT_EQ(found.num_compared, 7);
  std::map<std::string, DiffKind> kinds;
  for (const TensorDiff& diff : found.differences) kinds[diff.key.second] = diff.kind;
  EXPECT_EQ(kinds, (std::map<std::string, DiffKind>{{"only a", DiffKind::kOnlyInA},
                                                    {"only b", DiffKind::kOnlyInB},
                                                    {"dtype", DiffKind::kDType},
                                                    {"shape", DiffKind::kShape},
                                                    {"values", DiffKind::kValues}}));
  ExpectDiff(found.differences.back().elements, 1, 1, 0, 2);
}

TEST(DiffTensorsTest, IsReadInPiecesAndTellsHowFarItIs) {
  std::vector<float> values(1000, 1), others = values;
  others[3] = 2;
  others[999] = 5;
  FakeTensors a, b;
  a.Add("t", StoredDType::kF32, {1000}, BytesOf(values));
  b.Add("t", StoredDType::kF32, {1000}, BytesOf(others));
  DiffOptions options;
  options.piece_elements = 64;
  std::vector<int64_t> told_bytes;
  options.progress = [&](int64_t done_bytes, int64_t all_bytes) {
    EXPECT_EQ(all_bytes, 4000);
    told_bytes.push_back(done_bytes);
  };
  ASSERT_OK_AND_ASSIGN(const TensorsDiff found, DiffTensors(a, b, options));
  ASSERT_EQ(found.differences.size(), 1);
  ExpectDiff(found.differences[0].elements, 2, 3, 0, 4);
  EXPECT_EQ(a.largest_elements(), 64);
  EXPECT_EQ(b.largest_elements(), 64);
  EXPECT_EQ(told_bytes.size(), 16);
  EXPECT_EQ(told_bytes.back(), 4000);
}

TEST(DiffTensorsTest, OnlyWhatIsSelectedIsCompared) {
  FakeTensors a, b;
  a.Add("x", StoredDType::kU8, {1}, "1");
  b.Add("y", StoredDType::kU8, {1}, "1");
  DiffOptions options;
  options.selects = [](const std::string& name) { return name == "y"; };
  ASSERT_OK_AND_ASSIGN(const TensorsDiff found, DiffTensors(a, b, options));
  EXPECT_EQ(found.num_compared, 1);
  ASSERT_EQ(found.differences.size(), 1);
  EXPECT_EQ(found.differences[0].kind, DiffKind::kOnlyInB);
}

}  // namespace
}  // namespace tessera
