#include "job/job_json.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_codec.h"
#include "layout/dtype.h"
#include "nlohmann/json.hpp"
#include "proto/types.pb.h"

namespace tessera {
namespace {

using nlohmann::json;

absl::StatusOr<json> ParseObject(absl::string_view what, absl::string_view text) {
  json parsed = json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded())
    return absl::InvalidArgumentError(absl::StrCat("the ", what, " is not valid JSON"));
  if (!parsed.is_object())
    return absl::InvalidArgumentError(absl::StrCat("the ", what, " is not a JSON object"));
  return parsed;
}

json DefaultsOf(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  // Cannot fail for a message that this program has made itself.
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  return json::parse(text);
}

// Values of `given` take the place of the defaults; keys that have no default stay, for protobuf to
// judge.
json Over(json defaults, const json& given) {
  if (given.is_object()) defaults.update(given);
  return given.is_object() ? defaults : given;
}

absl::Status ToMessage(absl::string_view what, const json& from,
                       google::protobuf::Message* message) {
  // Replaces bytes that are not UTF-8: protobuf refuses them with a message of its own.
  const std::string text = from.dump(-1, ' ', false, json::error_handler_t::replace);
  const auto status = google::protobuf::util::JsonStringToMessage(text, message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", what, ": ", std::string(status.message())));
}

void FillInParameterDefaults(json* model) {
  if (!model->contains("units") || !(*model)["units"].is_array()) return;
  for (json& unit : (*model)["units"]) {
    if (!unit.is_object() || !unit.contains("parameters") || !unit["parameters"].is_array())
      continue;
    for (json& parameter : unit["parameters"])
      parameter = Over({{"dtype", "DTYPE_FP32"}, {"requires_grad", true}}, parameter);
  }
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelJson(absl::string_view text) {
  ASSIGN_OR_RETURN(json given, ParseObject("model", text));
  FillInParameterDefaults(&given);
  v1::ModelSpec model;
  RETURN_IF_ERROR(ToMessage("model", given, &model));
  return DecodeModel(model);
}

absl::StatusOr<JobConfig> ParseJobConfigJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const json given, ParseObject("config", text));
  const json defaults = DefaultsOf(EncodeJobConfig(JobConfig()));
  json config = Over(defaults, given);
  if (config["optimizer"].is_object()) {
    json optimizer = Over(defaults["optimizer"], config["optimizer"]);
    if (optimizer["groups"].is_array()) {
      for (json& group : optimizer["groups"])
        group = Over(defaults["optimizer"]["groups"][0], group);
    }
    config["optimizer"] = std::move(optimizer);
  }
  v1::JobConfig message;
  RETURN_IF_ERROR(ToMessage("config", config, &message));
  return DecodeJobConfig(message);
}

std::string LayoutJson(const ModelLayout& layout) {
  json units = json::array();
  for (const UnitLayout& unit : layout.units) {
    json parameters = json::array(), aliases = json::object();
    for (const PlacedParameter& placed : unit.flat.parameters()) {
      parameters.push_back({{"name", placed.spec.name},
                            {"shape", placed.spec.shape},
                            {"offset_elements", placed.offset_elements},
                            {"numel", placed.numel},
                            {"requires_grad", placed.spec.requires_grad}});
    }
    for (const Alias& alias : unit.flat.aliases()) aliases[alias.name] = alias.primary;
    units.push_back({{"name", unit.flat.unit_name()},
                     {"dtype", std::string(Name(unit.full_dtype()))},
                     {"strategy", std::string(Name(unit.strategy))},
                     {"size_elements", unit.shards.padded_numel()},
                     {"shard_elements", unit.shards.shard_numel()},
                     {"num_shards", unit.shards.num_shards()},
                     {"parameters", std::move(parameters)},
                     {"aliases", std::move(aliases)}});
  }
  return json({{"world_size", layout.world_size}, {"units", std::move(units)}})
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace tessera
