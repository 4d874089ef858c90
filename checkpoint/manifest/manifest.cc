#include "checkpoint/manifest/manifest.h"

#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/strict_json.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kFormat = "tessera checkpoint";
constexpr absl::string_view kPartFormat = "tessera checkpoint part";
constexpr int kVersion = 1;
constexpr char kOwnChecksum[] = "manifest_crc32";

absl::Status Refusal(absl::string_view member) {
  return absl::InvalidArgumentError(
      absl::StrCat("manifest: '", absl::Utf8SafeCEscape(member), "' is missing or no such value"));
}

// One form of the same content: the checksum must not depend on spaces or on the order of members.
std::string Canonical(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<int64_t> IntegerAt(const Json& json, const char* member) {
  const auto it = json.find(member);
  if (it == json.end() || !it->is_number_integer()) return Refusal(member);
  // The library casts larger numbers to negative ones.
  if (it->is_number_unsigned() &&
      it->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    return Refusal(member);
  const int64_t value = it->get<int64_t>();
  return value >= 0 ? absl::StatusOr<int64_t>(value) : Refusal(member);
}

absl::StatusOr<std::string> StringAt(const Json& json, const char* member) {
  const auto it = json.find(member);
  if (it == json.end() || !it->is_string()) return Refusal(member);
  return it->get<std::string>();
}

absl::StatusOr<uint32_t> Crc32At(const Json& json, const char* member) {
  ASSIGN_OR_RETURN(const std::string text, StringAt(json, member));
  return ParseCrc32(text);
}

Json EncodeFile(const ManifestFile& file) {
  Json json;
  json["bytes"] = file.size_bytes;
  json["crc32"] = FormatCrc32(file.crc32);
  if (file.tensors.empty()) return json;
  for (const auto& [name, crc32] : file.tensors) json["tensors"][name] = FormatCrc32(crc32);
  return json;
}

absl::StatusOr<ManifestFile> DecodeFile(const Json& json) {
  ManifestFile file;
  ASSIGN_OR_RETURN(file.size_bytes, IntegerAt(json, "bytes"));
  ASSIGN_OR_RETURN(file.crc32, Crc32At(json, "crc32"));
  const auto tensors = json.find("tensors");
  if (tensors == json.end()) return file;
  if (!tensors->is_object()) return Refusal("tensors");
  for (const auto& [name, crc32] : tensors->items()) {
    if (!crc32.is_string()) return Refusal(name);
    ASSIGN_OR_RETURN(file.tensors[name], ParseCrc32(crc32.get<std::string>()));
  }
  return file;
}

absl::StatusOr<ManifestGroup> DecodeGroup(const Json& json) {
  ManifestGroup group;
  if (!json.is_object()) return Refusal("param_groups");
  for (const auto& [name, value] : json.items()) {
    if (name != "params") {
      if (!value.is_number()) return Refusal(name);
      group.numbers[name] = value.get<double>();
      continue;
    }
    if (!value.is_array()) return Refusal(name);
    for (const Json& parameter : value) {
      if (!parameter.is_string()) return Refusal(name);
      group.parameters.push_back(parameter.get<std::string>());
    }
  }
  return group;
}

absl::Status DecodeOptimizer(const Json& json, Manifest* manifest) {
  const auto optimizer = json.find("optimizer");
  if (optimizer == json.end() || !optimizer->is_object()) return Refusal("optimizer");
  ASSIGN_OR_RETURN(manifest->optimizer, StringAt(*optimizer, "kind"));
  const auto groups = optimizer->find("param_groups");
  if (groups == optimizer->end() || !groups->is_array()) return Refusal("param_groups");
  for (const Json& group : *groups) {
    ASSIGN_OR_RETURN(ManifestGroup decoded, DecodeGroup(group));
    manifest->groups.push_back(std::move(decoded));
  }
  return absl::OkStatus();
}

absl::Status DecodeFiles(const Json& json, Manifest* manifest) {
  const auto files = json.find("files");
  if (files == json.end() || !files->is_object()) return Refusal("files");
  for (const auto& [name, file] : files->items()) {
    // The name is joined to the folder's path.
    const bool leaves = name.find('/') != std::string::npos || name.find('\0') != std::string::npos;
    if (name.empty() || name == "." || name == ".." || leaves || name == kManifestName) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: '", absl::Utf8SafeCEscape(name),
                                                     "' is not a file of the folder"));
    }
    if (!file.is_object()) return Refusal(name);
    absl::StatusOr<ManifestFile> decoded = DecodeFile(file);
    if (!decoded.ok()) return Annotate(decoded.status(), absl::Utf8SafeCEscape(name));
    manifest->files[name] = *std::move(decoded);
  }
  return absl::OkStatus();
}

// By value: its own checksum is taken out before the sum.
absl::Status CheckOwnChecksum(Json json) {
  ASSIGN_OR_RETURN(const uint32_t expected, Crc32At(json, kOwnChecksum));
  json.erase(kOwnChecksum);
  if (Crc32(Canonical(json)) == expected) return absl::OkStatus();
  return absl::DataLossError("manifest: its checksum does not fit, it is damaged");
}

absl::Status DecodePart(const Json& json, Manifest* manifest) {
  const auto part = json.find("part");
  if (part == json.end() || !part->is_object()) return Refusal("part");
  ASSIGN_OR_RETURN(const int64_t rank, IntegerAt(*part, "rank"));
  // The rank becomes part of a file's name and an index.
  if (rank >= manifest->world_size) return Refusal("rank");
  manifest->part = ManifestPart{static_cast<int>(rank), ""};
  ASSIGN_OR_RETURN(manifest->part->save_id, StringAt(*part, "save"));
  return absl::OkStatus();
}

absl::StatusOr<Manifest> Decode(absl::string_view text, absl::string_view wanted_format) {
  absl::StatusOr<Json> parsed = ParseStrictJsonObject(text);
  if (!parsed.ok()) return Annotate(parsed.status(), "manifest");
  const Json json = *std::move(parsed);
  // Format and version first: another version's checksum may be made otherwise.
  ASSIGN_OR_RETURN(const std::string format, StringAt(json, "format"));
  ASSIGN_OR_RETURN(const int64_t version, IntegerAt(json, "version"));
  if (format != wanted_format) return Refusal("format");
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: version ", version, ", known is ", kVersion));
  }
  RETURN_IF_ERROR(CheckOwnChecksum(json));
  Manifest manifest;
  ASSIGN_OR_RETURN(manifest.job_id, StringAt(json, "job"));
  ASSIGN_OR_RETURN(manifest.step, IntegerAt(json, "step"));
  ASSIGN_OR_RETURN(const int64_t world_size, IntegerAt(json, "world_size"));
  if (world_size < 1 || world_size > std::numeric_limits<int>::max()) return Refusal("world_size");
  manifest.world_size = static_cast<int>(world_size);
  RETURN_IF_ERROR(DecodeOptimizer(json, &manifest));
  RETURN_IF_ERROR(DecodeFiles(json, &manifest));
  if (wanted_format == kPartFormat) RETURN_IF_ERROR(DecodePart(json, &manifest));
  if (json.contains("request")) {
    ASSIGN_OR_RETURN(manifest.request, StringAt(json, "request"));
  }
  return manifest;
}

}  // namespace

std::string TrainerFileName(int rank) { return absl::StrFormat("trainer-%05d.bin", rank); }

bool IsModelFileName(absl::string_view name) {
  if (name == kModelFileName) return true;
  if (!absl::ConsumePrefix(&name, "model-") || !absl::ConsumeSuffix(&name, ".safetensors"))
    return false;
  const std::vector<absl::string_view> numbers = absl::StrSplit(name, "-of-");
  const auto is_number = [](absl::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  return numbers.size() == 2 && is_number(numbers[0]) && is_number(numbers[1]);
}

absl::StatusOr<std::vector<std::string>> ModelFilesOf(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, file] : manifest.files) {
    if (IsModelFileName(name)) names.push_back(name);
  }
  if (names.empty())
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has no ", kModelFileName));
  if (names.size() > 1 && manifest.files.count(std::string(kModelFileName)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: ", names[0], " and ", kModelFileName, " are two models"));
  }
  return names;
}

std::string EncodeManifest(const Manifest& manifest) {
  Json json;
  json["format"] = manifest.part.has_value() ? kPartFormat : kFormat;
  if (manifest.part.has_value())
    json["part"] = {{"rank", manifest.part->rank}, {"save", manifest.part->save_id}};
  if (!manifest.request.empty()) json["request"] = manifest.request;
  json["version"] = kVersion;
  json["job"] = manifest.job_id;
  json["step"] = manifest.step;
  json["world_size"] = manifest.world_size;
  json["optimizer"]["kind"] = manifest.optimizer;
  json["optimizer"]["param_groups"] = Json::array();
  for (const ManifestGroup& group : manifest.groups) {
    Json encoded = group.numbers;
    encoded["params"] = group.parameters;
    json["optimizer"]["param_groups"].push_back(std::move(encoded));
  }
  json["files"] = Json::object();
  for (const auto& [name, file] : manifest.files) json["files"][name] = EncodeFile(file);
  // Last, because it is of all the other members.
  const uint32_t crc32 = Crc32(Canonical(json));
  json[kOwnChecksum] = FormatCrc32(crc32);
  // Replaced, not thrown: names may hold bytes that are not UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view text) { return Decode(text, kFormat); }

absl::StatusOr<Manifest> DecodePartManifest(absl::string_view text) {
  return Decode(text, kPartFormat);
}

}  // namespace tessera
