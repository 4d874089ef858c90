#include "checkpoint/storage/s3/s3_path.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"

namespace tessera::s3 {
namespace {

constexpr absl::string_view kMark = "://";
constexpr size_t kMaxShownBytes = 200;

absl::Status Invalid(absl::string_view path, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("path '", PrintableUtf8(Utf8Prefix(path, kMaxShownBytes)), "': ", why));
}

// The rules of the store. No other name gets into a URL.
bool IsBucketName(absl::string_view name) {
  if (name.size() < 3 || name.size() > 63) return false;
  for (const char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-' && c != '.') return false;
  }
  const auto is_end = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  return is_end(name.front()) && is_end(name.back()) && !absl::StrContains(name, "..");
}

std::string Escape(absl::string_view text, bool keeps_slash) {
  std::string escaped;
  for (const char c : text) {
    const bool stays = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
                       c == '_' || c == '~' || (keeps_slash && c == '/');
    if (stays) {
      escaped.push_back(c);
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

}  // namespace

absl::StatusOr<S3Path> ParsePath(absl::string_view path) {
  const size_t mark = path.find(kMark);
  if (mark == absl::string_view::npos || absl::AsciiStrToLower(path.substr(0, mark)) != kScheme)
    return Invalid(path, "not of the form s3://BUCKET/KEY");
  absl::string_view rest = path.substr(mark + kMark.size());
  const size_t slash = rest.find('/');
  S3Path parsed;
  parsed.bucket = std::string(rest.substr(0, slash));
  if (parsed.bucket.empty()) return Invalid(path, "it names no bucket: s3://BUCKET/KEY");
  if (!IsBucketName(parsed.bucket)) {
    return Invalid(path,
                   absl::StrCat("'", PrintableUtf8(Utf8Prefix(parsed.bucket, kMaxShownBytes)),
                                "' is not a bucket's name: 3 to 63 of a-z, 0-9, '-' and '.'"));
  }
  absl::string_view key = slash == absl::string_view::npos ? "" : rest.substr(slash + 1);
  if (absl::EndsWith(key, "/")) key.remove_suffix(1);
  if (key.empty()) return parsed;
  for (const absl::string_view part : absl::StrSplit(key, '/')) {
    // An object store takes these literally, and other programs do not.
    if (part.empty() || part == "." || part == "..")
      return Invalid(path, "a key has no empty parts, '.' or '..'");
  }
  if (key.size() > kMaxKeyBytes)
    return Invalid(path,
                   absl::StrCat("its key has ", key.size(), " bytes, more than ", kMaxKeyBytes));
  parsed.key = std::string(key);
  return parsed;
}

std::string PathOf(const S3Path& path) {
  return absl::StrCat(kScheme, kMark, path.bucket, "/", path.key);
}

std::pair<std::string, std::string> SplitKey(const std::string& key) {
  const size_t slash = key.rfind('/');
  if (slash == std::string::npos) return {"", key};
  return {key.substr(0, slash), key.substr(slash + 1)};
}

std::string EscapeKey(absl::string_view key) { return Escape(key, /*keeps_slash=*/true); }
std::string EscapeValue(absl::string_view value) { return Escape(value, /*keeps_slash=*/false); }

std::string QueryOf(std::vector<std::pair<std::string, std::string>> parameters) {
  std::sort(parameters.begin(), parameters.end());
  std::string query;
  for (const auto& [name, value] : parameters) {
    // With '=' where there is no value, too: signatures have it.
    absl::StrAppend(&query, query.empty() ? "" : "&", EscapeValue(name), "=", EscapeValue(value));
  }
  return query;
}

}  // namespace tessera::s3
