#include "checkpoint/safetensors/strict_json.h"

#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Sees each event of a parse and notes the first thing that is refused. (With a callback, the
// library's own parser looks at all entries of an object again after each of them.)
class Watch : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    keys_.emplace_back();
    return Deeper();
  }
  bool key(string_t& key) override {
    // Readers differ in which of the two counts.
    if (keys_.back().insert(key).second) return true;
    error_ = absl::StrCat("'", key, "': the key is there twice");
    return false;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return Deeper(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }
  const std::string& error() const { return error_; }

 private:
  bool Deeper() {
    // The parser recurses: depth is stack.
    if (++depth_ <= kMaxJsonDepth) return true;
    error_ = absl::StrCat("nested deeper than ", kMaxJsonDepth);
    return false;
  }

  std::vector<std::unordered_set<std::string>> keys_;  // Of the objects that are open.
  int depth_ = 0;
  std::string error_;
};

}  // namespace

// Twice through the text: first to check, then to build, which assumes what was checked.
absl::StatusOr<Json> ParseStrictJsonObject(absl::string_view text) {
  // The library takes a NUL for the end of the text, and would not check what follows it.
  if (text.find('\0') != absl::string_view::npos) return absl::InvalidArgumentError("a NUL in it");
  // RFC 8259 forbids to write one; the library would pass over it, and other readers do not.
  if (absl::StartsWith(text, "\xef\xbb\xbf"))
    return absl::InvalidArgumentError("a byte order mark in front of it");
  Watch watch;
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &watch);
  if (!watch.error().empty()) return absl::InvalidArgumentError(watch.error());
  if (!parsed) return absl::InvalidArgumentError("no JSON object");
  Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::InvalidArgumentError("no JSON object");
  return value;
}

}  // namespace tessera
