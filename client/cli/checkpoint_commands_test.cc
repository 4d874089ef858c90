#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/file_io.h"
#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Result {
  int exit_code = 0;
  std::string out, err;
};

Result Invoke(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  Result result;
  result.exit_code = RunCli(args, {&out, &err, false});
  result.out = out.str();
  result.err = err.str();
  return result;
}

class CheckpointCommandsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/checkpoints");
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(std::filesystem::create_directories(folder_));
  }
  // One with a trainer's bytes alone.
  std::string Make(const std::string& name, int64_t step, const std::string& job = "gpt") {
    const std::string path = absl::StrCat(folder_, "/", name);
    EXPECT_OK(BeginFolder(path, FolderKind::kCheckpoint));
    const std::string bytes = "position 17";
    EXPECT_OK(WriteWholeFile(absl::StrCat(PartialFolder(path), "/", TrainerFileName(0)), bytes));
    Manifest manifest;
    manifest.job_id = job;
    manifest.step = step;
    manifest.world_size = 1;
    manifest.optimizer = "adamw";
    manifest.files[TrainerFileName(0)] = {static_cast<int64_t>(bytes.size()), Crc32(bytes), {}};
    EXPECT_OK(PublishCheckpoint(path, manifest));
    return path;
  }
  std::string folder_;
};

TEST_F(CheckpointCommandsTest, VerifyingSomethingElseThanACheckpointSaysWhatItIs) {
  const std::string file = folder_ + "/model.safetensors";
  ASSERT_OK(WriteWholeFile(file, "weights"));
  EXPECT_THAT(Invoke({"verify", file}).err,
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(file + " is a file"),
                    HasSubstr("`tessera ls`")));
  EXPECT_THAT(Invoke({"verify", folder_}).err,
              AllOf(HasSubstr("NOT_FOUND"), HasSubstr(folder_ + " is not a checkpoint"),
                    HasSubstr("`tessera checkpoints`")));
  for (const char* command : {"verify", "checkpoints"})
    EXPECT_THAT(Invoke({command, "s3://"}).err, HasSubstr("it names no bucket"));
}

TEST_F(CheckpointCommandsTest, ListsThemByStepAndNothingElse) {
  EXPECT_EQ(Invoke({"checkpoints", folder_}).out, "no checkpoints\n");
  Make("b", 200);
  Make("a", 1000);
  Make("c", 3);
  ASSERT_TRUE(std::filesystem::create_directories(folder_ + "/photos"));
  std::filesystem::rename(folder_ + "/c", folder_ + "/c.partial");
  const Result result = Invoke({"checkpoints", folder_});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, absl::StrCat("step  size  job  path\n",             //
                                     " 200  11 B  gpt  ", folder_, "/b\n",  //
                                     "1000  11 B  gpt  ", folder_, "/a\n"));
  const auto json = nlohmann::json::parse(Invoke({"checkpoints", "--json", folder_}).out);
  EXPECT_EQ(json["checkpoints"].size(), 2);
  EXPECT_EQ(json["checkpoints"][0]["step"], 200);
  EXPECT_THAT(Invoke({"checkpoints", folder_ + "/none"}).err, HasSubstr("NOT_FOUND"));
}

TEST_F(CheckpointCommandsTest, VerifySaysThatOneIsWholeOrWhatIsDamaged) {
  const std::string path = Make("step-7", 7);
  const Result whole = Invoke({"verify", path + "/"});
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_THAT(whole.out, AllOf(HasSubstr(path + ": whole"), HasSubstr("Step 7 of job 'gpt'")));
  ASSERT_OK(WriteWholeFile(path + "/trainer-00000.bin", "position 18"));
  ASSERT_OK(WriteWholeFile(path + "/stranger", ""));
  const Result damaged = Invoke({"verify", path});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("trainer-00000.bin is damaged"),
                                 HasSubstr("stranger is not in the manifest")));
  EXPECT_THAT(damaged.err, HasSubstr("2 of its parts are damaged"));
  const auto json = nlohmann::json::parse(Invoke({"verify", "--json", path}).out);
  EXPECT_EQ(json["whole"], false);
  EXPECT_EQ(json["damages"].size(), 2);
}

TEST_F(CheckpointCommandsTest, PathsNameTheirStorageAndOneThatThereIsNotIsRefusedBeforeAnything) {
  const std::string path = Make("step-7", 7);
  EXPECT_EQ(Invoke({"verify", "file://" + path}).exit_code, 0);
  EXPECT_THAT(Invoke({"checkpoints", "file://" + folder_}).out, HasSubstr(path));
  const std::vector<std::vector<std::string>> refused = {
      {"verify", "gs://b/c"},
      {"checkpoints", "gs://b/c"},
      {"ls", "gs://b/c"},
      {"diff", "gs://b/c", path},
      {"diff", path, "gs://b/c"},
      {"consolidate", path, "--out", "gs://b/c"},
      {"consolidate", "gs://b/c", "--out", path + "-new"},
      {"put", "--job", "toy", "--from", "gs://b/c"},
      {"get", "toy", "--out", "gs://b/c"}};
  for (const std::vector<std::string>& args : refused) {
    const Result result = Invoke(args);
    EXPECT_EQ(result.exit_code, 1) << args[0];
    EXPECT_THAT(result.err, HasSubstr("'gs://b/c': there is no storage for gs://")) << args[0];
    EXPECT_FALSE(std::filesystem::exists("gs:")) << args[0];
  }
}

TEST_F(CheckpointCommandsTest, OldestAreRemovedAndThoseOfOtherJobsStay) {
  for (int step = 1; step <= 5; ++step) Make(absl::StrCat("step-", step), step);
  const std::string other = Make("other", 1, "bert");
  ASSERT_OK(KeepNewest(folder_ + "/step-5", "gpt", 2));
  ASSERT_OK_AND_ASSIGN(const std::vector<ListedCheckpoint> left, ListCheckpoints(folder_));
  ASSERT_EQ(left.size(), 3);
  EXPECT_EQ(left[0].path, other);
  EXPECT_EQ(left[1].step, 4);
  EXPECT_EQ(left[2].step, 5);
}

// What a crash between the last file and the folder leaves; one that a save has just made looks so.
TEST_F(CheckpointCommandsTest, EmptyFolderOfARemovalIsRemovedOnceItHasBeenEmptyForAnHour) {
  const std::string young = folder_ + "/step-2.partial", old = folder_ + "/step-1.partial",
                    full = folder_ + "/notes.partial";
  for (const std::string& path : {young, old, full})
    ASSERT_TRUE(std::filesystem::create_directory(path));
  ASSERT_OK(WriteWholeFile(full + "/mine", "text"));
  const std::string newest = Make("step-3", 3);
  const auto saved_at = std::filesystem::last_write_time(newest);
  std::filesystem::last_write_time(young, saved_at - std::chrono::minutes(59));
  std::filesystem::last_write_time(old, saved_at - std::chrono::minutes(61));
  std::filesystem::last_write_time(full, saved_at - std::chrono::hours(24));
  ASSERT_OK(KeepNewest(newest, "gpt", 1));
  EXPECT_TRUE(std::filesystem::exists(young));
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(full + "/mine"));
}

TEST_F(CheckpointCommandsTest, PublishingReplacesACheckpointOfTheSameName) {
  Make("latest", 1);
  const std::string path = Make("latest", 2);
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(path));
  EXPECT_EQ(manifest.step, 2);
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(path)));
}

}  // namespace
}  // namespace tessera::cli
