// Models in files of a size and in other dtypes, through a real cluster.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "checkpoint/open_model.h"
#include "checkpoint/safetensors/file_io.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/stored_model.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

class SaveModelTest : public testing::Test {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    LocalCluster::Options options;
    options.num_devices = 16;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    root_ = "/tmp/tessera-models-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    std::filesystem::remove_all(root_);
  }
  absl::StatusOr<TrainerTeam> OpenTeam(int world_size) {
    return TrainerTeam::Open(ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size));
  }
  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }
  static std::vector<absl::Status> Save(TrainerTeam* team, const std::string& path,
                                        const SaveOptions& options) {
    return team->Run([&](Session* session) { return SaveModel(session, path, options); });
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
  static std::map<std::string, std::string> BytesIn(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files[entry.path().filename()] = *ReadWholeFile(entry.path(), 1 << 30);
    return files;
  }
  static std::set<std::string> NamesIn(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.insert(entry.path().filename());
    return names;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::string root_;
  int num_jobs_ = 0;
};

TEST_F(SaveModelTest, FilesOfASizeHaveTheSameBytesFromAnyWorldAndAreLoadedToTheBit) {
  SaveOptions options;
  options.max_file_bytes = 150;
  std::map<std::string, std::string> first;
  std::vector<float> expected;
  for (const int world : {3, 1, 5}) {
    SCOPED_TRACE(world);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(world));
    if (world == 3) {
      ASSERT_OK(team.TrainTo(2));
      expected = Parameters(&team);
    } else {
      ASSERT_OK(
          team.RunAll([&](Session* session) { return LoadModel(session, Path("3")).status(); }));
      EXPECT_EQ(Parameters(&team), expected);
    }
    const std::string path = Path(absl::StrCat(world));
    for (const absl::Status& status : Save(&team, path, options)) ASSERT_OK(status);
    if (world == 3) first = BytesIn(path);
    EXPECT_EQ(BytesIn(path), first);
  }
  EXPECT_GT(first.size(), 3) << "several files and an index";
  EXPECT_EQ(first.count("model.safetensors.index.json"), 1);
  EXPECT_EQ(NamesIn(root_), (std::set<std::string>{"1", "3", "5"})) << "nothing is left behind";
}

TEST_F(SaveModelTest, RoundedModelSaysSoAndHasTheNearestValues) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<float> expected = Parameters(&team);
  SaveOptions options;
  options.dtype = DType::kBf16;
  for (const absl::Status& status : Save(&team, Path("half.safetensors"), options))
    ASSERT_OK(status);
  EXPECT_THAT(*ReadWholeFile(Path("half.safetensors"), 1 << 30),
              HasSubstr("\"tessera.save_dtype\":\"bf16\""));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelSource> read,
                       OpenModel(Path("half.safetensors")));
  for (const auto& [name, info] : read->tensors())
    EXPECT_EQ(info.dtype, StoredDType::kBf16) << name;
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, OpenTeam(2));
  ASSERT_OK(next.RunAll(
      [&](Session* session) { return LoadModel(session, Path("half.safetensors")).status(); }));
  const std::vector<float> rounded = Parameters(&next);
  ASSERT_EQ(rounded.size(), expected.size());
  for (size_t i = 0; i < rounded.size(); ++i) {
    uint32_t bits;
    memcpy(&bits, &expected[i], sizeof(bits));
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;  // To nearest, ties to even.
    float nearest;
    memcpy(&nearest, &bits, sizeof(nearest));
    EXPECT_EQ(rounded[i], nearest) << i;
  }
}

TEST_F(SaveModelTest, ErrorAtAnyPointIsEveryRanksAndThePreviousModelStays) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  SaveOptions options;
  options.max_file_bytes = 150;
  for (const absl::Status& status : Save(&team, Path("m"), options)) ASSERT_OK(status);
  const auto previous = BytesIn(Path("m"));
  ASSERT_OK(team.TrainTo(2));
  for (const char* point :
       {"checkpoint.begin", "save.created", "model-file.write", "model-file.sync",
        "model-file.publish", "file.write", "file.sync", "folder.sync", "checkpoint.rename"}) {
    // The first, and the last ones: the files are many.
    int hit = 1;
    while (true) {
      SCOPED_TRACE(absl::StrCat(point, " ", hit));
      Fault fault;
      fault.at_hit = hit;
      fault.status = absl::ResourceExhaustedError("no space left");
      ArmFaultPoint(point, fault);
      const std::vector<absl::Status> statuses = Save(&team, Path("m"), options);
      DisarmAllFaultPoints();
      if (statuses[0].ok()) break;
      for (const absl::Status& status : statuses)
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank")));
      ASSERT_EQ(BytesIn(Path("m")), previous);
      ASSERT_EQ(NamesIn(root_), std::set<std::string>{"m"});
      hit += hit < 4 ? 1 : 7;
    }
    EXPECT_GT(hit, 1) << "the point is on the way";
    ASSERT_NE(BytesIn(Path("m")), previous);
    // Back to the older one, for the next point.
    std::filesystem::remove_all(Path("m"));
    ASSERT_TRUE(std::filesystem::create_directory(Path("m")));
    for (const auto& [name, bytes] : previous)
      ASSERT_OK(WriteWholeFile(absl::StrCat(Path("m"), "/", name), bytes));
  }
}

TEST_F(SaveModelTest, WhatIsNoModelOrAsksForWhatThereIsNotIsRefused) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  const auto refused = [&](const std::string& path, const SaveOptions& options,
                           absl::StatusCode code, const std::string& why) {
    for (const absl::Status& status : Save(&team, path, options))
      EXPECT_THAT(status, StatusIs(code, HasSubstr(why)));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  SaveOptions negative, int64, fp64, files;
  negative.max_file_bytes = -1;
  int64.dtype = DType::kInt64;
  fp64.dtype = DType::kFp64;
  files.max_file_bytes = 1000;
  refused(Path("m"), negative, kInvalid, "max_file_bytes -1");
  refused(Path("m"), int64, kInvalid, "fp32, bf16 or fp16");
  refused(Path("m"), fp64, kInvalid, "fp32, bf16 or fp16");
  refused("m", files, kInvalid, "'m' is not an absolute path of a folder");
  ASSERT_TRUE(std::filesystem::create_directories(Path("photos/last-year")));
  refused(Path("photos"), files, absl::StatusCode::kFailedPrecondition, "is not replaced");
  EXPECT_TRUE(std::filesystem::exists(Path("photos/last-year")));
  int rank = 0;
  for (const absl::Status& status : team.Run([&](Session* session) {
         SaveOptions options;
         options.max_file_bytes = session->rank() == 0 ? 1000 : 2000;
         return SaveModel(session, Path("m"), options);
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("ranks 0 and 1 differ in max_file_bytes")))
        << rank++;
  }
  EXPECT_EQ(NamesIn(root_), std::set<std::string>{"photos"});
}

TEST_F(SaveModelTest, ValueTooLargeForTheDTypeIsEveryRanksErrorByName) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.RunAll([](Session* session) {
    return session->Initialize([](int unit, int parameter, absl::Span<float> values) {
      for (float& value : values) value = unit == 1 && parameter == 0 ? 7e4f : 1.0f;
    });
  }));
  SaveOptions options;
  options.dtype = DType::kFp16;
  for (const absl::Status& status : Save(&team, Path("m"), options)) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kOutOfRange,
                         AllOf(HasSubstr("tensor '"), HasSubstr("70000 is too large for fp16"))));
  }
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

}  // namespace
}  // namespace tessera
