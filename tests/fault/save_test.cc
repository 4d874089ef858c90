// A save whose executor is killed in the middle.
#include <stdlib.h>

#include <filesystem>
#include <set>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/stored_model.h"
#include "tests/testing/process_view.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ReadFile;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

class SaveTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-save-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.insert(entry.path().filename());
    return names;
  }
  std::string folder_;
};

TEST_F(SaveTest, KilledSaveLeavesNothingAndTheNextOneWorks) {
  LocalCluster::Options options;
  options.num_devices = 2;
  options.executor_binary = "worker/tessera-executor";
  options.executor_flags = {"--fault-points=save.created=kill@2"};
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster, "toy", 2)));
  ASSERT_OK(team.TrainTo(3));
  const auto save = [&](const std::string& name) {
    return team.Run([&](Session* session) { return session->Save(folder_ + "/" + name); });
  };
  for (const absl::Status& status : save("first")) EXPECT_OK(status);
  for (const absl::Status& status : save("second")) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::_));
  }
  EXPECT_EQ(Files(), std::set<std::string>({"first"}));
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  for (const absl::Status& status : save("second")) EXPECT_OK(status);
  EXPECT_EQ(Files(), (std::set<std::string>{"first", "second"}));
  EXPECT_EQ(ReadFile(folder_ + "/first"), ReadFile(folder_ + "/second"));
}

// Whichever process is killed, at any point: the folder of the model, or the ranks' parts, are as
// before.
TEST_F(SaveTest, KilledSaveOfFilesOrPartsLeavesNothingAndTheNextOneWorks) {
  for (const bool in_parts : {false, true}) {
    for (const char* point : {"save.created", "model-file.publish", "file.sync"}) {
      SCOPED_TRACE(std::string(in_parts ? "parts " : "files ") + point);
      LocalCluster::Options options;
      options.num_devices = 2;
      options.executor_binary = "worker/tessera-executor";
      options.executor_flags = {std::string("--fault-points=") + point + "=kill@1"};
      ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster, "toy", 2)));
      ASSERT_OK(team.TrainTo(3));
      const std::string path = folder_ + "/s";
      const auto save = [&] {
        return team.Run([&](Session* session) {
          SaveOptions files;
          files.max_file_bytes = 150;
          SaveOptions parts;
          parts.in_parts = true;
          return in_parts ? SaveCheckpoint(session, path, {}, parts)
                          : SaveModel(session, path, files);
        });
      };
      // In parts each rank's executor has the fault, so both die, and both again at their next hit.
      for (const absl::Status& status : save())
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::_));
      EXPECT_TRUE(!std::filesystem::exists(path) || std::filesystem::is_empty(path));
      EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
      std::filesystem::remove_all(path);
    }
  }
}

}  // namespace
}  // namespace tessera
