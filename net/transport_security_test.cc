#include "net/transport_security.h"

#include <unistd.h>

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const TlsFiles kNoFiles;
const TlsFiles kFiles = {"cert.pem", "key.pem", "ca.pem"};

TEST(ChooseProtectionTest, EveryCaseOfTheRule) {
  constexpr auto kPlain = Protection::kPlain;
  constexpr auto kTls = Protection::kMutualTls;
  const struct {
    const char* address;
    const TlsFiles& tls;
    bool permit_insecure;
    std::optional<Protection> expected;  // Unset: refused.
  } kCases[] = {
      {"unix:/w.sock", kNoFiles, false, kPlain},     {"unix:/w.sock", kNoFiles, true, kPlain},
      {"unix:/w.sock", kFiles, false, kPlain},       {"unix:/w.sock", kFiles, true, kPlain},
      {"127.0.0.1:1", kNoFiles, false, kPlain},      {"127.0.0.1:1", kNoFiles, true, kPlain},
      {"127.0.0.1:1", kFiles, false, kTls},          {"127.0.0.1:1", kFiles, true, kTls},
      {"10.0.0.1:1", kNoFiles, false, std::nullopt}, {"10.0.0.1:1", kNoFiles, true, kPlain},
      {"10.0.0.1:1", kFiles, false, kTls},           {"10.0.0.1:1", kFiles, true, kTls},
  };
  for (const Side side : {Side::kListen, Side::kDial}) {
    for (const auto& c : kCases) {
      SCOPED_TRACE(testing::Message()
                   << c.address << " files " << !c.tls.empty() << " permit " << c.permit_insecure);
      const auto chosen = ChooseProtection(side, c.address, c.tls, c.permit_insecure);
      if (c.expected.has_value()) {
        ASSERT_OK(chosen);
        EXPECT_EQ(*chosen, *c.expected);
      } else {
        EXPECT_THAT(chosen, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(c.address)));
      }
    }
  }
}

TEST(ChooseProtectionTest, RefusalNamesTheFlagThatPermits) {
  EXPECT_THAT(ChooseProtection(Side::kListen, "0.0.0.0:7", {}, false),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'0.0.0.0:7'"), HasSubstr("--insecure-listen"))));
  EXPECT_THAT(ChooseProtection(Side::kDial, "node7:7", {}, false),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'node7:7'"), HasSubstr("--insecure-connect"))));
}

TEST(ChooseProtectionTest, SomeButNotAllFilesAreRefusedEverywhere) {
  for (const char* address : {"unix:/w.sock", "127.0.0.1:1", "10.0.0.1:1"}) {
    for (const TlsFiles& tls : {TlsFiles{"c", "", ""}, TlsFiles{"", "k", ""}, TlsFiles{"", "", "a"},
                                TlsFiles{"c", "k", ""}}) {
      EXPECT_THAT(ChooseProtection(Side::kDial, address, tls, true),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TLS needs all")));
    }
  }
}

TEST(ChooseProtectionTest, FilesThatAreMissingAreNamedByTheirFlags) {
  EXPECT_THAT(ChooseProtection(Side::kListen, "127.0.0.1:1", {"c", "", ""}, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--tls-key --tls-ca")));
}

TEST(ChooseProtectionTest, MalformedAddressIsRefused) {
  EXPECT_THAT(ChooseProtection(Side::kDial, "nowhere", {}, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nowhere")));
}

TEST(ChooseProtectionTest, ThisMachinesOwnNameIsLocalForWhoConnectsAlone) {
  char own[256] = {};
  ASSERT_EQ(gethostname(own, sizeof(own) - 1), 0);
  const std::string address = absl::StrCat(absl::AsciiStrToUpper(own), ".:7070");
  ASSERT_OK_AND_ASSIGN(const Protection chosen,
                       ChooseProtection(Side::kDial, address, kNoFiles, false));
  EXPECT_EQ(chosen, Protection::kPlain);
  EXPECT_THAT(ChooseProtection(Side::kListen, address, kNoFiles, false),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--insecure-listen")));
}

}  // namespace
}  // namespace tessera
