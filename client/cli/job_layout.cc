#include "client/cli/job_layout.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/json_text.h"
#include "client/cli/text_table.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string WithoutPrefix(const std::string& name, absl::string_view prefix) {
  return name.empty() ? "UNKNOWN" : std::string(absl::StripPrefix(name, prefix));
}

// "0", or "0-2": the shards in which it is.
std::string ShardsOf(const v1::PlacedParameter& parameter, int64_t shard_elements) {
  if (shard_elements <= 0 || parameter.num_elements() <= 0) return "-";
  const int64_t first = parameter.offset_elements() / shard_elements;
  const int64_t last =
      (parameter.offset_elements() + parameter.num_elements() - 1) / shard_elements;
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

}  // namespace

std::string JobLayoutText(const v1::JobLayout& layout) {
  std::string text = absl::StrCat("job ", Printable(layout.job_id()), ": ", layout.world_size(),
                                  layout.world_size() == 1 ? " rank" : " ranks",
                                  "; rank r has shard r mod the number of shards\n");
  for (const v1::UnitLayout& unit : layout.units()) {
    absl::StrAppend(&text, "unit ", Printable(unit.name()), ": ",
                    WithoutPrefix(v1::DType_Name(unit.dtype()), "DTYPE_"), ", ",
                    WithoutPrefix(v1::Strategy_Name(unit.strategy()), "STRATEGY_"), ", ",
                    unit.size_elements(), " elements, ", unit.num_shards(),
                    unit.num_shards() == 1 ? " shard" : " shards", " of ", unit.shard_elements(),
                    "\n");
    TextTable table({"parameter", "shape", "offset", "elements", "shards"});
    for (const v1::PlacedParameter& parameter : unit.parameters()) {
      table.AddRow({Printable(parameter.name()),
                    absl::StrCat("[", absl::StrJoin(parameter.shape(), ", "), "]"),
                    absl::StrCat(parameter.offset_elements()),
                    absl::StrCat(parameter.num_elements()),
                    ShardsOf(parameter, unit.shard_elements())});
    }
    const std::map<std::string, std::string> shared(unit.shared_parameters().begin(),
                                                    unit.shared_parameters().end());
    absl::StrAppend(&text, table.Render("  "));
    for (const auto& [name, first] : shared)
      absl::StrAppend(&text, "  ", Printable(name), " is ", Printable(first), "\n");
  }
  return text;
}

std::string JobLayoutJson(const v1::JobLayout& layout) {
  Json units = Json::array();
  for (const v1::UnitLayout& unit : layout.units()) {
    Json parameters = Json::array(), shared = Json::object();
    for (const v1::PlacedParameter& parameter : unit.parameters()) {
      parameters.push_back({{"name", parameter.name()},
                            {"shape", parameter.shape()},
                            {"offset_elements", parameter.offset_elements()},
                            {"num_elements", parameter.num_elements()},
                            {"requires_grad", parameter.requires_grad()}});
    }
    for (const auto& [name, first] : unit.shared_parameters()) shared[name] = first;
    units.push_back({{"name", unit.name()},
                     {"dtype", WithoutPrefix(v1::DType_Name(unit.dtype()), "DTYPE_")},
                     {"strategy", WithoutPrefix(v1::Strategy_Name(unit.strategy()), "STRATEGY_")},
                     {"size_elements", unit.size_elements()},
                     {"shard_elements", unit.shard_elements()},
                     {"num_shards", unit.num_shards()},
                     {"parameters", std::move(parameters)},
                     {"shared_parameters", std::move(shared)}});
  }
  const Json json = {
      {"job_id", layout.job_id()},
      {"world_size", layout.world_size()},
      // As text: many readers of JSON round numbers above 2^53.
      {"layout_digest", absl::StrCat(absl::Hex(layout.layout_digest(), absl::kZeroPad16))},
      {"units", std::move(units)}};
  return AsciiJsonText(json);
}

}  // namespace tessera::cli
