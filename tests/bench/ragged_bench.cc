// G11: odd world sizes and ragged shapes, per byte against the even case.
//
//   even     one parameter whose size every world size here divides
//   ragged   norms of one element and parameters of prime sizes, as many bytes in all, laid out as
//            a unit is
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "layout/model_layout.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/limits.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kEven, kRagged, kStream };

constexpr int64_t kEvenMultiple = 3 * 5 * 7 * 8 * 32;  // Elements; each slice is whole cache lines.
constexpr int64_t kPrimes[] = {1, 10007, 1, 65537, 3, 104729, 1, 7919};

ShardMap EvenShards(int64_t bytes, int size) {
  const int64_t numel = bytes / 4 / kEvenMultiple * kEvenMultiple;
  return ShardMap::Create(FlatLayout::Create({"even", {{"w", {numel}}}}, LayoutOptions()).value(),
                          size)
      .value();
}

ShardMap RaggedShards(int64_t bytes, int size) {
  UnitSpec unit = {"ragged", {}};
  for (int64_t numel = 0; numel < bytes / 4;) {
    const int64_t next = kPrimes[unit.parameters.size() % std::size(kPrimes)];
    unit.parameters.push_back({absl::StrCat("p", unit.parameters.size()), {next}});
    numel += next;
  }
  return ShardMap::Create(FlatLayout::Create(unit, LayoutOptions()).value(), size).value();
}

std::vector<ElementRange> Slices(const ShardMap& shards, int size) {
  std::vector<ElementRange> slices;
  for (int rank = 0; rank < size; ++rank) slices.push_back(shards.RangeOf(Rank(rank)));
  return slices;
}

void Measure(TeamMember* member, const ShardMap& even, const ShardMap& ragged, int64_t bytes) {
  std::vector<const void*> gradients;
  for (int r = 0; r < member->size(); ++r) gradients.push_back(member->shared() + r * bytes);
  float* own = reinterpret_cast<float*>(member->shared() + member->rank() * bytes);
  for (int64_t i = 0; i < bytes / 4; ++i) own[i] = static_cast<float>(i % 5);
  float* shard = reinterpret_cast<float*>(WarmMemory(bytes));
  const auto reduce = [&](const std::vector<ElementRange>& slices) {
    TESSERA_CHECK(member->comm()
                      ->ReduceScatterMapped(gradients, slices, {{0, slices.back().end}},
                                            DType::kFp32, 1.0f, false, shard, nullptr)
                      .ok());
  };
  const std::vector<ElementRange> even_slices = Slices(even, member->size());
  const std::vector<ElementRange> ragged_slices = Slices(ragged, member->size());
  std::vector<const float*> slices;
  for (const void* gradient : gradients)
    slices.push_back(static_cast<const float*>(gradient) + even_slices[member->rank()].begin);
  while (member->NextRound()) {
    member->Time(kEven, 3, [&] { reduce(even_slices); });
    member->Time(kRagged, 3, [&] { reduce(ragged_slices); });
    member->Time(kStream, 3, [&] {
      ReadManyWriteOne(slices.data(), member->size(), even.shard_numel(), shard);
    });
  }
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchRagged(int size, int rounds, int64_t bytes) {
  const ShardMap even = EvenShards(bytes, size), ragged = RaggedShards(bytes, size);
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  const int64_t room = 4 * std::max(even.padded_numel(), ragged.padded_numel());
  options.shared_bytes = size * room;
  ASSIGN_OR_RETURN(const TeamResult result, RunTeam(options, [&](TeamMember* member) {
                     Measure(member, even, ragged, room);
                   }));
  const auto& s = result.series;
  const double bytes_ratio =
      static_cast<double>(ragged.padded_numel()) / static_cast<double>(even.padded_numel());
  std::vector<Row> rows;
  const auto ratio = [&](const char* what, Quartiles value) {
    rows.push_back(
        Row{"G11", what, size, value, "ratio", Better::kHigher, 0.95, 0.85, result.loaded_rounds});
  };
  ratio("ragged unit's reduce-scatter rate / even one's",
        RatioOf(s[kEven], s[kRagged], bytes_ratio));
  ratio("reduce-scatter rate of this world size / N-read-1-write stream rate",
        RatioOf(s[kStream], s[kEven]));
  return rows;
}

}  // namespace bench
}  // namespace tessera
