#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::pair<DType, const char*> kDTypeNames[] = {
    {DType::kFp32, "F32"}, {DType::kBf16, "BF16"}, {DType::kFp16, "F16"},
    {DType::kFp64, "F64"}, {DType::kInt64, "I64"}, {DType::kInt32, "I32"},
};

// Rank in the reference writer's order of dtypes; larger comes first in the file.
int WriterRank(DType dtype) {
  constexpr DType kAscending[] = {DType::kFp16, DType::kBf16, DType::kInt32,
                                  DType::kFp32, DType::kFp64, DType::kInt64};
  return std::find(std::begin(kAscending), std::end(kAscending), dtype) - std::begin(kAscending);
}

const char* FormatName(DType dtype) {
  for (const auto& [known, name] : kDTypeNames) {
    if (known == dtype) return name;
  }
  return "?";
}

absl::StatusOr<DType> FromFormatName(const std::string& name) {
  for (const auto& [dtype, known] : kDTypeNames) {
    if (name == known) return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", name, "'"));
}

absl::Status InvalidTensor(const std::string& name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors: tensor '", name, "': ", why));
}

// Refuses duplicate keys, which the parser itself would merge silently.
class DuplicateKeyCheck {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys_.back().insert(parsed.get<std::string>()).second) {
      duplicate_ = parsed.get<std::string>();
    }
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string duplicate_;
};

absl::StatusOr<StoredTensor> DecodeTensor(const std::string& name, const Json& entry) {
  StoredTensor tensor;
  tensor.name = name;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    return InvalidTensor(name, "no dtype, shape or data_offsets");
  }
  absl::StatusOr<DType> dtype = FromFormatName(entry["dtype"].get<std::string>());
  if (!dtype.ok()) return InvalidTensor(name, dtype.status().message());
  TensorSpec spec;
  spec.name = name;
  spec.dtype = tensor.dtype = *dtype;
  for (const Json& dim : entry["shape"]) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > INT64_MAX)
      return InvalidTensor(name, "bad shape");
    spec.shape.push_back(dim.get<int64_t>());
  }
  for (const Json& offset : entry["data_offsets"]) {
    if (!offset.is_number_unsigned() || offset.get<uint64_t>() > INT64_MAX) {
      return InvalidTensor(name, "bad data_offsets");
    }
  }
  tensor.begin_bytes = entry["data_offsets"][0].get<int64_t>();
  tensor.end_bytes = entry["data_offsets"][1].get<int64_t>();
  const absl::StatusOr<int64_t> numel = Numel(spec);
  int64_t size_bytes;
  if (!numel.ok() || __builtin_mul_overflow(*numel, SizeBytes(spec.dtype), &size_bytes)) {
    return InvalidTensor(name, "the shape overflows");
  }
  if (tensor.end_bytes < tensor.begin_bytes ||
      tensor.end_bytes - tensor.begin_bytes != size_bytes) {
    return InvalidTensor(name, absl::StrCat("data_offsets do not hold ", size_bytes, " bytes"));
  }
  tensor.shape = std::move(spec.shape);
  return tensor;
}

absl::Status CheckCoverage(const SafetensorsHeader& header) {
  std::vector<const StoredTensor*> sorted;
  for (const auto& [name, tensor] : header.tensors) sorted.push_back(&tensor);
  std::stable_sort(sorted.begin(), sorted.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::make_pair(a->begin_bytes, a->end_bytes) <
           std::make_pair(b->begin_bytes, b->end_bytes);
  });
  int64_t at = 0;
  for (const StoredTensor* tensor : sorted) {
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

std::string HeaderJson(const SafetensorsHeader& header) {
  std::vector<const StoredTensor*> in_file_order;
  for (const auto& [name, tensor] : header.tensors) in_file_order.push_back(&tensor);
  std::stable_sort(in_file_order.begin(), in_file_order.end(), [](const auto* a, const auto* b) {
    if (WriterRank(a->dtype) != WriterRank(b->dtype))
      return WriterRank(a->dtype) > WriterRank(b->dtype);
    return a->name < b->name;
  });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const StoredTensor* tensor : in_file_order) {
    nlohmann::ordered_json entry;
    entry["dtype"] = FormatName(tensor->dtype);
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {tensor->begin_bytes, tensor->end_bytes};
    json[tensor->name] = std::move(entry);
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> PlaceTensors(const std::vector<TensorSpec>& tensors,
                                               const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  std::vector<const TensorSpec*> order;
  for (const TensorSpec& spec : tensors) order.push_back(&spec);
  std::stable_sort(order.begin(), order.end(), [](const TensorSpec* a, const TensorSpec* b) {
    if (WriterRank(a->dtype) != WriterRank(b->dtype))
      return WriterRank(a->dtype) > WriterRank(b->dtype);
    return a->name < b->name;
  });
  int64_t at = 0;
  for (const TensorSpec* spec : order) {
    if (spec->name.empty() || spec->name == "__metadata__")
      return InvalidTensor(spec->name, "not a usable name");
    ASSIGN_OR_RETURN(const int64_t numel, Numel(*spec));
    StoredTensor tensor = {spec->name, spec->dtype, spec->shape, at, 0};
    int64_t size_bytes;
    if (__builtin_mul_overflow(numel, SizeBytes(spec->dtype), &size_bytes) ||
        __builtin_add_overflow(at, size_bytes, &at)) {
      return InvalidTensor(spec->name, "the file's size overflows");
    }
    tensor.end_bytes = at;
    if (!header.tensors.emplace(spec->name, std::move(tensor)).second) {
      return InvalidTensor(spec->name, "the name is there twice");
    }
  }
  header.data_offset_bytes = 8 + static_cast<int64_t>(HeaderJson(header).size());
  header.file_bytes = header.data_offset_bytes + at;
  return header;
}

std::string EncodeHeader(const SafetensorsHeader& header) {
  const std::string json = HeaderJson(header);
  std::string bytes(8, '\0');
  const uint64_t size = json.size();
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>((size >> (8 * i)) & 0xff);
  return bytes + json;
}

absl::StatusOr<SafetensorsHeader> DecodeHeader(absl::string_view prefix, int64_t file_bytes) {
  uint64_t size = 0;
  if (prefix.size() < 8) return absl::InvalidArgumentError("safetensors: shorter than 8 bytes");
  for (int i = 0; i < 8; ++i)
    size |= static_cast<uint64_t>(static_cast<uint8_t>(prefix[i])) << (8 * i);
  if (size > kMaxHeaderBytes || size > prefix.size() - 8) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: a header of ", size, " bytes"));
  }
  const absl::string_view text = prefix.substr(8, size);
  if (text.empty() || text[0] != '{')
    return absl::InvalidArgumentError("safetensors: the header is no JSON object");
  DuplicateKeyCheck check;
  const Json json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t event, Json& parsed) {
        return check(depth, event, parsed);
      },
      /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError("safetensors: the header is no JSON object");
  }
  if (!check.duplicate().empty()) return InvalidTensor(check.duplicate(), "the key is there twice");
  SafetensorsHeader header;
  header.data_offset_bytes = 8 + static_cast<int64_t>(size);
  header.file_bytes = file_bytes;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object())
        return absl::InvalidArgumentError("safetensors: __metadata__ is no object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string())
          return absl::InvalidArgumentError("safetensors: __metadata__ holds a non-string");
        header.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    ASSIGN_OR_RETURN(header.tensors[name], DecodeTensor(name, entry));
  }
  RETURN_IF_ERROR(CheckCoverage(header));
  return header;
}

}  // namespace tessera
