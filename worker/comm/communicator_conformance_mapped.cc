// The results of reductions of buffers that all ranks of a host can address.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "worker/comm/communicator_conformance.h"
#include "worker/comm/communicator_conformance_values.h"

namespace tessera {
namespace {

// Element i of everyone's data: of each host added in rank order, the hosts in theirs.
template <typename Real>
Real SumOfHosts(const std::vector<std::vector<Real>>& by_rank, const std::vector<int>& hosts,
                int64_t i) {
  Real sum = 0;
  size_t r = 0;
  for (size_t host = 0; host < hosts.size(); ++host) {
    Real of_host = by_rank[r++][i];
    for (int local = 1; local < hosts[host]; ++local) of_host += by_rank[r++][i];
    sum = host == 0 ? of_host : sum + of_host;
  }
  return sum;
}

// Gradients of all ranks are in `shared`; ranks reduce ragged slices, then write the next ones at
// once: a peer that still read them would see it.
template <typename Real>
absl::Status ReduceMappedRounds(const RankContext& c, const std::vector<int>& hosts,
                                int64_t count) {
  const DType dtype = sizeof(Real) == 8 ? DType::kFp64 : DType::kFp32;
  const int size = c.comm->size();
  const int rank = c.comm->rank();
  auto* base = reinterpret_cast<Real*>(c.shared);
  std::vector<const void*> sends;
  std::vector<ElementRange> slices;
  for (int r = 0; r < size; ++r) {
    sends.push_back(base + r * count);
    slices.push_back({count * r / size, count * (r + 1) / size});
  }
  const int64_t begin = slices[rank].begin;
  const int64_t end = slices[rank].end;
  std::vector<Real> recv(end - begin, Real(0.5));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<Real>> all;
    for (int r = 0; r < size; ++r) {
      const std::vector<double> values = Doubles(round * 100 + r, count);
      all.emplace_back(values.begin(), values.end());
    }
    std::copy(all[rank].begin(), all[rank].end(), base + rank * count);
    const bool accumulate = round % 2 == 1;
    const std::vector<Real> before = recv;
    host::GradientStats stats;
    RETURN_IF_ERROR(c.comm->ReduceScatterMapped(sends, slices, {{0, count}}, dtype, 0.5, accumulate,
                                                recv.data(), &stats));
    for (int64_t i = begin; i < end; ++i) {
      Real expected = SumOfHosts(all, hosts, i) * Real(0.5);
      if (accumulate) expected = before[i - begin] + expected;
      RANK_EXPECT(recv[i - begin] == expected, "round ", round, " element ", i);
    }
    const host::GradientStats again = host::MeasureGradient(recv.data(), end - begin);
    RANK_EXPECT(stats.sum_of_squares == again.sum_of_squares && !stats.non_finite);
  }
  return absl::OkStatus();
}

TEST_P(CommunicatorConformanceTest, ReduceScatterMappedReducesOwnSliceOfAll) {
  constexpr int64_t kCount = 5003;
  GroupOptions options;
  options.shared_bytes = 8 * kCount * sizeof(double);
  ExpectAllOk(
      [hosts = Hosts()](const RankContext& c) -> absl::Status {
        RETURN_IF_ERROR(ReduceMappedRounds<float>(c, hosts, kCount));
        RETURN_IF_ERROR(c.comm->Barrier());  // A rank's doubles overlap its peer's floats.
        return ReduceMappedRounds<double>(c, hosts, kCount);
      },
      options);
}

// What is not in a part is not a number on any rank.
absl::Status ReduceMappedParts(const RankContext& c, const std::vector<int>& hosts, int64_t count) {
  const int size = c.comm->size(), rank = c.comm->rank();
  const std::vector<ElementRange> parts = {{3, 4}, {10, 17}, {17, 17}, {100, 2600}, {4990, count}};
  const auto is_reduced = [&](int64_t i) {
    return std::any_of(parts.begin(), parts.end(),
                       [i](const ElementRange& p) { return i >= p.begin && i < p.end; });
  };
  auto* base = reinterpret_cast<float*>(c.shared);
  std::vector<const void*> sends;
  std::vector<ElementRange> slices;
  std::vector<std::vector<float>> all;
  for (int r = 0; r < size; ++r) {
    sends.push_back(base + r * count);
    slices.push_back({count * r / size, count * (r + 1) / size});
    all.push_back(Floats(r, count));
    for (int64_t i = 0; i < count; ++i)
      if (!is_reduced(i)) all[r][i] = std::numeric_limits<float>::quiet_NaN();
  }
  std::copy(all[rank].begin(), all[rank].end(), base + rank * count);
  const ElementRange own = slices[rank];
  std::vector<float> recv(own.size(), 0.25f);
  host::GradientStats stats;
  const int64_t copied_before = c.comm->payload_bytes_copied();
  RETURN_IF_ERROR(c.comm->ReduceScatterMapped(sends, slices, parts, DType::kFp32, 0.5f, false,
                                              recv.data(), &stats));
  double squares = 0, own_count = 0;
  for (int64_t i = own.begin; i < own.end; ++i) {
    const float expected = is_reduced(i) ? SumOfHosts(all, hosts, i) * 0.5f : 0.25f;
    RANK_EXPECT(recv[i - own.begin] == expected, "element ", i);
    if (!is_reduced(i)) continue;
    squares += static_cast<double>(expected) * expected;
    ++own_count;
  }
  RANK_EXPECT(!stats.non_finite && std::fabs(stats.sum_of_squares - squares) <= 1e-12 * squares);
  // Nothing is copied within a host, and between hosts a sum of each other one.
  RANK_EXPECT(c.comm->payload_bytes_copied() - copied_before ==
              static_cast<int64_t>((hosts.size() - 1) * own_count * sizeof(float)));
  return c.comm->Barrier();
}

TEST_P(CommunicatorConformanceTest, ReduceScatterMappedReadsMovesAndWritesOnlyTheParts) {
  constexpr int64_t kCount = 5003;
  GroupOptions options;
  options.shared_bytes = 8 * kCount * sizeof(float);
  ExpectAllOk(
      [hosts = Hosts()](const RankContext& c) { return ReduceMappedParts(c, hosts, kCount); },
      options);
}

}  // namespace
}  // namespace tessera
