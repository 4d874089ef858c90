// What sums, maxima and minima are of each type that elements travel in, to the bit: random codes
// with what is not finite or not normal among them, of odd numbers of elements.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "kernels/narrow_floats.h"
#include "worker/comm/communicator_conformance.h"
#include "worker/comm/communicator_conformance_values.h"

namespace tessera {
namespace {

using narrow::Bf16;
using narrow::Fp16;
using narrow::Fp8E4M3;
using narrow::Fp8E5M2;
using narrow::Narrow;
using narrow::Widen;
using narrow::WideOf;

// The second takes several pieces of each back-end's staging, and both paths of back-ends with two.
constexpr int64_t kFew = 257, kMany = 20'011;

// What each type is called and how far it reaches.
template <typename T>
struct Format;
template <>
struct Format<float> {
  static constexpr ElementType kType = DType::kFp32;
  static constexpr int kDigits = 24, kLeast = -149, kLargest = 127;
};
template <>
struct Format<double> {
  static constexpr ElementType kType = DType::kFp64;
  static constexpr int kDigits = 53, kLeast = -1074, kLargest = 1023;
};
template <>
struct Format<Bf16> {
  static constexpr ElementType kType = DType::kBf16;
  static constexpr int kDigits = 8, kLeast = -133, kLargest = 127;
};
template <>
struct Format<Fp16> {
  static constexpr ElementType kType = DType::kFp16;
  static constexpr int kDigits = 11, kLeast = -24, kLargest = 15;
};
template <>
struct Format<Fp8E4M3> {
  static constexpr ElementType kType = Fp8Format::kE4M3;
  static constexpr int kDigits = 4, kLeast = -9, kLargest = 8;
};
template <>
struct Format<Fp8E5M2> {
  static constexpr ElementType kType = Fp8Format::kE5M2;
  static constexpr int kDigits = 3, kLeast = -16, kLargest = 15;
};

// Every third element has random bits: of an FP8 type all of its values, and of each type
// some that are not numbers, infinite where it has that, of either zero, and too small to be
// normal.
template <typename T>
std::vector<T> ElementsOf(int owner, int64_t count) {
  std::vector<T> elements(count);
  Draw draw(3000 + owner);
  const std::vector<float> moderate = Floats(owner, count);
  for (int64_t i = 0; i < count; ++i) {
    Narrow(moderate[i], &elements[i]);
    uint64_t bits = uint64_t{draw()} << 40 ^ uint64_t { draw() } << 20 ^ draw();
    const uint64_t kind = draw();
    if (kind % 3 != 0) continue;
    const int width = 8 * static_cast<int>(sizeof(T));
    const uint64_t sign = uint64_t{1} << (width - 1);
    if (kind % 33 == 0) bits &= sign;      // A zero.
    if (kind % 33 == 3) bits &= sign | 1;  // Of the smallest magnitude.
    if (kind % 33 == 6) Narrow(kind % 2 == 0 ? HUGE_VALF : -HUGE_VALF, &elements[i]);
    if (kind % 33 != 6) std::memcpy(static_cast<void*>(&elements[i]), &bits, sizeof(T));
  }
  return elements;
}

// By rank.
template <typename T>
using Everyones = std::vector<std::vector<T>>;

template <typename T>
Everyones<T> EveryonesElements(int size, const std::function<int(int)>& data_of, int64_t count) {
  Everyones<T> all;
  for (int r = 0; r < size; ++r) all.push_back(ElementsOf<T>(data_of(r), count));
  return all;
}

template <typename T>
bool IsNan(T value) {
  return std::isnan(Widen(value));
}

// Of two that are not numbers nobody promises which.
template <typename T>
bool IsSame(T a, T b) {
  return (IsNan(a) && IsNan(b)) || std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Element i of all, added in rank order and scaled.
template <typename Sum, typename T>
Sum OrderedSumOf(const Everyones<T>& all, int64_t i, double scale) {
  Sum sum = Widen(all[0][i]);
  for (size_t r = 1; r < all.size(); ++r) sum = sum + static_cast<Sum>(Widen(all[r][i]));
  return sum * static_cast<Sum>(scale);
}

// As the library may have added and scaled it, in whatever order: each of its steps is wrong by
// half a unit in the last place at the most. What came near to too large may be anything.
template <typename T>
bool MayBeTheLibrarys(T result, const Everyones<T>& all, int64_t i, double scale) {
  long double sum = 0, magnitude = 0;
  for (const std::vector<T>& elements : all) {
    const long double value = Widen(elements[i]);
    sum += value;
    magnitude += std::fabs(value);
  }
  if (std::isnan(magnitude)) return IsNan(result);
  const long double factor = std::fabs(static_cast<long double>(scale));
  if (magnitude * std::max(factor, 1.0L) >= std::ldexp(1.0L, Format<T>::kLargest)) return true;
  const long double unit = std::ldexp(1.0L, -Format<T>::kDigits) * magnitude * factor;
  const long double least = std::ldexp(1.0L, Format<T>::kLeast);
  return std::fabs(Widen(result) - sum * scale) <= 3.0L * all.size() * (unit + least);
}

// All ranks have the same bits, whatever they are.
template <typename T>
absl::Status CheckAlike(Communicator* comm, const std::vector<T>& mine) {
  if (mine.empty()) return absl::OkStatus();
  std::vector<T> all(mine.size() * comm->size());
  const int64_t bytes = mine.size() * sizeof(T);
  RETURN_IF_ERROR(comm->AllGather(mine.data(), all.data(), bytes));
  for (int r = 0; r < comm->size(); ++r)
    RANK_EXPECT(std::memcmp(&all[r * mine.size()], mine.data(), bytes) == 0, "rank ", r);
  return absl::OkStatus();
}

// Fewer bits than fp32 has: `by_library` sums in them only where it need not round the scale.
template <typename T>
bool HoldsScale(double scale) {
  T narrow;
  Narrow(scale, &narrow);
  return sizeof(T) >= 4 || Widen(narrow) == static_cast<float>(scale);
}

template <typename T>
absl::Status CheckAllReduceSum(const RankContext& c, const Everyones<T>& all, bool by_library,
                               double scale) {
  std::vector<T> buffer = all[c.comm->rank()];
  const int64_t count = static_cast<int64_t>(buffer.size());
  RETURN_IF_ERROR(c.comm->AllReduce(buffer.data(), count, Format<T>::kType, ReduceOp::kSum, scale));
  const bool is_exact = !by_library || !HoldsScale<T>(scale);
  for (int64_t i = 0; i < count; ++i) {
    T expected;
    Narrow(OrderedSumOf<WideOf<T>>(all, i, scale), &expected);
    RANK_EXPECT(is_exact ? IsSame(buffer[i], expected) : MayBeTheLibrarys(buffer[i], all, i, scale),
                Name(Format<T>::kType), " element ", i, " of ", count, " by ", scale, " is ",
                Widen(buffer[i]), " and not ", Widen(expected));
  }
  return is_exact ? absl::OkStatus() : CheckAlike(c.comm, buffer);
}

template <typename T>
absl::Status CheckAllReduceExtremes(const RankContext& c, const Everyones<T>& all) {
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    std::vector<T> buffer = all[c.comm->rank()];
    const int64_t count = static_cast<int64_t>(buffer.size());
    RETURN_IF_ERROR(c.comm->AllReduce(buffer.data(), count, Format<T>::kType, op, 1));
    for (int64_t i = 0; i < count; ++i) {
      T expected = all[0][i];
      for (const std::vector<T>& elements : all) {
        const auto before = Widen(expected), value = Widen(elements[i]);
        if (std::isnan(before)) break;
        const bool is_better = op == ReduceOp::kMax ? value > before : value < before;
        if (is_better || std::isnan(value)) expected = elements[i];
      }
      RANK_EXPECT(IsSame(buffer[i], expected), Name(Format<T>::kType), " element ", i, " is ",
                  Widen(buffer[i]), " and not ", Widen(expected));
    }
  }
  return absl::OkStatus();
}

template <typename T, typename Sum>
absl::Status CheckReduceScatter(const RankContext& c, const Everyones<T>& all, bool by_library,
                                double scale) {
  const std::vector<T>& send = all[c.comm->rank()];
  const int64_t count = static_cast<int64_t>(send.size()) / c.comm->size();
  std::vector<Sum> recv(count);
  RETURN_IF_ERROR(c.comm->ReduceScatter(send.data(), recv.data(), count, Format<T>::kType, scale));
  const int64_t begin = c.comm->rank() * count;
  for (int64_t i = 0; i < count; ++i) {
    const Sum expected = OrderedSumOf<Sum>(all, begin + i, scale);
    bool is_right = IsSame(recv[i], expected);
    if constexpr (std::is_same_v<T, Sum>) {
      if (by_library) is_right = MayBeTheLibrarys(recv[i], all, begin + i, scale);
    }
    RANK_EXPECT(is_right, Name(Format<T>::kType), " element ", i, " of ", count, " by ", scale,
                " is ", recv[i], " and not ", expected);
  }
  return absl::OkStatus();
}

// Average, one that each type holds, and ones that some round.
std::vector<double> Scales(int size) { return {1, AverageScale(size), 0.375, -1.1}; }

template <typename T>
absl::Status CheckAllReduceOf(const RankContext& c, const std::function<int(int)>& data_of,
                              bool by_library) {
  const int size = c.comm->size();
  const Everyones<T> few = EveryonesElements<T>(size, data_of, kFew);
  const Everyones<T> many = EveryonesElements<T>(size, data_of, kMany);
  for (const double scale : Scales(size))
    RETURN_IF_ERROR(CheckAllReduceSum(c, few, by_library, scale));
  RETURN_IF_ERROR(CheckAllReduceSum(c, many, by_library, AverageScale(size)));
  RETURN_IF_ERROR(CheckAllReduceSum(c, Everyones<T>(size), by_library, 1));
  RETURN_IF_ERROR(CheckAllReduceExtremes(c, few));
  return CheckAllReduceExtremes(c, many);
}

TEST_P(CommunicatorConformanceTest, AllReduceOfEachTypeIsSummedInFp32AndRoundedOnce) {
  ExpectAllOk(
      [data_of = DataOf(), by_library = SumsByLibrary()](const RankContext& c) -> absl::Status {
        RETURN_IF_ERROR(CheckAllReduceOf<float>(c, data_of, by_library));
        RETURN_IF_ERROR(CheckAllReduceOf<double>(c, data_of, by_library));
        RETURN_IF_ERROR(CheckAllReduceOf<Bf16>(c, data_of, by_library));
        RETURN_IF_ERROR(CheckAllReduceOf<Fp16>(c, data_of, by_library));
        RETURN_IF_ERROR(CheckAllReduceOf<Fp8E4M3>(c, data_of, by_library));
        return CheckAllReduceOf<Fp8E5M2>(c, data_of, by_library);
      });
}

template <typename T, typename Sum>
absl::Status CheckReduceScatterOf(const RankContext& c, const std::function<int(int)>& data_of,
                                  bool by_library) {
  const int size = c.comm->size();
  const Everyones<T> few = EveryonesElements<T>(size, data_of, kFew * size);
  const Everyones<T> many = EveryonesElements<T>(size, data_of, kMany / size * size);
  for (const double scale : Scales(size)) {
    const absl::Status summed = CheckReduceScatter<T, Sum>(c, few, by_library, scale);
    RETURN_IF_ERROR(summed);
  }
  return CheckReduceScatter<T, Sum>(c, many, by_library, AverageScale(size));
}

TEST_P(CommunicatorConformanceTest, ReduceScatterOfEachTypeIsSummedInWhatItGoesTo) {
  ExpectAllOk(
      [data_of = DataOf(), by_library = SumsByLibrary()](const RankContext& c) -> absl::Status {
        RETURN_IF_ERROR((CheckReduceScatterOf<float, float>(c, data_of, by_library)));
        RETURN_IF_ERROR((CheckReduceScatterOf<Bf16, float>(c, data_of, by_library)));
        RETURN_IF_ERROR((CheckReduceScatterOf<Fp16, float>(c, data_of, by_library)));
        RETURN_IF_ERROR((CheckReduceScatterOf<Fp8E4M3, float>(c, data_of, by_library)));
        RETURN_IF_ERROR((CheckReduceScatterOf<Fp8E5M2, float>(c, data_of, by_library)));
        RETURN_IF_ERROR((CheckReduceScatterOf<double, double>(c, data_of, by_library)));
        RETURN_IF_ERROR((CheckReduceScatterOf<float, double>(c, data_of, by_library)));
        return CheckReduceScatterOf<Bf16, double>(c, data_of, by_library);
      });
}

TEST_P(CommunicatorConformanceTest, TypesAndScalesThatThereAreNotAreRefusedAndHarmless) {
  ExpectAllOk([](const RankContext& c) -> absl::Status {
    uint8_t code = 0x38;  // 1 of E4M3.
    double d = 0;
    float f = 0;
    int64_t integer = 0;
    RANK_EXPECT(absl::IsInvalidArgument(
        c.comm->ReduceScatter(&code, {&d, DType::kFp64}, 1, Fp8Format::kE4M3, 1)));
    RANK_EXPECT(absl::IsInvalidArgument(
        c.comm->ReduceScatter(&code, {&code, DType::kBf16}, 1, Fp8Format::kE5M2, 1)));
    RANK_EXPECT(
        absl::IsInvalidArgument(c.comm->AllReduce(&integer, 1, DType::kInt64, ReduceOp::kSum, 1)));
    RANK_EXPECT(
        absl::IsInvalidArgument(c.comm->AllReduce(&f, 1, DType::kFp32, ReduceOp::kMax, 0.5)));
    RETURN_IF_ERROR(c.comm->AllReduce(&code, 1, Fp8Format::kE4M3, ReduceOp::kMax, 1));
    RANK_EXPECT(code == 0x38);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace tessera
