// The same headers for our reader and for the reference, whose verdicts
// tests/reference/safetensors/golden holds.
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/safetensors/safetensors_header.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

struct Case {
  std::string what;
  std::string prefix;  // The file without its data.
  int64_t data_bytes;
  bool accepts;
};

std::vector<Case> GoldenCases() {
  std::ifstream file("tests/reference/safetensors/golden/headers.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<Case> cases;
  for (const nlohmann::json& row : golden["cases"]) {
    Case& c = cases.emplace_back();
    c.what = row["what"];
    const uint64_t declared = std::stoull(row["declared_bytes"].get<std::string>());
    for (int i = 0; i < 8; ++i) c.prefix += static_cast<char>((declared >> (8 * i)) & 0xff);
    // A character below 256 is a byte; in UTF-8 those above 127 are two.
    const std::string header = row["header"];
    for (size_t i = 0; i < header.size(); ++i) {
      const auto byte = static_cast<unsigned char>(header[i]);
      c.prefix += byte < 0x80
                      ? header[i]
                      : static_cast<char>((byte << 6) | (static_cast<uint8_t>(header[++i]) & 0x3f));
    }
    c.data_bytes = row["data_bytes"];
    c.accepts = row["accepts"];
  }
  return cases;
}

bool WeAccept(const Case& c) {
  return DecodeHeader(c.prefix, static_cast<int64_t>(c.prefix.size()) + c.data_bytes).ok();
}

// What the reference takes and we refuse, on purpose.
const std::map<std::string, std::string>& Stricter() {
  constexpr char kTwice[] = "the format forbids it, and parsers differ in which one they keep";
  constexpr char kBrace[] = "the format says that a header begins with a brace";
  static const auto* stricter = new std::map<std::string, std::string>{
      {"one tensor twice, alike", kTwice},
      {"one tensor twice, escaped", kTwice},
      {R"(__metadata__ {"k":"a","k":"b"})", kTwice},
      {"space before", kBrace},
      {"newline before", kBrace},
      {"fields as an array", "the format has an object there"},
      {"__metadata__ null", "the format has an object there"},
      {"a 0, and a shape that would overflow", "no dimension is larger than 63 bits"}};
  return *stricter;
}

TEST(HeadersConformanceTest, NothingThatTheReferenceRefusesIsAccepted) {
  for (const Case& c : GoldenCases()) {
    if (!c.accepts) {
      EXPECT_FALSE(WeAccept(c)) << c.what << ": " << c.prefix.substr(8, 300);
    }
  }
}

TEST(HeadersConformanceTest, WhatTheReferenceAcceptsIsRefusedOnlyWhereWeAreStricterOnPurpose) {
  std::set<std::string> refused;
  int num_accepted = 0;
  for (const Case& c : GoldenCases()) {
    if (!c.accepts) continue;
    if (WeAccept(c)) {
      ++num_accepted;
    } else {
      refused.insert(c.what);
      EXPECT_EQ(Stricter().count(c.what), 1) << c.what << ": " << c.prefix.substr(8, 300);
    }
  }
  EXPECT_GE(num_accepted, 150);
  for (const auto& [what, reason] : Stricter())
    EXPECT_EQ(refused.count(what), 1) << "not stricter: " << what << ", " << reason;
}

}  // namespace
}  // namespace tessera
