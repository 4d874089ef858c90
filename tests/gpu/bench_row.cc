#include "tests/gpu/bench_row.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace gpu_check {
namespace {

using Json = nlohmann::ordered_json;

Json QuartilesJson(const bench::Quartiles& q) {
  return {{"median", q.median}, {"quartiles", {q.low, q.high}}};
}

bench::Quartiles QuartilesFrom(const Json& json) {
  const Json& quartiles = json.at("quartiles");
  return {quartiles.at(0).get<double>(), json.at("median").get<double>(),
          quartiles.at(1).get<double>()};
}

BenchRow RowFrom(const Json& json) {
  BenchRow row;
  row.name = json.at("name").get<std::string>();
  if (json.contains("error")) {
    row.error = json["error"].get<std::string>();
    return row;
  }
  if (json.contains("absent")) {
    row.absent = json["absent"].get<std::string>();
    return row;
  }
  row.unit = json.at("unit").get<std::string>();
  row.value = QuartilesFrom(json);
  if (json.contains("limit")) row.limit = json["limit"].get<double>();
  if (!json.contains("ratio")) return row;
  row.ratio_to = json["ratio"].at("to").get<std::string>();
  row.ratio = QuartilesFrom(json["ratio"]);
  row.aim = json.value("aim", 0.0);
  row.gate = json.value("gate", 0.0);
  return row;
}

}  // namespace

BenchRow RowOfSeconds(const std::string& name, std::vector<double> seconds) {
  BenchRow row;
  row.name = name;
  row.unit = "us";
  for (double& value : seconds) value *= 1e6;
  row.value = bench::QuartilesOf(seconds);
  return row;
}

BenchRow RowOfSeconds(const std::string& name, const std::vector<double>& seconds,
                      const std::string& plain, const std::vector<double>& plain_seconds,
                      double aim) {
  BenchRow row = RowOfSeconds(name, seconds);
  row.ratio_to = plain;
  row.ratio = bench::RatioOf(plain_seconds, seconds);
  row.aim = aim;
  return row;
}

Json ToJson(const BenchRow& row) {
  Json json = {{"name", row.name}};
  if (!row.measured()) {
    json[row.error.empty() ? "absent" : "error"] = row.error.empty() ? row.absent : row.error;
    return json;
  }
  json["unit"] = row.unit;
  json.update(QuartilesJson(row.value));
  if (row.limit.has_value()) {
    json["limit"] = *row.limit;
    json["limit_met"] = !row.misses_limit();
  }
  if (row.ratio_to.empty()) return json;
  json["ratio"] = {{"to", row.ratio_to}};
  json["ratio"].update(QuartilesJson(row.ratio));
  if (row.aim > 0) {
    json["aim"] = row.aim;
    json["aim_met"] = !row.misses_aim();
  }
  if (row.gate > 0) {
    json["gate"] = row.gate;
    json["gate_met"] = !row.misses_gate();
  }
  return json;
}

std::string RowsToJson(const std::vector<BenchRow>& rows) {
  Json document;
  document["rows"] = Json::array();
  for (const BenchRow& row : rows) document["rows"].push_back(ToJson(row));
  return document.dump(2);
}

absl::StatusOr<std::vector<BenchRow>> RowsFromJson(const std::string& text) {
  std::vector<BenchRow> rows;
  try {
    const Json document = Json::parse(text);
    for (const Json& row : document.at("rows")) rows.push_back(RowFrom(row));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("no rows of a benchmark: ", error.what()));
  }
  if (rows.empty()) return absl::InvalidArgumentError("no rows of a benchmark: there are none");
  return rows;
}

}  // namespace gpu_check
}  // namespace tessera
