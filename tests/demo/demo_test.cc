// The demo as tools/demo starts it, as small as it can be: what it leaves.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/demo/child_process.h"

namespace tessera::demo {
namespace {

class DemoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ + "/text");
    for (int i = 0; i < 1000; ++i) text << "to train a model on ";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Start(const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"tests/demo/tessera-demo",
                                     "--coordinator-binary=coordinator/tessera-coordinator",
                                     "--worker-binary=worker/tessera-worker",
                                     "--executor-binary=worker/tessera-executor",
                                     "--trainer-binary=tests/demo/tessera-demo-trainer",
                                     "--text=" + folder_ + "/text",
                                     "--output-dir=" + folder_ + "/out",
                                     "--world-size=2",
                                     "--batch=1",
                                     "--context=8",
                                     "--width=8",
                                     "--blocks=1",
                                     "--no-kill",
                                     "--no-compare"};
    args.insert(args.end(), flags.begin(), flags.end());
    ASSERT_OK_AND_ASSIGN(demo_, ChildProcess::Start(args, folder_ + "/errors"));
  }
  static std::string Slurp(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  // The socket folders that the worker's log names, once there is one.
  std::vector<std::string> AwaitSocketFolders() {
    static const std::regex kSocket("unix:(/tmp/tessera-demo-[^/]+)/");
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    std::vector<std::string> folders;
    while (folders.empty() && absl::Now() < deadline) {
      const std::string log = Slurp(folder_ + "/out/worker.log");
      for (auto it = std::sregex_iterator(log.begin(), log.end(), kSocket);
           it != std::sregex_iterator(); ++it) {
        folders.push_back((*it)[1]);
      }
      if (folders.empty()) absl::SleepFor(absl::Milliseconds(10));
    }
    return folders;
  }

  const std::string folder_ = ::testing::TempDir() + "/demo";
  std::unique_ptr<ChildProcess> demo_;
};

TEST_F(DemoTest, LeavesNoSocketsAndTheLogsOfOneRun) {
  for (int run = 0; run < 2; ++run) {
    Start({"--steps=3"});
    EXPECT_EQ(demo_->Wait(), 0) << Slurp(folder_ + "/errors");
    const std::vector<std::string> folders = AwaitSocketFolders();
    ASSERT_EQ(folders.size(), 1) << "the worker says once where it listens";
    EXPECT_FALSE(std::filesystem::exists(folders[0]));
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/out/journal.sqlite"));
  }
}

TEST_F(DemoTest, EndedBySignalItLeavesNoSockets) {
  Start({"--steps=1000000"});
  const std::vector<std::string> folders = AwaitSocketFolders();
  ASSERT_EQ(folders.size(), 1) << Slurp(folder_ + "/errors");
  EXPECT_TRUE(std::filesystem::exists(folders[0]));
  demo_->Kill(SIGTERM);
  EXPECT_EQ(demo_->Wait(), 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(folders[0]));
}

TEST_F(DemoTest, WrongFlagIsNamed) {
  Start({"--stesp=3"});
  EXPECT_EQ(demo_->Wait(), 2);
  EXPECT_EQ(Slurp(folder_ + "/errors"), "tools/demo: unknown option '--stesp=3' (see --help)\n");
}

}  // namespace
}  // namespace tessera::demo
