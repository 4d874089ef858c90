#include "client/cli/model_spec_json.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

// Finds where a document stops being JSON, which the parser tells only to a SAX handler.
class ErrorFinder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    position_ = position;
    return false;
  }

  std::size_t position() const { return position_; }

 private:
  std::size_t position_ = 0;
};

absl::Status InvalidAt(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, 200)), "\"");
}

absl::Status CheckKeys(const Json& object, std::initializer_list<absl::string_view> known,
                       absl::string_view where) {
  for (const auto& item : object.items()) {
    bool is_known = false;
    for (absl::string_view key : known) is_known |= item.key() == key;
    if (!is_known) return InvalidAt(where, absl::StrCat("unknown key ", Quoted(item.key())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParseString(const Json& object, const char* key,
                                        absl::string_view where) {
  const auto it = object.find(key);
  if (it == object.end()) return InvalidAt(where, absl::StrCat("\"", key, "\" is missing"));
  if (!it->is_string()) return InvalidAt(where, absl::StrCat("\"", key, "\" is not a string"));
  return it->get<std::string>();
}

absl::StatusOr<std::vector<int64_t>> ParseShape(const Json& shape, absl::string_view where) {
  if (!shape.is_array()) return InvalidAt(where, "\"shape\" is not an array of integers");
  std::vector<int64_t> dimensions;
  dimensions.reserve(shape.size());
  for (const Json& dimension : shape) {
    if (!dimension.is_number_integer()) return InvalidAt(where, "\"shape\" holds a non-integer");
    // get<int64_t> would turn a larger number into a negative one.
    if (dimension.is_number_unsigned() &&
        dimension.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return InvalidAt(where, "\"shape\" holds a number that int64 cannot");
    }
    dimensions.push_back(dimension.get<int64_t>());
  }
  return dimensions;
}

using SpecsByName = absl::flat_hash_map<std::string, TensorSpec>;

// Keys that are absent leave `spec` as it is; `required` says whether they may be.
absl::Status ParseTensor(const Json& json, absl::string_view where, bool required,
                         TensorSpec* spec) {
  if (json.contains("shape")) {
    ASSIGN_OR_RETURN(spec->shape, ParseShape(json["shape"], where));
  } else if (required) {
    return InvalidAt(where, "\"shape\" is missing");
  }
  if (json.contains("dtype") || required) {
    ASSIGN_OR_RETURN(const std::string dtype, ParseString(json, "dtype", where));
    absl::StatusOr<DType> parsed = ParseDType(dtype);
    if (!parsed.ok()) return Annotate(parsed.status(), where);
    spec->dtype = *parsed;
  }
  if (json.contains("requires_grad")) {
    if (!json["requires_grad"].is_boolean()) {
      return InvalidAt(where, "\"requires_grad\" is neither true nor false");
    }
    spec->requires_grad = json["requires_grad"].get<bool>();
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorSpec> ParseParameter(const Json& json, const std::string& unit_where,
                                          size_t index, const SpecsByName& earlier) {
  const std::string position = absl::StrCat(unit_where, ", parameter ", index);
  if (!json.is_object()) return InvalidAt(position, "is not an object");
  TensorSpec spec;
  ASSIGN_OR_RETURN(const std::string name, ParseString(json, "name", position));
  const std::string where = absl::StrCat(unit_where, ", parameter ", Quoted(name));
  RETURN_IF_ERROR(
      CheckKeys(json, {"name", "shape", "dtype", "requires_grad", "shared_with"}, where));
  std::string shared_with;
  if (json.contains("shared_with") && !json["shared_with"].is_null()) {
    ASSIGN_OR_RETURN(shared_with, ParseString(json, "shared_with", where));
  }
  const auto primary = earlier.find(shared_with);
  // A primary that is not there is an error of ValidateModel.
  const bool has_primary = !shared_with.empty() && primary != earlier.end();
  if (has_primary) spec = primary->second;
  spec.name = name;
  spec.shared_with = shared_with;
  RETURN_IF_ERROR(ParseTensor(json, where, /*required=*/shared_with.empty(), &spec));
  return spec;
}

absl::StatusOr<UnitSpec> ParseUnit(const Json& json, size_t index) {
  const std::string position = absl::StrCat("unit ", index);
  if (!json.is_object()) return InvalidAt(position, "is not an object");
  UnitSpec unit;
  ASSIGN_OR_RETURN(unit.name, ParseString(json, "name", position));
  const std::string where = absl::StrCat("unit ", Quoted(unit.name));
  RETURN_IF_ERROR(CheckKeys(json, {"name", "parameters"}, where));
  const auto parameters = json.find("parameters");
  if (parameters == json.end()) return InvalidAt(where, "\"parameters\" is missing");
  if (!parameters->is_array()) return InvalidAt(where, "\"parameters\" is not an array");
  SpecsByName earlier;
  unit.parameters.reserve(parameters->size());
  for (const Json& parameter : *parameters) {
    ASSIGN_OR_RETURN(TensorSpec spec,
                     ParseParameter(parameter, where, unit.parameters.size(), earlier));
    earlier.emplace(spec.name, spec);
    unit.parameters.push_back(std::move(spec));
  }
  return unit;
}

absl::StatusOr<BufferSpec> ParseBuffer(const Json& json, size_t index) {
  const std::string position = absl::StrCat("buffer ", index);
  if (!json.is_object()) return InvalidAt(position, "is not an object");
  BufferSpec spec;
  ASSIGN_OR_RETURN(spec.name, ParseString(json, "name", position));
  const std::string where = absl::StrCat("buffer ", Quoted(spec.name));
  RETURN_IF_ERROR(CheckKeys(json, {"name", "shape", "dtype"}, where));
  if (!json.contains("shape")) return InvalidAt(where, "\"shape\" is missing");
  ASSIGN_OR_RETURN(spec.shape, ParseShape(json["shape"], where));
  ASSIGN_OR_RETURN(const std::string dtype, ParseString(json, "dtype", where));
  const std::optional<StoredDType> parsed = ParseStoredDType(dtype);
  if (!parsed.has_value()) return InvalidAt(where, absl::StrCat("no dtype ", Quoted(dtype)));
  spec.dtype = *parsed;
  return spec;
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpecJson(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    // Parsed a second time, only to find the place for the message.
    ErrorFinder finder;
    Json::sax_parse(text.begin(), text.end(), &finder);
    return absl::InvalidArgumentError(absl::StrCat("not JSON at byte ", finder.position()));
  }
  if (!json.is_object()) return absl::InvalidArgumentError("the document is not a JSON object");
  const auto units = json.find("units");
  if (units == json.end()) return absl::InvalidArgumentError("\"units\" is missing");
  if (!units->is_array()) return absl::InvalidArgumentError("\"units\" is not an array");
  ModelSpec model;
  model.units.reserve(units->size());
  for (const Json& unit : *units) {
    ASSIGN_OR_RETURN(UnitSpec parsed, ParseUnit(unit, model.units.size()));
    model.units.push_back(std::move(parsed));
  }
  const auto buffers = json.find("buffers");
  if (buffers != json.end()) {
    if (!buffers->is_array()) return absl::InvalidArgumentError("\"buffers\" is not an array");
    for (const Json& buffer : *buffers) {
      ASSIGN_OR_RETURN(BufferSpec parsed, ParseBuffer(buffer, model.buffers.size()));
      model.buffers.push_back(std::move(parsed));
    }
  }
  RETURN_IF_ERROR(ValidateModel(model));
  return model;
}

absl::StatusOr<ModelSpec> ReadModelSpecFile(const std::string& path) {
  const std::string what = absl::StrCat("spec file '", path, "'");
  struct stat info = {};
  // A folder can be opened, and only reading it fails.
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is a folder"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, what);
  std::string text;
  std::string block(1 << 16, '\0');
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block, 0, file.gcount());
    // While reading, because the size of a pipe is not known before.
    if (static_cast<int64_t>(text.size()) > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(what, " is larger than 256 MiB"));
    }
  }
  if (file.bad()) return ErrnoStatus(errno, what);
  absl::StatusOr<ModelSpec> model = ParseModelSpecJson(text);
  if (!model.ok()) return Annotate(model.status(), what);
  return model;
}

}  // namespace tessera::cli
