// What the benchmarks found: rows of a table, and the same as JSON.
#ifndef TESSERA_TESTS_BENCH_REPORT_H_
#define TESSERA_TESTS_BENCH_REPORT_H_

#include <limits>
#include <string>
#include <vector>

namespace tessera {
namespace bench {

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};

Quartiles QuartilesOf(std::vector<double> values);
// Quartiles of numerator[i] * factor / denominator[i].
Quartiles RatioOf(const std::vector<double>& numerator, const std::vector<double>& denominator,
                  double factor = 1);

enum class Better { kLower, kHigher, kNeither };  // kNeither: a figure without a target.

struct Row {
  std::string goal;  // "G3"; see the performance goals.
  std::string what;
  int ranks = 1;
  Quartiles value;
  std::string unit;  // "ratio", "ms", "GB/s", ...
  Better better = Better::kNeither;
  double target = 0;
  double gate = 0;
  int loaded_rounds = 0;
};

// "target met", "gate met, target missed", "GATE MISSED", or "" without a target.
std::string Standing(const Row& row);

std::string Table(const std::vector<Row>& rows);
std::string Json(const std::vector<Row>& rows);

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_REPORT_H_
