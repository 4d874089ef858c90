#include "checkpoint/storage/storage_path.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/storage/s3/s3_path.h"

namespace tessera {
namespace {

constexpr absl::string_view kMark = "://";
constexpr absl::string_view kFile = "file";
constexpr absl::string_view kPartialSuffix = ".partial";
constexpr size_t kMaxShownBytes = 200;

// As RFC 3986 has them.
bool IsScheme(absl::string_view name) {
  if (name.empty() || !absl::ascii_isalpha(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '+' && c != '-' && c != '.') return false;
  }
  return true;
}

std::string Shown(absl::string_view path) {
  return PrintableUtf8(Utf8Prefix(path, kMaxShownBytes));
}

}  // namespace

std::string SchemeOf(absl::string_view path) {
  const size_t end = path.find(kMark);
  if (end == absl::string_view::npos || !IsScheme(path.substr(0, end))) return "";
  return absl::AsciiStrToLower(path.substr(0, end));
}

namespace {

// As Linux has them; a save's folder or file has a suffix while it is written.
constexpr size_t kMaxPathBytes = 4095, kMaxPathNameBytes = 255;

absl::Status CheckText(absl::string_view path) {
  // Paths are logged, journalled and sent as text.
  if (PrintableUtf8(path) != path) {
    return absl::InvalidArgumentError(
        absl::StrCat("path '", Shown(path), "' is not printable UTF-8 text"));
  }
  if (path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("path '", Shown(path), "...' has ", path.size(),
                                                   " bytes, more than ", kMaxPathBytes));
  }
  for (const absl::string_view name : absl::StrSplit(path, '/')) {
    if (name.size() <= kMaxPathNameBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("the name '", Shown(name), "...' has ",
                                                   name.size(), " bytes, more than ",
                                                   kMaxPathNameBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> PlainPath(absl::string_view path) {
  RETURN_IF_ERROR(CheckText(path));
  const std::string scheme = SchemeOf(path);
  if (scheme.empty()) return std::string(path);
  if (scheme == s3::kScheme) {
    ASSIGN_OR_RETURN(const s3::S3Path parsed, s3::ParsePath(path));
    return s3::PathOf(parsed);
  }
  if (scheme != kFile) {
    return absl::InvalidArgumentError(
        absl::StrCat("path '", Shown(path), "': there is no storage for ", Shown(scheme), kMark,
                     "; use a path of the file system, with or without ", kFile, kMark, ", or ",
                     s3::kScheme, kMark));
  }
  const absl::string_view plain = path.substr(kFile.size() + kMark.size());
  if (absl::StartsWith(plain, "/")) return std::string(plain);
  return absl::InvalidArgumentError(
      absl::StrCat("path '", Shown(path), "': ", kFile, kMark, " is followed by an absolute path"));
}

std::string WithoutSlashes(std::string path) {
  // Those of "s3://" are not at the end of a path, and without them it would be a folder "s3:".
  while (path.size() > 1 && path.back() == '/' && !absl::EndsWith(path, kMark)) path.pop_back();
  return path;
}

std::string PartialPath(const std::string& path) { return absl::StrCat(path, kPartialSuffix); }

bool IsAbsolutePath(absl::string_view path) {
  return absl::StartsWith(path, "/") || SchemeOf(path) == s3::kScheme;
}

absl::Status CheckSavePath(absl::string_view path) {
  if (SchemeOf(path) == s3::kScheme) {
    ASSIGN_OR_RETURN(const s3::S3Path parsed, s3::ParsePath(path));
    if (!parsed.key.empty() && parsed.key.size() <= s3::kMaxPathKeyBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("path '", Shown(path), "': a save needs a name in the bucket, of at most ",
                     s3::kMaxPathKeyBytes, " bytes"));
  }
  // Checked before the save: its partial name would fail only when it is created.
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  const size_t most = kMaxPathNameBytes - kPartialSuffix.size();
  if (name.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the name '", Shown(name), "' has ", name.size(), " bytes; a save's has at most ", most,
      ", since it is '", kPartialSuffix, "' longer while it is written"));
}

absl::StatusOr<std::string> AbsolutePath(const std::string& path) {
  ASSIGN_OR_RETURN(std::string plain, PlainPath(path));
  if (IsAbsolutePath(plain)) return plain;
  std::error_code error;
  std::string absolute = std::filesystem::absolute(plain, error).string();
  if (!error) return absolute;
  return absl::InvalidArgumentError(absl::StrCat("path '", Shown(path), "': ", error.message()));
}

}  // namespace tessera
