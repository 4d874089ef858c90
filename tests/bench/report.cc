#include "tests/bench/report.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/kernels.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace bench {
namespace {

std::string Number(double value) {
  if (value == 0) return "0";
  if (value >= 1000) return absl::StrFormat("%.0f", value);
  if (value >= 10) return absl::StrFormat("%.1f", value);
  if (value >= 0.01) return absl::StrFormat("%.3f", value);
  return absl::StrFormat("%.2e", value);
}

std::string Wanted(const Row& row) {
  if (row.better == Better::kNeither) return "";
  const char* sign = row.better == Better::kLower ? "<= " : ">= ";
  return absl::StrCat(sign, Number(row.target), " (", Number(row.gate), ")");
}

}  // namespace

Quartiles QuartilesOf(std::vector<double> values) {
  if (values.empty()) return Quartiles();
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  return Quartiles{values[last / 4], values[last / 2], values[last - last / 4]};
}

Quartiles RatioOf(const std::vector<double>& numerator, const std::vector<double>& denominator,
                  double factor) {
  std::vector<double> ratios;
  for (size_t i = 0; i < numerator.size() && i < denominator.size(); ++i) {
    ratios.push_back(numerator[i] * factor / denominator[i]);
  }
  return QuartilesOf(ratios);
}

std::string Standing(const Row& row) {
  const double value = row.value.median;
  const auto within = [&](double bound) {
    return row.better == Better::kLower ? value <= bound : value >= bound;
  };
  if (row.better == Better::kNeither) return "";
  if (within(row.target)) return "target met";
  return within(row.gate) ? "gate met, target missed" : "GATE MISSED";
}

std::string Table(const std::vector<Row>& rows) {
  std::string out =
      absl::StrFormat("%-4s %-58s %5s %10s %-19s %-6s %-18s %s\n", "goal", "what", "ranks",
                      "median", " [quartiles]", "unit", "target (gate)", "standing");
  for (const Row& row : rows) {
    const std::string range =
        absl::StrCat("[", Number(row.value.low), ", ", Number(row.value.high), "]");
    absl::StrAppendFormat(
        &out, "%-4s %-58s %5d %10s %-19s %-6s %-18s %s%s\n", row.goal, row.what, row.ranks,
        Number(row.value.median), range, row.unit, Wanted(row), Standing(row),
        row.loaded_rounds > 0 ? absl::StrCat(" (", row.loaded_rounds, " rounds under foreign load)")
                              : "");
  }
  return out;
}

std::string Json(const std::vector<Row>& rows) {
  nlohmann::json document;
  document["cores"] = sysconf(_SC_NPROCESSORS_ONLN);
  document["simd"] = host::SimdTargetName();
  document["rows"] = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json entry = {{"goal", row.goal},
                            {"what", row.what},
                            {"ranks", row.ranks},
                            {"median", row.value.median},
                            {"quartiles", {row.value.low, row.value.high}},
                            {"unit", row.unit},
                            {"loaded_rounds", row.loaded_rounds}};
    if (row.better != Better::kNeither) {
      entry["better"] = row.better == Better::kLower ? "lower" : "higher";
      entry["target"] = row.target;
      entry["gate"] = row.gate;
      entry["standing"] = Standing(row);
    }
    document["rows"].push_back(entry);
  }
  return document.dump(2);
}

}  // namespace bench
}  // namespace tessera
