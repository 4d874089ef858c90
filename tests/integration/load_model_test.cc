// Models that are read from files, through a real coordinator, worker, executors (threads) and
// sessions.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/model_index.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

class LoadModelTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 32;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  absl::StatusOr<TrainerTeam> OpenTeam(int world_size, Strategy strategy = Strategy::kFullShard) {
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size);
    options.config.strategy = strategy;
    return TrainerTeam::Open(options);
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(testing::TempDir(), "/", name, ".safetensors");
  }
  static std::vector<float> Values(TrainerTeam* team) {
    std::vector<float> values;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<float> all, ReadAll(session));
      if (session->rank() == 0) values = all;
      return absl::OkStatus();
    }));
    return values;
  }
  // One file with these tensors of zeroes.
  static void Write(const std::string& path, const std::vector<TensorSpec>& tensors) {
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(tensors, {}));
    ASSERT_OK(ModelFile::Create(path, header));
    ASSERT_OK(ModelFile::Publish(path));
  }
  std::unique_ptr<LocalCluster> cluster_;
  int num_jobs_ = 0;
};

std::vector<TensorSpec> TensorsOf(const ModelSpec& model) {
  std::vector<TensorSpec> tensors;
  for (const UnitSpec& unit : model.units)
    tensors.insert(tensors.end(), unit.parameters.begin(), unit.parameters.end());
  return tensors;
}

TEST_F(LoadModelTest, GoesFromAnyWorldToAnyOtherToTheBit) {
  struct World {
    int size;
    Strategy strategy;
  };
  std::vector<float> expected;
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(8));
    ASSERT_OK(team.TrainTo(3));
    expected = Values(&team);
    ASSERT_OK(team.RunAll([&](Session* session) { return session->Save(Path("8")); }));
  }
  std::string from = Path("8");
  for (const World& world : {World{3, Strategy::kShardGradOp}, World{5, Strategy::kNoShard},
                             World{1, Strategy::kFullShard}, World{8, Strategy::kFullShard}}) {
    SCOPED_TRACE(world.size);
    const std::string to = Path(absl::StrCat("after", world.size));
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(world.size, world.strategy));
    ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
      EXPECT_FALSE(session->initialized());
      ASSIGN_OR_RETURN(const LoadReport report, LoadModel(session, from));
      EXPECT_TRUE(session->initialized());
      EXPECT_THAT(report.missing, IsEmpty());
      EXPECT_EQ(session->next_step(), 1);
      return session->Save(to);
    }));
    EXPECT_EQ(Values(&team), expected);
    from = to;
  }
  ASSERT_OK_AND_ASSIGN(const auto first, ReadModelFile(Path("8")));
  ASSERT_OK_AND_ASSIGN(const auto last, ReadModelFile(Path("after8")));
  ASSERT_EQ(first.size(), last.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].values, last[i].values);
}

// As a write: the moments of three steps are there, so the fourth is not what it would be in a job
// that began with these values.
TEST_F(LoadModelTest, InAJobThatTrainsItReplacesTheParametersAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(team.RunAll([&](Session* session) { return session->Save(Path("two")); }));
  const std::vector<float> two = Values(&team);
  ASSERT_OK(team.TrainTo(3));
  EXPECT_NE(Values(&team), two);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    const int64_t writes = session->num_writes();
    RETURN_IF_ERROR(LoadModel(session, Path("two")).status());
    EXPECT_EQ(session->num_writes(), writes + 1);
    EXPECT_EQ(session->next_step(), 4);
    return absl::OkStatus();
  }));
  EXPECT_EQ(Values(&team), two);
  ASSERT_OK(team.RunAll([](Session* session) { return ToyStep(session, 4); }));
  const std::vector<float> with_moments = Values(&team);
  ASSERT_OK_AND_ASSIGN(TrainerTeam fresh, OpenTeam(3));
  ASSERT_OK(fresh.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadModel(session, Path("two")).status());
    return ToyStep(session, 4);
  }));
  EXPECT_NE(Values(&fresh), with_moments);
}

TEST_F(LoadModelTest, WhatDoesNotFitIsRefusedOnEveryRankAndChangesNothing) {
  std::vector<TensorSpec> tensors = TensorsOf(ToyModel(3));
  const std::string name = tensors[1].name;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<float> before = Values(&team);
  const auto refused = [&](const std::string& path, absl::StatusCode code,
                           const std::string& text) {
    for (const absl::Status& status :
         team.Run([&](Session* session) { return LoadModel(session, path).status(); }))
      EXPECT_THAT(status, StatusIs(code, HasSubstr(text))) << path;
    EXPECT_EQ(Values(&team), before);
    EXPECT_EQ(team.session(0)->num_writes(), 0);
  };
  tensors.erase(tensors.begin() + 1);
  tensors.push_back({"stranger", {2}, DType::kFp32});
  Write(Path("other"), tensors);
  refused(Path("other"), absl::StatusCode::kInvalidArgument,
          absl::StrCat("it lacks '", name, "'; the model lacks 'stranger'"));
  tensors = TensorsOf(ToyModel(3));
  tensors[1].shape.push_back(2);
  Write(Path("shape"), tensors);
  refused(Path("shape"), absl::StatusCode::kInvalidArgument, absl::StrCat("tensor '", name, "'"));
  refused(Path("none"), absl::StatusCode::kNotFound, Path("none"));
  refused("relative", absl::StatusCode::kInvalidArgument, "'relative' is not an absolute path");
  refused("gs://bucket/m", absl::StatusCode::kInvalidArgument, "there is no storage for gs://");
  refused(testing::TempDir(), absl::StatusCode::kInvalidArgument, "holds no model");
  std::ofstream(Path("text")) << "no safetensors file";
  refused(Path("text"), absl::StatusCode::kInvalidArgument, Path("text"));
  Write(Path("cut"), TensorsOf(ToyModel(3)));
  ASSERT_EQ(truncate(Path("cut").c_str(), 900), 0);
  refused(Path("cut"), absl::StatusCode::kInvalidArgument, Path("cut"));
  ASSERT_OK(team.TrainTo(3));
}

TEST_F(LoadModelTest, NotStrictlyWhatIsMissingStaysAndIsReported) {
  std::vector<TensorSpec> tensors = TensorsOf(ToyModel(3));
  const std::string name = tensors[0].name;
  const int64_t kept = *Numel(tensors[0]);
  tensors.erase(tensors.begin());
  tensors.push_back({"stranger", {2}, DType::kFp32});
  Write(Path("partial"), tensors);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  LoadOptions options;
  options.strict = false;
  for (const absl::Status& status : team.Run(
           [&](Session* session) { return LoadModel(session, Path("partial"), options).status(); }))
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)))
        << "there is no value yet that could stay";
  ASSERT_OK(team.TrainTo(1));
  std::vector<float> expected = Values(&team);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const LoadReport report, LoadModel(session, Path("partial"), options));
    EXPECT_THAT(report.missing, ElementsAre(name));
    EXPECT_THAT(report.unexpected, ElementsAre("stranger"));
    return absl::OkStatus();
  }));
  std::fill(expected.begin() + kept, expected.end(), 0.0f);
  EXPECT_EQ(Values(&team), expected);
}

TEST_F(LoadModelTest, ReportNamesAllHoweverManyThereAre) {
  std::vector<TensorSpec> tensors = TensorsOf(ToyModel(3));
  for (int i = 1000; i < 9000; ++i)
    tensors.push_back({absl::StrCat("stranger", i), {1}, DType::kFp32});
  Write(Path("many"), tensors);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  LoadOptions options;
  options.strict = false;
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const LoadReport report, LoadModel(session, Path("many"), options));
    EXPECT_EQ(report.unexpected.size(), 8000) << "longer than one piece of a reply";
    EXPECT_EQ(report.unexpected[0], "stranger1000");
    return absl::OkStatus();
  }));
}

// Each rank names a file of its own, of another time.
TEST_F(LoadModelTest, RanksThatSeeDifferentFilesAreTold) {
  Write(Path("of0"), TensorsOf(ToyModel(3)));
  Write(Path("of1"), TensorsOf(ToyModel(3)));
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, Path("of1").c_str(), times, 0), 0);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  for (const absl::Status& status : team.Run([&](Session* session) {
         return LoadModel(session, Path(absl::StrCat("of", session->rank()))).status();
       }))
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("ranks 0 and 1 see different files")));
}

// As others write a large model: several files and an index.
TEST_F(LoadModelTest, ModelInSeveralFilesIsReadThroughItsIndex) {
  std::vector<float> expected;
  std::string path = testing::TempDir() + "/tessera-index-XXXXXX";
  const std::string folder = mkdtemp(path.data());
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
    ASSERT_OK(team.TrainTo(2));
    expected = Values(&team);
    ASSERT_OK(team.RunAll([&](Session* session) { return session->Save(Path("whole")); }));
  }
  ASSERT_OK_AND_ASSIGN(const auto tensors, ReadModelFile(Path("whole")));
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const LoadedTensor& tensor : tensors)
    sizes.emplace_back(tensor.stored.name, tensor.stored.end_bytes - tensor.stored.begin_bytes);
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelShard> shards, SplitIntoShards(sizes, 100));
  ASSERT_GT(shards.size(), 2);
  ModelIndex index;
  for (const ModelShard& shard : shards) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : shard.tensors) index.file_of[name] = shard.file;
    for (const LoadedTensor& tensor : tensors) {
      if (index.file_of[tensor.stored.name] == shard.file)
        specs.push_back({tensor.stored.name, tensor.stored.shape, DType::kFp32});
    }
    const std::string file_path = absl::StrCat(folder, "/", shard.file);
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(specs, {}));
    ASSERT_OK(ModelFile::Create(file_path, header));
    ASSERT_OK_AND_ASSIGN(ModelFile file, ModelFile::Open(file_path, header));
    for (const LoadedTensor& tensor : tensors) {
      if (header.tensors.count(tensor.stored.name) > 0) {
        ASSERT_OK(file.WriteSlice(tensor.stored.name, 0, tensor.values));
      }
    }
    ASSERT_OK(ModelFile::Publish(file_path));
  }
  std::ofstream(absl::StrCat(folder, "/", kModelIndexName)) << EncodeModelIndex(index);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(5));
  ASSERT_OK(team.RunAll([&](Session* session) { return LoadModel(session, folder).status(); }));
  EXPECT_EQ(Values(&team), expected);
}

TEST_F(LoadModelTest, ValuesInLowPrecisionAreWidened) {
  const std::vector<TensorSpec> tensors = TensorsOf(ToyModel(3));
  std::vector<TensorSpec> stored = tensors;
  for (TensorSpec& tensor : stored) tensor.dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(stored, {}));
  {
    std::ofstream file(Path("bf16"), std::ios::binary);
    file << EncodeHeader(header);
    for (int64_t at = 0; at < header.file_bytes - header.data_offset_bytes; at += 2)
      file.write("\xc0\x3f", 2);  // 1.5
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(
      team.RunAll([&](Session* session) { return LoadModel(session, Path("bf16")).status(); }));
  for (const float value : Values(&team)) EXPECT_EQ(value, 1.5f);
}

}  // namespace
}  // namespace tessera
