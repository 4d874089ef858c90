// What the coordinator's program reports about wrong flags, and that it then serves no client.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>

#include "base/status_matchers.h"
#include "coordinator/coordinator_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CoordinatorFlagsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What it writes before it ends on its own.
  std::string Refusal(const std::string& flag) {
    const auto started = CoordinatorProcess::Start(folder_, {flag});
    EXPECT_EQ(started.status().code(), absl::StatusCode::kFailedPrecondition) << "it runs";
    return std::string(started.status().message());
  }

  std::string folder_ = "/tmp/tessera-flags-XXXXXX";
};

TEST_F(CoordinatorFlagsTest, WhatCannotBeDoneIsSaidBeforeAnybodyIsServed) {
  const struct {
    const char* flag;
    const char* says;
  } kCases[] = {
      {"--port-file=/nonexistent/x",
       "NOT_FOUND: --port-file '/nonexistent/x': No such file or directory"},
      {"--port-file=/tmp", "INVALID_ARGUMENT: --port-file '/tmp': is a folder"},
      {"--journal=/tmp", "INVALID_ARGUMENT: journal '/tmp': is a folder"},
      {"--cluster-id=abc", "cluster id 'abc': must be 32 hexadecimal digits"},
      {"--tls-cert=c.pem", "missing: --tls-key --tls-ca"},
      {"--listen=127.0.0.1:99999", "port 99999 is above 65535"},
      {"--lisetn=h:1", "tessera-coordinator: unknown option '--lisetn=h:1' (see --help)"},
  };
  for (const auto& expected : kCases) {
    EXPECT_THAT(Refusal(expected.flag), AllOf(HasSubstr(expected.says), Not(HasSubstr("listens"))));
  }
}

TEST_F(CoordinatorFlagsTest, WithoutAJournalItEndsAndNamesTheFlagsToChooseFrom) {
  // Started by a shell, because CoordinatorProcess adds --ephemeral. The timeout ends a coordinator
  // that is not refused.
  FILE* const program =
      popen("timeout 20 coordinator/tessera-coordinator --listen=127.0.0.1:0 2>&1", "r");
  ASSERT_NE(program, nullptr);
  std::string says;
  for (int byte = fgetc(program); byte != EOF; byte = fgetc(program))
    says.push_back(static_cast<char>(byte));
  const int status = pclose(program);
  ASSERT_TRUE(WIFEXITED(status)) << says;
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(says, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("--journal"),
                          HasSubstr("--ephemeral"), Not(HasSubstr("listens"))));
}

}  // namespace
}  // namespace tessera::coordinator
