#include "base/status_macros.h"
#include "kernels/kernels.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/limits.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kAdam, kAdamPublishing, kTriad };

constexpr double kAdamBytes = 28;  // Reads g p m v, writes p m v.

void Measure(TeamMember* member, int64_t num_parameters) {
  const int64_t count = num_parameters / member->size();
  float* memory[4];
  for (float*& m : memory) m = reinterpret_cast<float*>(WarmMemory(count * sizeof(float)));
  auto* bf16 = reinterpret_cast<uint16_t*>(WarmMemory(count * sizeof(uint16_t)));
  float *g = memory[0], *p = memory[1], *m = memory[2], *v = memory[3];
  for (int64_t i = 0; i < count; ++i) g[i] = 1e-3f * static_cast<float>(i % 7 - 3);
  host::AdamParams params;
  params.weight_decay = 0.01;
  params.decoupled_weight_decay = true;
  params.bias_correction1 = 0.1;
  params.bias_correction2 = 0.001;
  while (member->NextRound()) {
    member->Time(kAdam, 2,
                 [&] { host::AdamStep(params, count, g, p, m, v, p, m, v, nullptr, {}); });
    member->Time(kTriad, 2, [&] { FourReadThreeWrite(g, p, m, v, count); });
    member->Time(kAdamPublishing, 2, [&] {
      host::AdamStep(params, count, g, p, m, v, p, m, v, nullptr, {bf16, DType::kBf16});
    });
  }
}

Row Rate(const char* what, int size, const TeamResult& result, int series, double bytes) {
  std::vector<double> rates;
  for (double seconds : result.series[series]) rates.push_back(bytes / seconds * 1e-9);
  return Row{
      "G6", what, size, QuartilesOf(rates), "GB/s", Better::kNeither, 0, 0, result.loaded_rounds};
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchOptimizer(int size, int rounds, int64_t num_parameters) {
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  ASSIGN_OR_RETURN(const TeamResult result,
                   RunTeam(options, [&](TeamMember* member) { Measure(member, num_parameters); }));
  const double bytes = kAdamBytes * static_cast<double>(num_parameters);
  std::vector<Row> rows;
  rows.push_back(Rate("four-read-three-write loop", size, result, kTriad, bytes));
  rows.push_back(Rate("AdamW", size, result, kAdam, bytes));
  rows.push_back(Row{"G6", "AdamW / four-read-three-write loop", size,
                     RatioOf(result.series[kTriad], result.series[kAdam]), "ratio", Better::kHigher,
                     0.97, 0.90, result.loaded_rounds});
  rows.push_back(Rate("AdamW publishing bf16 (30 bytes a parameter)", size, result, kAdamPublishing,
                      bytes / 28 * 30));
  return rows;
}

}  // namespace bench
}  // namespace tessera
