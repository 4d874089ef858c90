#include "tessera/session_options.h"

#include <stdlib.h>

#include <map>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class OptionsFromLauncherTest : public ::testing::Test {
 protected:
  OptionsFromLauncherTest() {
    for (const char* name :
         {"TESSERA_COORDINATOR", "TESSERA_WORKER", "TESSERA_JOB", "RANK", "WORLD_SIZE",
          "TESSERA_TLS_CERT", "TESSERA_TLS_KEY", "TESSERA_TLS_CA", "TESSERA_INSECURE_CONNECT"}) {
      unsetenv(name);
    }
    Set({{"TESSERA_COORDINATOR", "unix:/run/c.sock"},
         {"TESSERA_WORKER", "unix:/run/w.sock"},
         {"RANK", "2"},
         {"WORLD_SIZE", "4"}});
  }
  static void Set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
};

TEST_F(OptionsFromLauncherTest, RankHasItsPlaceAndWaitsForTheOneBeforeIt) {
  ASSERT_OK_AND_ASSIGN(const SessionOptions options, OptionsFromLauncher());
  EXPECT_EQ(options.coordinator_address, "unix:/run/c.sock");
  EXPECT_EQ(options.worker_address, "unix:/run/w.sock");
  EXPECT_EQ(options.job_id, "train");
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.config.world_size, 4);
  EXPECT_TRUE(options.wait_if_attached);
  EXPECT_TRUE(options.tls.empty());
  EXPECT_FALSE(options.insecure_connect);
}

TEST_F(OptionsFromLauncherTest, OverSeveralNodesTheWayToTheCoordinatorIsTheLaunchers) {
  Set({{"TESSERA_JOB", "gpt"},
       {"TESSERA_TLS_CERT", "node.pem"},
       {"TESSERA_TLS_KEY", "node.key"},
       {"TESSERA_TLS_CA", "ca.pem"},
       {"TESSERA_INSECURE_CONNECT", "1"}});
  ASSERT_OK_AND_ASSIGN(const SessionOptions options, OptionsFromLauncher());
  EXPECT_EQ(options.job_id, "gpt");
  EXPECT_EQ(options.tls.certificate_path, "node.pem");
  EXPECT_EQ(options.tls.key_path, "node.key");
  EXPECT_EQ(options.tls.ca_path, "ca.pem");
  EXPECT_TRUE(options.insecure_connect);
}

TEST_F(OptionsFromLauncherTest, WhatIsMissingOrNoNumberIsNamed) {
  for (const char* name : {"TESSERA_COORDINATOR", "TESSERA_WORKER", "RANK", "WORLD_SIZE"}) {
    const std::string before = getenv(name);
    for (const bool is_empty : {false, true}) {
      if (is_empty) {
        setenv(name, "", 1);
      } else {
        unsetenv(name);
      }
      EXPECT_THAT(OptionsFromLauncher().status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr(name), HasSubstr("tessera run -n"))));
    }
    setenv(name, before.c_str(), 1);
  }
  Set({{"RANK", "first"}});
  EXPECT_THAT(OptionsFromLauncher().status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("RANK is 'first'")));
}

}  // namespace
}  // namespace tessera
