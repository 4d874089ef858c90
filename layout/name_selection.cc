#include "layout/name_selection.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

bool MatchesAny(const std::vector<std::string>& patterns, absl::Span<const std::string> names) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return MatchesPattern(pattern, name); });
  });
}

bool IsPrefix(absl::string_view from) {
  return from.empty() || from.back() == '.' || from.back() == '/';
}

}  // namespace

// A mismatch goes back to the last star alone, which takes one byte more: no pattern costs more
// than its length times the name's.
bool MatchesPattern(absl::string_view pattern, absl::string_view name) {
  size_t p = 0, n = 0;
  size_t after_star = absl::string_view::npos, star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (after_star != absl::string_view::npos) {
      p = after_star;
      n = ++star_end;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool IsWanted(const NameSelection& selection, absl::Span<const std::string> names) {
  return (selection.include.empty() || MatchesAny(selection.include, names)) &&
         !MatchesAny(selection.exclude, names);
}

std::string NameInModel(const std::vector<NameSelection::Rename>& renames,
                        const std::string& in_file) {
  for (const NameSelection::Rename& rename : renames) {
    // A prefix ends at a part of the name, so that "a.b" does not rename "a.bc".
    if (IsPrefix(rename.from) ? absl::StartsWith(in_file, rename.from) : in_file == rename.from)
      return absl::StrCat(rename.to, in_file.substr(rename.from.size()));
  }
  return in_file;
}

absl::StatusOr<std::map<std::string, std::string>> NamesInModel(
    const std::vector<std::string>& in_file, const std::vector<NameSelection::Rename>& renames) {
  std::map<std::string, std::string> by_name;
  for (const std::string& tensor : in_file) {
    // Two names that fall together would make one tensor overwrite the other.
    const auto [other, is_new] = by_name.emplace(NameInModel(renames, tensor), tensor);
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensors '", other->second, "' and '", tensor,
                                                   "' are both '", other->first, "' in the model"));
  }
  return by_name;
}

}  // namespace tessera
