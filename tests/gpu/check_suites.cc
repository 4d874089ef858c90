#include "tests/gpu/check_suites.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace gpu_check {
namespace {

const Suite* Find(const std::vector<Suite>& suites, const std::string& name) {
  const auto found = std::find_if(suites.begin(), suites.end(),
                                  [&](const Suite& suite) { return suite.name == name; });
  return found == suites.end() ? nullptr : &*found;
}

bool AreWays(const std::vector<std::string>& words) {
  return std::all_of(words.begin(), words.end(), [](const std::string& word) {
    return word == kMemcheck || word == kRacecheck || word == kUnderMps;
  });
}

}  // namespace

absl::StatusOr<std::vector<Suite>> ParseSuites(absl::string_view text) {
  std::vector<Suite> suites;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    const size_t colon = words[0].find(':');
    int seconds = 0;
    const std::vector<std::string> again =
        words.size() == 4 ? absl::StrSplit(words[3], ',') : std::vector<std::string>();
    if (words.size() < 3 || words.size() > 4 || !AreWays(again) ||
        colon == absl::string_view::npos || words[0].find('/', colon) != absl::string_view::npos ||
        !absl::SimpleAtoi(words[1], &seconds) || seconds < 1) {
      return absl::InvalidArgumentError(absl::StrCat("not a line of programs: ", line));
    }
    const std::string name(words[0].substr(colon + 1));
    if (name.empty() || Find(suites, name) != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("a name that is taken: ", line));
    }
    suites.push_back({name, absl::Seconds(seconds), std::string(words[2]), again});
  }
  if (suites.empty()) return absl::InvalidArgumentError("there is no program to run");
  return suites;
}

absl::StatusOr<std::vector<Suite>> ChooseSuites(const std::vector<Suite>& suites,
                                                const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (Find(suites, name) != nullptr) continue;
    const auto name_of = [](std::string* out, const Suite& suite) { out->append(suite.name); };
    return absl::NotFoundError(
        absl::StrCat("no '", name, "' among ", absl::StrJoin(suites, ", ", name_of)));
  }
  std::vector<Suite> chosen;
  for (const Suite& suite : suites) {
    if (names.empty() || std::find(names.begin(), names.end(), suite.name) != names.end()) {
      chosen.push_back(suite);
    }
  }
  return chosen;
}

}  // namespace gpu_check
}  // namespace tessera
