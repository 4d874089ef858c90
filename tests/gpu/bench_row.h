// What the benchmark of a GPU found, as rows, and the same as JSON. Pure; thread-safe.
#ifndef TESSERA_TESTS_GPU_BENCH_ROW_H_
#define TESSERA_TESTS_GPU_BENCH_ROW_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tests/bench/report.h"

namespace tessera {
namespace gpu_check {

struct BenchRow {
  std::string name;
  std::string unit;  // "GB/s": 1e9 bytes a second.  "us"  "": a count
  bench::Quartiles value;
  std::string ratio_to;    // The row that `ratio` is to; empty: there is none.
  bench::Quartiles ratio;  // Of the two in the same round.
  double aim = 0;          // The least that the ratio should be; 0: none.
  double gate = 0;         // The least that is promised, where the aim is higher; 0: none.
  // The most that the value should be, where it has a bound of its own.
  std::optional<double> limit = std::nullopt;
  std::string error;   // Why it was not measured; then all but the name is empty.
  std::string absent;  // The same, where the machine lacks what it is about; no failure.

  bool measured() const { return error.empty() && absent.empty(); }
  bool misses_aim() const { return measured() && aim > 0 && ratio.median < aim; }
  bool misses_gate() const { return measured() && gate > 0 && ratio.median < gate; }
  bool misses_limit() const { return measured() && limit.has_value() && value.median > *limit; }
};

// Of what took these times, round by round, in us; ...
BenchRow RowOfSeconds(const std::string& name, std::vector<double> seconds);
// ... and how much faster it was than `plain`, in the same rounds.
BenchRow RowOfSeconds(const std::string& name, const std::vector<double>& seconds,
                      const std::string& plain, const std::vector<double>& plain_seconds,
                      double aim);

nlohmann::ordered_json ToJson(const BenchRow& row);

// {"rows": [...]}, as the benchmark writes it.
std::string RowsToJson(const std::vector<BenchRow>& rows);
// Errors: InvalidArgument  it is not such a document, or has no row
absl::StatusOr<std::vector<BenchRow>> RowsFromJson(const std::string& text);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_BENCH_ROW_H_
