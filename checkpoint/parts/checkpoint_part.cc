#include "checkpoint/parts/checkpoint_part.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/strict_json.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSlices[] = "tessera.slices";
constexpr char kWhole[] = "tessera.whole";
constexpr absl::string_view kModelPrefix = "model/";
constexpr absl::string_view kOptimizerPrefix = "optimizer/";

absl::Status Invalid(absl::string_view where, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("part: '", absl::Utf8SafeCEscape(where), "' ", why));
}

template <typename AnyJson>
bool ReadShape(const AnyJson& json, std::vector<int64_t>* shape) {
  if (!json.is_array()) return false;
  for (const auto& dim : json) {
    // A float or a negative number would be cast silently.
    if (!dim.is_number_unsigned() || dim.template get<uint64_t>() > INT64_MAX) return false;
    shape->push_back(dim.template get<int64_t>());
  }
  return true;
}

Json EncodeWhole(const WholeFile& whole) {
  Json tensors = Json::array();
  for (const auto& [name, info] : whole.tensors)
    tensors.push_back(
        {{"name", name}, {"dtype", std::string(Name(info.dtype))}, {"shape", info.shape}});
  return {{"metadata", whole.metadata}, {"tensors", std::move(tensors)}};
}

absl::StatusOr<NamedTensorInfo> DecodeInfo(const nlohmann::json& json) {
  NamedTensorInfo tensor;
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string())
    return Invalid(kWhole, "has a tensor without a name");
  tensor.name = json["name"].get<std::string>();
  const auto dtype = json.find("dtype"), shape = json.find("shape");
  if (dtype == json.end() || !dtype->is_string() || shape == json.end() ||
      !ReadShape(*shape, &tensor.info.shape))
    return Invalid(tensor.name, "has no dtype and shape");
  const std::optional<StoredDType> known = ParseStoredDType(dtype->get_ref<const std::string&>());
  if (!known.has_value()) return Invalid(tensor.name, "has an unknown dtype");
  tensor.info.dtype = *known;
  return tensor;
}

absl::StatusOr<WholeFile> DecodeWhole(const nlohmann::json& json, const char* member) {
  WholeFile whole;
  const auto file = json.find(member);
  if (file == json.end() || !file->is_object() || !file->contains("tensors") ||
      !(*file)["tensors"].is_array() || !file->contains("metadata") ||
      !(*file)["metadata"].is_object())
    return Invalid(kWhole, absl::StrCat("has no such ", member));
  for (const auto& [key, value] : (*file)["metadata"].items()) {
    if (!value.is_string()) return Invalid(kWhole, "has metadata that is not a string");
    whole.metadata[key] = value.get<std::string>();
  }
  for (const nlohmann::json& entry : (*file)["tensors"]) {
    ASSIGN_OR_RETURN(NamedTensorInfo tensor, DecodeInfo(entry));
    whole.tensors.push_back(std::move(tensor));
  }
  return whole;
}

absl::StatusOr<nlohmann::json> ParseMember(const SafetensorsHeader& shard, const char* member) {
  const auto text = shard.metadata.find(member);
  if (text == shard.metadata.end()) return Invalid(member, "is missing");
  absl::StatusOr<nlohmann::json> json = ParseStrictJsonObject(text->second);
  if (!json.ok()) return Annotate(json.status(), absl::StrCat("part: '", member, "'"));
  return json;
}

absl::StatusOr<PartSlice> DecodeSlice(const std::string& name, const StoredTensor& stored,
                                      const nlohmann::json& json) {
  PartSlice slice;
  absl::string_view tensor = name;
  if (absl::ConsumePrefix(&tensor, kOptimizerPrefix)) {
    slice.file = PartFile::kOptimizer;
  } else if (!absl::ConsumePrefix(&tensor, kModelPrefix)) {
    return Invalid(name, "belongs neither to the model nor to the optimizer");
  }
  slice.tensor = std::string(tensor);
  slice.whole.dtype = stored.dtype;
  // A slice is stored flat. The shape is that of the whole tensor, which the file does not have.
  const auto begin = json.find("begin"), shape = json.find("shape");
  if (begin == json.end() || !begin->is_number_unsigned() ||
      begin->get<uint64_t>() > uint64_t{INT64_MAX} || shape == json.end() ||
      !ReadShape(*shape, &slice.whole.shape) || stored.shape.size() != 1)
    return Invalid(name, "is not a slice with a beginning and a shape");
  slice.begin_elements = begin->get<int64_t>();
  slice.count = stored.shape[0];
  const absl::StatusOr<int64_t> numel = NumelOf(slice.whole);
  // Written so that no sum can overflow.
  if (!numel.ok() || slice.begin_elements > *numel || slice.count > *numel - slice.begin_elements) {
    return Invalid(name, absl::StrCat("has elements [", slice.begin_elements, ", +", slice.count,
                                      "), which are not in the tensor"));
  }
  // Types below a byte: a slice must begin and end with whole bytes.
  const std::optional<int64_t> begin_bytes = SizeBytes(slice.whole.dtype, slice.begin_elements);
  if (!begin_bytes.has_value() || !SizeBytes(slice.whole.dtype, *numel).has_value())
    return Invalid(name, "begins or ends within a byte");
  return slice;
}

}  // namespace

std::string PartFolderName(int rank) { return absl::StrFormat("rank-%05d", rank); }

std::string NameOf(const PartSlice& slice) {
  return absl::StrCat(slice.file == PartFile::kModel ? kModelPrefix : kOptimizerPrefix,
                      slice.tensor);
}

absl::StatusOr<SafetensorsHeader> PlacePart(const PartContents& contents) {
  std::vector<NamedTensorInfo> tensors;
  Json slices = Json::object();
  for (const auto& [name, slice] : contents.slices) {
    tensors.push_back({name, {slice.whole.dtype, {slice.count}}});
    slices[name] = {{"begin", slice.begin_elements}, {"shape", slice.whole.shape}};
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {kSlices, slices.dump()}};
  if (contents.whole.has_value()) {
    const Json whole = {{"model", EncodeWhole(contents.whole->first)},
                        {"optimizer", EncodeWhole(contents.whole->second)}};
    // Replaced, not thrown: a name may hold bytes that are not UTF-8.
    metadata[kWhole] = whole.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return PlaceInfos(tensors, metadata);
}

absl::StatusOr<PartContents> DecodePart(const SafetensorsHeader& shard) {
  PartContents contents;
  ASSIGN_OR_RETURN(const nlohmann::json slices, ParseMember(shard, kSlices));
  for (const auto& [name, json] : slices.items()) {
    const auto stored = shard.tensors.find(name);
    if (stored == shard.tensors.end()) return Invalid(name, "has a placement, but no data");
    if (!json.is_object()) return Invalid(name, "has no placement");
    ASSIGN_OR_RETURN(contents.slices[name], DecodeSlice(name, stored->second, json));
  }
  // Both ways, so that nothing is in the file that nothing places.
  for (const auto& [name, stored] : shard.tensors) {
    if (contents.slices.count(name) == 0) return Invalid(name, "has no placement");
  }
  if (shard.metadata.count(kWhole) == 0) return contents;
  ASSIGN_OR_RETURN(const nlohmann::json whole, ParseMember(shard, kWhole));
  ASSIGN_OR_RETURN(WholeFile model, DecodeWhole(whole, "model"));
  ASSIGN_OR_RETURN(WholeFile optimizer, DecodeWhole(whole, "optimizer"));
  contents.whole.emplace(std::move(model), std::move(optimizer));
  return contents;
}

}  // namespace tessera
