#include "tests/gpu/test_results.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace gpu_check {
namespace {

// "Suite.Test" of "[       OK ] Suite.Test, where GetParam() = 1 (0 ms)".
std::string NameOf(absl::string_view rest) {
  return std::string(rest.substr(0, rest.find_first_of(", ")));
}

}  // namespace

absl::StatusOr<TestCounts> CountsOfJson(const std::string& text) {
  TestCounts counts;
  try {
    const nlohmann::json document = nlohmann::json::parse(text);
    for (const nlohmann::json& suite : document.at("testsuites")) {
      for (const nlohmann::json& test : suite.at("testsuite")) {
        if (test.at("status") != "RUN") continue;  // Filtered out, or disabled.
        if (test.contains("failures")) {
          counts.failures.push_back(absl::StrCat(suite.at("name").get<std::string>(), ".",
                                                 test.at("name").get<std::string>()));
        } else if (test.at("result") == "SKIPPED") {
          ++counts.skipped;
        } else {
          ++counts.passed;
        }
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("no results of gtest: ", error.what()));
  }
  return counts;
}

TestCounts CountsOfOutput(absl::string_view output) {
  TestCounts counts;
  std::string running;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    if (absl::ConsumePrefix(&line, "[ RUN      ] ")) {
      running = NameOf(line);
      continue;
    }
    const bool passed = absl::ConsumePrefix(&line, "[       OK ] ");
    const bool skipped = !passed && absl::ConsumePrefix(&line, "[  SKIPPED ] ");
    const bool failed = !passed && !skipped && absl::ConsumePrefix(&line, "[  FAILED  ] ");
    // At the end the same names come once more, in lists.
    if (running.empty() || !(passed || skipped || failed) || NameOf(line) != running) continue;
    if (passed) ++counts.passed;
    if (skipped) ++counts.skipped;
    if (failed) counts.failures.push_back(running);
    running.clear();
  }
  if (!running.empty()) counts.failures.push_back(running);
  return counts;
}

std::string FirstSkipReason(absl::string_view output) {
  bool next = false;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (next) return std::string(absl::StripAsciiWhitespace(line));
    next = absl::EndsWith(line, ": Skipped");
  }
  return "";
}

}  // namespace gpu_check
}  // namespace tessera
