#include "checkpoint/safetensors/safetensors_header.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/strict_json.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Whether `a` stands before `b` in the reference writer's order.
bool WrittenBefore(StoredDType dtype_a, const std::string& name_a, StoredDType dtype_b,
                   const std::string& name_b) {
  if (dtype_a != dtype_b) return static_cast<int>(dtype_a) > static_cast<int>(dtype_b);
  return name_a < name_b;
}

absl::Status InvalidTensor(const std::string& name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors: tensor '", name, "': ", why));
}

// An array of whole numbers, none below 0.
bool ReadNumbers(const Json& array, std::vector<int64_t>* numbers) {
  for (const Json& number : array) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > INT64_MAX) return false;
    numbers->push_back(number.get<int64_t>());
  }
  return true;
}

absl::StatusOr<StoredTensor> DecodeTensor(const std::string& name, const Json& entry) {
  StoredTensor tensor;
  tensor.name = name;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    return InvalidTensor(name, "no dtype, shape or data_offsets");
  }
  const std::string& dtype_name = entry["dtype"].get_ref<const std::string&>();
  const std::optional<StoredDType> dtype = ParseStoredDType(dtype_name);
  if (!dtype.has_value())
    return InvalidTensor(name, absl::StrCat("unknown dtype '", dtype_name, "'"));
  tensor.dtype = *dtype;
  TensorSpec spec;
  spec.name = name;
  if (!ReadNumbers(entry["shape"], &spec.shape)) return InvalidTensor(name, "bad shape");
  std::vector<int64_t> offsets_bytes;
  if (!ReadNumbers(entry["data_offsets"], &offsets_bytes))
    return InvalidTensor(name, "bad data_offsets");
  tensor.begin_bytes = offsets_bytes[0];
  tensor.end_bytes = offsets_bytes[1];
  // Before sizes are compared: the product of the shape may overflow.
  const absl::StatusOr<int64_t> numel = Numel(spec);
  if (!numel.ok()) return InvalidTensor(name, "the shape overflows");
  const std::optional<int64_t> size_bytes = SizeBytes(*dtype, *numel);
  if (!size_bytes.has_value())
    return InvalidTensor(name, "the shape overflows, or ends within a byte");
  if (tensor.end_bytes < tensor.begin_bytes ||
      tensor.end_bytes - tensor.begin_bytes != *size_bytes) {
    return InvalidTensor(name, absl::StrCat("data_offsets do not hold ", *size_bytes, " bytes"));
  }
  tensor.shape = std::move(spec.shape);
  return tensor;
}

absl::Status CheckCoverage(const SafetensorsHeader& header) {
  std::vector<const StoredTensor*> sorted;
  for (const auto& [name, tensor] : header.tensors) sorted.push_back(&tensor);
  std::stable_sort(sorted.begin(), sorted.end(), [](const StoredTensor* a, const StoredTensor* b) {
    // By the end too: an empty tensor begins where the next one does.
    return std::make_pair(a->begin_bytes, a->end_bytes) <
           std::make_pair(b->begin_bytes, b->end_bytes);
  });
  int64_t at = 0;
  for (const StoredTensor* tensor : sorted) {
    // Tensors adjoin and end with the file. Hidden bytes are refused, as the reference does.
    if (tensor->begin_bytes != at)
      return InvalidTensor(tensor->name, "a hole or an overlap before it");
    at = tensor->end_bytes;
  }
  if (header.file_bytes - header.data_offset_bytes != at) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: the file has ", header.file_bytes,
                                                   " bytes, its header says ",
                                                   header.data_offset_bytes + at));
  }
  return absl::OkStatus();
}

absl::Status DecodeMetadata(const Json& entry, std::map<std::string, std::string>* metadata) {
  if (!entry.is_object())
    return absl::InvalidArgumentError("safetensors: __metadata__ is not an object");
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string())
      return absl::InvalidArgumentError("safetensors: __metadata__ holds a non-string");
    (*metadata)[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

std::string HeaderJson(const SafetensorsHeader& header) {
  std::vector<const StoredTensor*> in_file_order;
  for (const auto& [name, tensor] : header.tensors) in_file_order.push_back(&tensor);
  std::stable_sort(in_file_order.begin(), in_file_order.end(), [](const auto* a, const auto* b) {
    return WrittenBefore(a->dtype, a->name, b->dtype, b->name);
  });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  // Names differ, so each entry is put at the end without looking for another one of its name.
  nlohmann::ordered_json::object_t::Container& entries =
      json.get_ref<nlohmann::ordered_json::object_t&>();
  for (const StoredTensor* tensor : in_file_order) {
    nlohmann::ordered_json entry;
    entry["dtype"] = std::string(Name(tensor->dtype));
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {tensor->begin_bytes, tensor->end_bytes};
    entries.emplace_back(tensor->name, std::move(entry));
  }
  std::string text = json.dump();
  // Spaces up to a multiple of 8, so that data is aligned.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

NamedTensorInfo InfoOf(const TensorSpec& spec) {
  return {spec.name, {StoredAs(spec.dtype), spec.shape}};
}

absl::StatusOr<SafetensorsHeader> PlaceInfos(const std::vector<NamedTensorInfo>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  std::vector<const NamedTensorInfo*> order;
  for (const NamedTensorInfo& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return WrittenBefore(a->info.dtype, a->name, b->info.dtype, b->name);
  });
  int64_t at = 0;
  for (const NamedTensorInfo* placed : order) {
    const auto& [name, info] = *placed;
    if (name.empty() || name == "__metadata__") return InvalidTensor(name, "not a usable name");
    ASSIGN_OR_RETURN(const int64_t numel, NumelOf(info));
    StoredTensor tensor = {name, info.dtype, info.shape, at, 0};
    const std::optional<int64_t> size_bytes = SizeBytes(info.dtype, numel);
    if (!size_bytes.has_value() || __builtin_add_overflow(at, *size_bytes, &at))
      return InvalidTensor(name, "the file's size overflows, or it ends within a byte");
    tensor.end_bytes = at;
    if (!header.tensors.emplace(name, std::move(tensor)).second)
      return InvalidTensor(name, "the name is there twice");
  }
  // The header's length depends on the offsets in it, which count from its end.
  header.data_offset_bytes = 8 + static_cast<int64_t>(HeaderJson(header).size());
  header.file_bytes = header.data_offset_bytes + at;
  return header;
}

absl::StatusOr<SafetensorsHeader> PlaceTensors(const std::vector<TensorSpec>& tensors,
                                               const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensorInfo> infos;
  for (const TensorSpec& spec : tensors) infos.push_back(InfoOf(spec));
  return PlaceInfos(infos, metadata);
}

std::string EncodeHeader(const SafetensorsHeader& header) {
  const std::string json = HeaderJson(header);
  std::string bytes(8, '\0');
  const uint64_t size = json.size();
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>((size >> (8 * i)) & 0xff);
  return bytes + json;
}

TensorTable TableOf(const SafetensorsHeader& header) {
  TensorTable table;
  for (const auto& [name, stored] : header.tensors)
    table.emplace_hint(table.end(), name, TensorInfo{stored.dtype, stored.shape});
  return table;
}

absl::StatusOr<SafetensorsHeader> DecodeHeader(absl::string_view prefix, int64_t file_bytes) {
  uint64_t size = 0;
  if (prefix.size() < 8) return absl::InvalidArgumentError("safetensors: shorter than 8 bytes");
  for (int i = 0; i < 8; ++i)
    size |= static_cast<uint64_t>(static_cast<uint8_t>(prefix[i])) << (8 * i);
  // Against the text that is there, and not the file: the prefix may be cut.
  if (size > kMaxHeaderBytes || size > prefix.size() - 8) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: a header of ", size, " bytes"));
  }
  const absl::string_view text = prefix.substr(8, size);
  // The parser would pass over spaces in front of it, which the format forbids.
  if (text.empty() || text[0] != '{')
    return absl::InvalidArgumentError("safetensors: the header is not a JSON object");
  const absl::StatusOr<Json> json = ParseStrictJsonObject(text);
  if (!json.ok()) return Annotate(json.status(), "safetensors: the header");
  SafetensorsHeader header;
  header.data_offset_bytes = 8 + static_cast<int64_t>(size);
  header.file_bytes = file_bytes;
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(DecodeMetadata(entry, &header.metadata));
    } else {
      ASSIGN_OR_RETURN(header.tensors[name], DecodeTensor(name, entry));
    }
  }
  RETURN_IF_ERROR(CheckCoverage(header));
  return header;
}

}  // namespace tessera
