// The results of operations, but for reductions of mapped buffers:
// communicator_conformance_mapped.cc. What happens on failure is in
// communicator_conformance_failures.cc.
#include "worker/comm/communicator_conformance.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "worker/comm/communicator_conformance_values.h"

namespace tessera {

void CommunicatorConformanceTest::SetUp() {
  const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto& exclusions = std::get<0>(GetParam()).exclusions;
  const auto excluded = exclusions.find(name.substr(0, name.find('/')));
  if (excluded != exclusions.end()) GTEST_SKIP() << excluded->second;
  const auto& available = std::get<0>(GetParam()).available;
  const absl::Status status = available ? available() : absl::OkStatus();
  if (!status.ok()) GTEST_SKIP() << status;
}

std::function<int(int)> CommunicatorConformanceTest::DataOf() const {
  const bool same = std::get<0>(GetParam()).ranks_hold_the_same;
  return [same](int rank) { return same ? 0 : rank; };
}

std::vector<int> CommunicatorConformanceTest::Hosts() const {
  const auto& hosts = std::get<0>(GetParam()).hosts;
  return hosts ? hosts(size()) : std::vector<int>{size()};
}

std::vector<absl::Status> CommunicatorConformanceTest::RunRanks(const RankBody& body,
                                                                GroupOptions options) {
  options.size = size();
  return std::get<0>(GetParam()).run(options, body);
}

void CommunicatorConformanceTest::ExpectAllOk(const RankBody& body, GroupOptions options) {
  const std::vector<absl::Status> statuses = RunRanks(body, options);
  ASSERT_EQ(static_cast<size_t>(size()), statuses.size());
  for (size_t r = 0; r < statuses.size(); ++r) EXPECT_OK(statuses[r]) << "rank " << r;
}

namespace {

constexpr int64_t kCounts[] = {0, 1, 7, 127, 4099, 30001};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Element i of everyone's data, added in rank order.
float OrderedSum(const std::vector<std::vector<float>>& by_rank, int64_t i) {
  float sum = by_rank[0][i];
  for (size_t r = 1; r < by_rank.size(); ++r) sum += by_rank[r][i];
  return sum;
}

std::vector<std::vector<float>> EveryonesFloats(int size, const std::function<int(int)>& data_of,
                                                int64_t count) {
  std::vector<std::vector<float>> all;
  for (int r = 0; r < size; ++r) all.push_back(Floats(data_of(r), count));
  return all;
}

TEST_P(CommunicatorConformanceTest, KnowsRankAndSize) {
  const int size = this->size();
  ExpectAllOk([size](const RankContext& c) -> absl::Status {
    RANK_EXPECT(c.comm->size() == size);
    RANK_EXPECT(c.comm->rank() >= 0 && c.comm->rank() < size);
    auto* taken = reinterpret_cast<std::atomic<int>*>(c.shared) + c.comm->rank();
    RANK_EXPECT(taken->fetch_add(1) == 0, "two ranks are ", c.comm->rank());
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, BarrierHoldsEveryoneBack) {
  ExpectAllOk([](const RankContext& c) -> absl::Status {
    auto* entered = reinterpret_cast<std::atomic<int>*>(c.shared);
    for (int round = 1; round <= 200; ++round) {
      entered->fetch_add(1);
      RETURN_IF_ERROR(c.comm->Barrier());
      const int seen = entered->load();
      RANK_EXPECT(seen >= round * c.comm->size(), seen, " in round ", round);
      RANK_EXPECT(seen <= (round + 1) * c.comm->size(), seen, " in round ", round);
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, AllGatherPlacesRanksInOrder) {
  ExpectAllOk([data_of = DataOf()](const RankContext& c) -> absl::Status {
    std::vector<int64_t> sizes(std::begin(kCounts), std::end(kCounts));
    sizes.insert(sizes.end(), {64 << 10, 300'001});
    for (int64_t bytes : sizes) {
      std::vector<uint8_t> expected;
      for (int r = 0; r < c.comm->size(); ++r) {
        const std::vector<uint8_t> part = RandomBytes(data_of(r), bytes);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const std::vector<uint8_t> send = RandomBytes(data_of(c.comm->rank()), bytes);
      std::vector<uint8_t> recv(bytes * c.comm->size());
      RETURN_IF_ERROR(c.comm->AllGather(send.data(), recv.data(), bytes));
      RANK_EXPECT(SameBits(expected, recv), bytes, " bytes");
      std::fill(recv.begin(), recv.end(), 0);
      std::copy(send.begin(), send.end(), recv.begin() + c.comm->rank() * bytes);
      RETURN_IF_ERROR(c.comm->AllGather(recv.data() + c.comm->rank() * bytes, recv.data(), bytes));
      RANK_EXPECT(SameBits(expected, recv), "in place, ", bytes, " bytes");
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, ReduceScatterSumsInRankOrder) {
  ExpectAllOk([data_of = DataOf(),
               library = SumsByLibrary()](const RankContext& c) -> absl::Status {
    const int size = c.comm->size();
    const float scale = library ? 1.0f : 1.0f / size;
    for (int64_t count : kCounts) {
      const auto all = EveryonesFloats(size, data_of, count * size);
      const int64_t begin = c.comm->rank() * count;
      std::vector<float> expected(count);
      for (int64_t i = 0; i < count; ++i) expected[i] = OrderedSum(all, begin + i) * scale;
      std::vector<float> send = all[c.comm->rank()];
      std::vector<float> recv(count);
      RETURN_IF_ERROR(c.comm->ReduceScatter(send.data(), recv.data(), count, DType::kFp32, scale));
      RANK_EXPECT(SameBits(expected, recv), count, " elements");
      RANK_EXPECT(SameBits(send, all[c.comm->rank()]), "the input changed");
      RETURN_IF_ERROR(
          c.comm->ReduceScatter(send.data(), send.data() + begin, count, DType::kFp32, scale));
      recv.assign(send.begin() + begin, send.begin() + begin + count);
      RANK_EXPECT(SameBits(expected, recv), "in place, ", count, " elements");
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, ReduceScatterSumsHalvesInFp32) {
  ExpectAllOk([data_of = DataOf()](const RankContext& c) -> absl::Status {
    const int size = c.comm->size();
    for (int64_t count : kCounts) {
      const DType dtype = count % 2 == 0 ? DType::kBf16 : DType::kFp16;
      auto all = EveryonesFloats(size, data_of, count * size);
      std::vector<uint16_t> send(count * size);
      for (int r = 0; r < size; ++r) {
        std::vector<uint16_t> narrow(count * size);
        host::CastFp32ToHalf(dtype, all[r].data(), narrow.data(), count * size);
        host::CastHalfToFp32(dtype, narrow.data(), all[r].data(), count * size);
        if (r == c.comm->rank()) send = narrow;
      }
      std::vector<float> recv(count);
      RETURN_IF_ERROR(c.comm->ReduceScatter(send.data(), recv.data(), count, dtype, 1.0f));
      for (int64_t i = 0; i < count; ++i) {
        const float expected = OrderedSum(all, c.comm->rank() * count + i);
        RANK_EXPECT(recv[i] == expected, i, " of ", count);
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, ReduceScatterSumsInFp64WhereAskedTo) {
  ExpectAllOk([data_of = DataOf(),
               library = SumsByLibrary()](const RankContext& c) -> absl::Status {
    const int size = c.comm->size();
    const double scale = library ? 1.0 : 0.3;
    for (int64_t count : kCounts) {
      std::vector<std::vector<double>> all;
      for (int r = 0; r < size; ++r) all.push_back(Doubles(data_of(r), count * size));
      const std::vector<double>& send = all[c.comm->rank()];
      std::vector<double> recv(count), of_floats(count);
      RETURN_IF_ERROR(c.comm->ReduceScatter(send.data(), recv.data(), count, DType::kFp64, scale));
      const std::vector<float> floats(send.begin(), send.end());
      RETURN_IF_ERROR(
          c.comm->ReduceScatter(floats.data(), of_floats.data(), count, DType::kFp32, scale));
      for (int64_t i = 0; i < count; ++i) {
        double sum = 0, sum_of_floats = 0;
        for (int r = 0; r < size; ++r) {
          const double value = all[r][c.comm->rank() * count + i];
          sum += value;
          sum_of_floats += static_cast<float>(value);
        }
        RANK_EXPECT(recv[i] == sum * scale, i, " of ", count);
        RANK_EXPECT(of_floats[i] == sum_of_floats * scale, "of floats, ", i, " of ", count);
      }
    }
    return absl::OkStatus();
  });
}

template <typename Real>
absl::Status CheckAllReduceOf(const RankContext& c, const std::function<int(int)>& data_of,
                              DType dtype, ReduceOp op, int64_t count) {
  const auto all = EveryonesFloats(c.comm->size(), data_of, count);
  const std::vector<float>& mine = all[c.comm->rank()];
  std::vector<Real> buffer(mine.begin(), mine.end());
  RETURN_IF_ERROR(c.comm->AllReduce(buffer.data(), count, dtype, op, 1));
  for (int64_t i = 0; i < count; ++i) {
    Real expected = all[0][i];
    for (size_t r = 1; r < all.size(); ++r) {
      const Real next = all[r][i];
      if (op == ReduceOp::kSum) expected += next;
      if (op == ReduceOp::kMax) expected = std::max(expected, next);
      if (op == ReduceOp::kMin) expected = std::min(expected, next);
    }
    RANK_EXPECT(buffer[i] == expected, "element ", i, " of ", count);
  }
  return absl::OkStatus();
}

TEST_P(CommunicatorConformanceTest, AllReduceCombinesInRankOrder) {
  ExpectAllOk([data_of = DataOf()](const RankContext& c) -> absl::Status {
    for (int64_t count : kCounts) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        RETURN_IF_ERROR(CheckAllReduceOf<float>(c, data_of, DType::kFp32, op, count));
        RETURN_IF_ERROR(CheckAllReduceOf<double>(c, data_of, DType::kFp64, op, count));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, NanOnOneRankReachesAll) {
  ExpectAllOk([data_of = DataOf()](const RankContext& c) -> absl::Status {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      float value = data_of(c.comm->rank()) == 0 ? std::nanf("") : 1.0f;
      RETURN_IF_ERROR(c.comm->AllReduce(&value, 1, DType::kFp32, op, 1));
      RANK_EXPECT(std::isnan(value));
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, BroadcastFromEachRoot) {
  ExpectAllOk([data_of = DataOf()](const RankContext& c) -> absl::Status {
    for (int root = 0; root < c.comm->size(); ++root) {
      for (int64_t bytes : {0, 1, 4097, 70001}) {
        std::vector<uint8_t> buffer = RandomBytes(data_of(c.comm->rank()), bytes);
        RETURN_IF_ERROR(c.comm->Broadcast(buffer.data(), bytes, root));
        RANK_EXPECT(SameBits(RandomBytes(data_of(root), bytes), buffer), "root ", root);
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, AllGatherMappedShowsPeersWritesAndCopiesNothing) {
  ExpectAllOk([](const RankContext& c) -> absl::Status {
    auto* shards = reinterpret_cast<int*>(c.shared);
    const int64_t copied_before = c.comm->payload_bytes_copied();
    for (int version = 1; version <= 100; ++version) {
      shards[c.comm->rank()] = version * 100 + c.comm->rank();
      RETURN_IF_ERROR(c.comm->AllGatherMapped(nullptr, 0));
      for (int r = 0; r < c.comm->size(); ++r) {
        RANK_EXPECT(shards[r] == version * 100 + r, "shard ", r, " is ", shards[r]);
      }
      RETURN_IF_ERROR(c.comm->Barrier());  // All have read before the next version is written.
    }
    RANK_EXPECT(c.comm->payload_bytes_copied() == copied_before);
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, PrivateMemoryFormsCountWhatTheyCopy) {
  ExpectAllOk([](const RankContext& c) -> absl::Status {
    const std::vector<uint8_t> send(1000, 1);
    std::vector<uint8_t> recv(1000 * c.comm->size());
    RETURN_IF_ERROR(c.comm->AllGather(send.data(), recv.data(), 1000));
    RANK_EXPECT(c.comm->payload_bytes_copied() >= 1000 * c.comm->size());
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, ImpossibleArgumentsAreRefusedAndHarmless) {
  ExpectAllOk([](const RankContext& c) -> absl::Status {
    constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;
    float f = 0;
    const void* send[] = {&f};
    RANK_EXPECT(absl::IsInvalidArgument(c.comm->AllGather(&f, &f, -1)));
    RANK_EXPECT(absl::IsInvalidArgument(c.comm->AllGather(nullptr, &f, 4)));
    RANK_EXPECT(absl::IsInvalidArgument(c.comm->ReduceScatter(&f, &f, 1, DType::kInt64, 1)));
    double d = 0;
    RANK_EXPECT(absl::IsInvalidArgument(c.comm->ReduceScatter(&d, &f, 1, DType::kFp64, 1)));
    RANK_EXPECT(absl::IsInvalidArgument(c.comm->ReduceScatter(&f, &f, kHuge, DType::kFp32, 1)));
    RANK_EXPECT(
        absl::IsInvalidArgument(c.comm->AllReduce(&f, -1, DType::kFp32, ReduceOp::kSum, 1)));
    RANK_EXPECT(absl::IsInvalidArgument(c.comm->Broadcast(&f, 4, c.comm->size())));
    RANK_EXPECT(absl::IsInvalidArgument(c.comm->ReduceScatterMapped(
        absl::MakeSpan(send, 0), {}, {}, DType::kFp32, 1, false, &f, nullptr)));
    const std::vector<ElementRange> huge(c.comm->size(), {kHuge, 2 * kHuge});
    const std::vector<const void*> sends(c.comm->size(), &f);
    RANK_EXPECT(absl::IsInvalidArgument(
        c.comm->ReduceScatterMapped(sends, huge, {}, DType::kFp32, 1, false, &f, nullptr)));
    const std::vector<ElementRange> slices(c.comm->size(), {0, 1});
    for (const ElementRange& second :
         {ElementRange{-1, 1}, ElementRange{1, 0}, ElementRange{0, 1}}) {
      RANK_EXPECT(absl::IsInvalidArgument(c.comm->ReduceScatterMapped(
          sends, slices, {{0, 1}, second}, DType::kFp32, 1, false, &f, nullptr)));
    }
    return c.comm->Barrier();
  });
}

// Each rank draws the same operations from one seed; halves, phases and sizes mix in all ways.
absl::Status MixedOperations(const RankContext& c, const std::function<int(int)>& data_of,
                             uint32_t seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < 120; ++i) {
    const int64_t count = random() % 5 == 0 ? random() % 30000 : random() % 300;
    const uint32_t kind = random() % 5;
    std::vector<float> mine = Floats(data_of(c.comm->rank()), count);
    if (kind == 0) RETURN_IF_ERROR(c.comm->Barrier());
    if (kind == 1) {
      RETURN_IF_ERROR(CheckAllReduceOf<float>(c, data_of, DType::kFp32, ReduceOp::kSum, count));
    }
    if (kind == 2) {
      std::vector<float> recv(count * c.comm->size());
      RETURN_IF_ERROR(c.comm->AllGather(mine.data(), recv.data(), count * 4));
      for (int r = 0; r < c.comm->size(); ++r) {
        const std::vector<float> part(recv.begin() + r * count, recv.begin() + (r + 1) * count);
        RANK_EXPECT(SameBits(Floats(data_of(r), count), part), "seed ", seed, " operation ", i);
      }
    }
    if (kind == 3) {
      RETURN_IF_ERROR(c.comm->Broadcast(mine.data(), count * 4, i % c.comm->size()));
      RANK_EXPECT(SameBits(Floats(data_of(i % c.comm->size()), count), mine), "seed ", seed);
    }
    if (kind == 4) {
      const auto all = EveryonesFloats(c.comm->size(), data_of, count * c.comm->size());
      std::vector<float> recv(count);
      RETURN_IF_ERROR(c.comm->ReduceScatter(all[c.comm->rank()].data(), recv.data(), count,
                                            DType::kFp32, 1.0f));
      for (int64_t e = 0; e < count; ++e) {
        RANK_EXPECT(recv[e] == OrderedSum(all, c.comm->rank() * count + e), "seed ", seed);
      }
    }
  }
  return absl::OkStatus();
}

TEST_P(CommunicatorConformanceTest, OperationsMixInAnyOrder) {
  ExpectAllOk([data_of = DataOf()](const RankContext& c) {
    return MixedOperations(c, data_of, /*seed=*/31337);
  });
}

}  // namespace
}  // namespace tessera
