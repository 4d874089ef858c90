// Runs a program in C that uses the interface alone, against a cluster of this process.
#include <sys/wait.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"

namespace tessera {
namespace {

TEST(CProgramTest, TrainsAndMeetsEachErrorByName) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<LocalCluster> cluster, LocalCluster::Start({}));
  const int status = std::system(absl::StrCat("client/c/c_program ", cluster->coordinator_address(),
                                              " ", cluster->worker_address())
                                     .c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tessera
