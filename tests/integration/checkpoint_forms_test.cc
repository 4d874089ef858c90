// What a checkpoint may be made of besides one file of each kind: files of a size, buffers of any
// dtype; and one that nobody waits for.
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/safetensors/diff_tensors.h"
#include "checkpoint/safetensors/stored_tensors.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

class CheckpointFormsTest : public testing::Test {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    LocalCluster::Options options;
    options.num_devices = 16;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    root_ = "/tmp/tessera-forms-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    cluster_.reset();
    std::filesystem::remove_all(root_);
  }
  absl::StatusOr<TrainerTeam> OpenTeam(int world_size) {
    return TrainerTeam::Open(ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size));
  }
  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_))
      names.insert(entry.path().filename());
    return names;
  }
  static std::vector<absl::Status> Save(TrainerTeam* team, const std::string& path,
                                        const SaveOptions& options = {},
                                        const CheckpointContents& contents = {}) {
    return team->Run(
        [&](Session* session) { return SaveCheckpoint(session, path, contents, options); });
  }
  static std::vector<float> Parameters(TrainerTeam* team) {
    std::vector<float> all;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      absl::StatusOr<std::vector<float>> read = ReadAll(session);
      if (session->rank() == 0 && read.ok()) all = *read;
      return read.status();
    }));
    return all;
  }
  static void ExpectSameTensors(const std::string& a, const std::string& b) {
    ASSERT_OK_AND_ASSIGN(const auto stored_a, StoredTensors::Open(a));
    ASSERT_OK_AND_ASSIGN(const auto stored_b, StoredTensors::Open(b));
    ASSERT_OK_AND_ASSIGN(const TensorsDiff diff, DiffTensors(*stored_a, *stored_b, {}));
    EXPECT_GT(diff.num_compared, 0);
    EXPECT_TRUE(diff.differences.empty()) << diff.differences[0].key.second;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::string root_;
  int num_jobs_ = 0;
};

TEST_F(CheckpointFormsTest, ModelInFilesOfASizeIsTheSameCheckpointToTheBit) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(2));
  const CheckpointContents own = {{{"bn.mean", DType::kFp32, {2}, "abcdefgh"}}, "own bytes"};
  SaveOptions files;
  files.max_file_bytes = 150;
  for (const absl::Status& status : Save(&team, Path("one"), {}, own)) ASSERT_OK(status);
  for (const absl::Status& status : Save(&team, Path("many"), files, own)) ASSERT_OK(status);
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("many")));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.files.count("model.safetensors.index.json"), 1);
  EXPECT_EQ(verified.manifest.files.count("model.safetensors"), 0);
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ModelFilesOf(verified.manifest));
  EXPECT_GT(names.size(), 2);
  ExpectSameTensors(Path("one"), Path("many"));

  // A replica of the files' split has nothing of the other form left in it.
  for (const absl::Status& status : Save(&team, Path("one"), files, own)) ASSERT_OK(status);
  EXPECT_FALSE(std::filesystem::exists(Path("one/model.safetensors")));
  ASSERT_OK(team.TrainTo(5));
  const std::vector<float> expected = Parameters(&team);
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, OpenTeam(3));
  ASSERT_OK(next.RunAll([&](Session* session) -> absl::Status {
    LoadCheckpointOptions options;
    options.buffers = own.buffers;
    ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(session, Path("one"), options));
    EXPECT_EQ(loaded.buffers.at(0).values, "abcdefgh");
    EXPECT_EQ(loaded.trainer_state, "own bytes");
    return absl::OkStatus();
  }));
  ASSERT_OK(next.TrainTo(5));
  EXPECT_EQ(Parameters(&next), expected) << "resumed to the bit";
}

TEST_F(CheckpointFormsTest, DamageInAnyFileOfTheModelIsFoundByName) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  SaveOptions files;
  files.max_file_bytes = 150;
  for (const absl::Status& status : Save(&team, Path("c"), files)) ASSERT_OK(status);
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(Path("c")));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ModelFilesOf(manifest));
  for (const std::string& name : names) {
    const std::string path = Path("c/" + name);
    std::filesystem::rename(path, Path("away"));
    for (const absl::Status& status :
         team.Run([&](Session* session) { return LoadCheckpoint(session, Path("c")).status(); })) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name + " is missing")));
    }
    EXPECT_FALSE(StoredTensors::Open(Path("c")).ok());
    std::filesystem::rename(Path("away"), path);
  }
  EXPECT_OK(
      team.RunAll([&](Session* session) { return LoadCheckpoint(session, Path("c")).status(); }));
}

TEST_F(CheckpointFormsTest, BuffersOfEveryDTypeComeBackToTheBit) {
  const std::vector<NamedTensor> buffers = {
      {"bool", StoredDType::kBool, {3}, std::string("\0\1\1", 3)},
      {"i8", StoredDType::kI8, {2}, "\x80\xff"},
      {"u8", StoredDType::kU8, {}, "\xff"},
      {"e4m3", StoredDType::kF8E4M3, {2, 2}, "\x7f\x80\x01\xfe"},
      {"e5m2", StoredDType::kF8E5M2, {1}, "\x7c"},
      {"e8m0", StoredDType::kF8E8M0, {1}, "\xff"},
      {"f4", StoredDType::kF4, {4}, "\x12\xf8"},
      {"i16", StoredDType::kI16, {1}, "\x34\x12"},
      {"u64", StoredDType::kU64, {1}, "\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"},
      {"c64", StoredDType::kC64, {1}, "abcdefgh"},
      {"none", StoredDType::kBool, {0}, ""}};
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  for (const absl::Status& status : Save(&team, Path("c"), {}, {buffers, ""})) ASSERT_OK(status);
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
  EXPECT_THAT(verified.damages, IsEmpty());
  LoadCheckpointOptions options;
  for (const NamedTensor& buffer : buffers)
    options.buffers.push_back({buffer.name, buffer.dtype, buffer.shape, ""});
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(session, Path("c"), options));
    EXPECT_EQ(loaded.buffers.size(), buffers.size());
    for (size_t i = 0; i < loaded.buffers.size() && i < buffers.size(); ++i) {
      EXPECT_EQ(loaded.buffers[i].values, buffers[i].values) << buffers[i].name;
      EXPECT_EQ(loaded.buffers[i].dtype, buffers[i].dtype);
      EXPECT_EQ(loaded.buffers[i].shape, buffers[i].shape);
    }
    return absl::OkStatus();
  }));
  options.buffers[1].dtype = StoredDType::kU8;
  for (const absl::Status& status : team.Run([&](Session* session) {
         return LoadCheckpoint(session, Path("c"), options).status();
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("'i8' is I8 [2]"), HasSubstr("wanted is U8"))));
  }
  // A shape that ends within a byte, and one that does not fit its values.
  for (const NamedTensor& wrong : {NamedTensor("odd", StoredDType::kF4, {3}, "ab"),
                                   NamedTensor("long", StoredDType::kBool, {3}, "ab")}) {
    for (const absl::Status& status : Save(&team, Path("c"), {}, {{wrong}, ""})) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr(absl::StrCat("'", wrong.name, "'"))));
    }
  }
}

TEST_F(CheckpointFormsTest, SaveThatOneRankCancelsEndsOnAllAndThePreviousCheckpointStays) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(1));
  for (const absl::Status& status : Save(&team, Path("c"))) ASSERT_OK(status);
  ASSERT_OK(team.TrainTo(2));
  SaveOptions background;
  background.in_background = true;
  for (const char* point : {"save.created", "save.written"}) {
    SCOPED_TRACE(point);
    for (int canceller = 0; canceller < 3; ++canceller) {
      Fault hold;
      hold.action = FaultAction::kHold;
      ArmFaultPoint(point, hold);
      for (const absl::Status& status : Save(&team, Path("c"), background)) ASSERT_OK(status);
      ASSERT_OK(team.RunAll([&](Session* session) {
        return session->rank() == canceller ? CancelSave(session) : absl::OkStatus();
      }));
      DisarmAllFaultPoints();
      const std::string by = absl::StrCat("on rank ", canceller, ": the save was cancelled");
      for (const absl::Status& status :
           team.Run([](Session* session) { return AwaitSave(session); })) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr(by)));
      }
      EXPECT_EQ(Names(), std::set<std::string>{"c"});
      ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
      EXPECT_THAT(verified.damages, IsEmpty());
      EXPECT_EQ(verified.manifest.step, 1);
    }
  }
  ASSERT_OK(team.TrainTo(3));
  for (const absl::Status& status : Save(&team, Path("c"), background)) ASSERT_OK(status);
  ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(Path("c")));
  EXPECT_EQ(manifest.step, 3) << "the one that was cancelled stops no other";
}

TEST_F(CheckpointFormsTest, CancellingWhatIsPublishedOrDoesNotRunChangesNothing) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(team.RunAll([](Session* session) { return CancelSave(session); }));
  SaveOptions background;
  background.in_background = true;
  for (const absl::Status& status : Save(&team, Path("c"), background)) ASSERT_OK(status);
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(AwaitSave(session));
    RETURN_IF_ERROR(CancelSave(session));
    return AwaitSave(session);
  }));
  ASSERT_OK(team.RunAll([](Session* session) { return CancelSave(session); }));
  for (const absl::Status& status : Save(&team, Path("d"))) ASSERT_OK(status);
  EXPECT_EQ(Names(), (std::set<std::string>{"c", "d"}));
}

// E2E-4 of the conformance list.
TEST_F(CheckpointFormsTest, OneThatIsPublishedMeanwhileIsNotReplacedWhereThatIsNotWanted) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(1));
  SaveOptions options;
  for (const absl::Status& status : Save(&team, Path("whole"))) ASSERT_OK(status);
  options.in_parts = true;
  for (const absl::Status& status : Save(&team, Path("parts"), options)) ASSERT_OK(status);
  ASSERT_OK(team.TrainTo(2));
  options.in_background = true;
  options.overwrite = false;
  // Has what the other job made its name once the ranks have looked, and before they publish.
  const auto expect_refused = [&](const std::string& path, const std::string& made,
                                  const std::string& name, const std::string& rank) {
    Fault hold;
    hold.action = FaultAction::kHold;
    ArmFaultPoint("save.created", hold);
    for (const absl::Status& status : Save(&team, Path(path), options)) ASSERT_OK(status);
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    std::filesystem::rename(Path(made), Path(name));
    DisarmAllFaultPoints();
    for (const absl::Status& status :
         team.Run([](Session* session) { return AwaitSave(session); })) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAlreadyExists,
                                   AllOf(HasSubstr(rank), HasSubstr(Path(name)))));
    }
  };
  expect_refused("p", "parts/rank-00001", "p/rank-00001", "on rank 1: ");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Path("p")), {}), 1) << "no other";
  ASSERT_OK_AND_ASSIGN(const Manifest part, ReadPartManifest(Path("p/rank-00001")));
  EXPECT_EQ(part.step, 1);
  options.in_parts = false;
  expect_refused("w", "whole", "w", "on rank 0: ");
  EXPECT_EQ(Names(), (std::set<std::string>{"p", "parts", "w"}));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("w")));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, 1);
  ASSERT_OK(team.TrainTo(3));
}

TEST_F(CheckpointFormsTest, OneThatIsThereIsNotReplacedWhereThatIsNotWanted) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(1));
  SaveOptions once;
  once.overwrite = false;
  for (const absl::Status& status : Save(&team, Path("c"), once)) ASSERT_OK(status);
  ASSERT_OK(team.TrainTo(2));
  const auto inode_of = [](const std::string& path) {
    struct stat info;
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_ino;
  };
  const auto before = std::make_pair(inode_of(Path("c")), inode_of(Path("c/manifest.json")));
  const auto expect_refused = [&](const SaveOptions& options) {
    for (const absl::Status& status : Save(&team, Path("c"), options)) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAlreadyExists,
                                   AllOf(HasSubstr("on rank 0: "), HasSubstr(Path("c")))));
    }
    EXPECT_EQ(Names(), std::set<std::string>{"c"}) << "nothing was begun";
    EXPECT_EQ(std::make_pair(inode_of(Path("c")), inode_of(Path("c/manifest.json"))), before);
  };
  SaveOptions in_background = once;
  in_background.in_background = true;
  expect_refused(once);
  expect_refused(in_background);
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, 1);
  // One that is damaged may be all that there is.
  std::filesystem::resize_file(Path("c/manifest.json"), 10);
  expect_refused(once);

  ASSERT_OK(team.TrainTo(3));
  for (const absl::Status& status : Save(&team, Path("c"))) ASSERT_OK(status);
  ASSERT_OK_AND_ASSIGN(const Manifest replaced, ReadManifest(Path("c")));
  EXPECT_EQ(replaced.step, 3);
  for (const absl::Status& status : Save(&team, Path("d"), in_background)) ASSERT_OK(status);
  ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
  ASSERT_OK_AND_ASSIGN(const Manifest other, ReadManifest(Path("d")));
  EXPECT_EQ(other.step, 3);
  // Anything but a checkpoint is never replaced.
  ASSERT_TRUE(std::filesystem::create_directories(Path("photos/old")));
  for (const absl::Status& status : Save(&team, Path("photos"), once)) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not a checkpoint")));
  }
}

}  // namespace
}  // namespace tessera
