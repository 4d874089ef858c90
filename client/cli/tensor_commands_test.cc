#include <stdlib.h>

#include <filesystem>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "client/cli/cli.h"
#include "client/cli/tensor_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Result {
  int exit_code = 0;
  std::string out, err;
};

Result Invoke(const std::vector<std::string>& args, bool is_terminal = false) {
  std::ostringstream out, err;
  Result result;
  result.exit_code = RunCli(args, {&out, &err, is_terminal});
  result.out = out.str();
  result.err = err.str();
  return result;
}

using Tensors = std::map<std::string, std::vector<float>>;

class TensorCommandsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/tessera-tensors-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // F32 tensors of one dimension, and an I64 that is called "count". Its header.
  SafetensorsHeader WriteModel(const std::string& path, const Tensors& tensors, int64_t count) {
    std::vector<TensorSpec> specs = {{"count", {}, DType::kInt64}};
    for (const auto& [name, values] : tensors)
      specs.push_back({name, {static_cast<int64_t>(values.size())}, DType::kFp32});
    const SafetensorsHeader header = *PlaceTensors(specs, {});
    EXPECT_OK(ModelFile::Create(path, header));
    absl::StatusOr<ModelFile> file = ModelFile::Open(path, header);
    EXPECT_OK(file);
    for (const auto& [name, values] : tensors) EXPECT_OK(file->WriteSlice(name, 0, values));
    EXPECT_OK(file->WriteBytes("count", {reinterpret_cast<const char*>(&count), sizeof(count)}));
    EXPECT_OK(ModelFile::Publish(path));
    return header;
  }

  // A checkpoint with a parameter, its moment and a trainer's bytes.
  std::string WriteCheckpoint(const std::string& name, float moment, const std::string& bytes) {
    const std::string path = Path(name), partial = PartialFolder(path);
    EXPECT_OK(BeginFolder(path, FolderKind::kCheckpoint));
    Manifest manifest;
    manifest.job_id = "gpt";
    manifest.world_size = 1;
    manifest.optimizer = "adamw";
    const auto add = [&](absl::string_view file_name, const Tensors& tensors) {
      const std::string file_path = absl::StrCat(partial, "/", file_name);
      const SafetensorsHeader header = WriteModel(file_path, tensors, 3);
      ManifestFile& file = manifest.files[std::string(file_name)];
      file.size_bytes = header.file_bytes;
      file.crc32 = Crc32(EncodeHeader(header));
      for (const auto& [tensor, stored] : header.tensors) file.tensors[tensor] = 0;
    };
    add(kModelFileName, {{"w", {1, 2}}});
    add(kOptimizerFileName, {{"state.w.exp_avg", {moment, 0}}});
    EXPECT_OK(WriteWholeFile(absl::StrCat(partial, "/", TrainerFileName(0)), bytes));
    manifest.files[TrainerFileName(0)] = {static_cast<int64_t>(bytes.size()), Crc32(bytes), {}};
    EXPECT_OK(PublishCheckpoint(path, manifest));
    return path;
  }

  std::string folder_;
};

TEST(TensorTextTest, PatternMeansTheWholeName) {
  const std::string name = "block.0.up/weight";
  for (const char* pattern :
       {"", "*", "*weight", "block.?.up*", "block.[01].*", "block.0.up/weight"})
    EXPECT_TRUE(MatchesPattern(pattern, name)) << pattern;
  for (const char* pattern : {"weight", "block", "*.bias", "block.?", "block.[12].*"})
    EXPECT_FALSE(MatchesPattern(pattern, name)) << pattern;
}

TEST_F(TensorCommandsTest, LsListsTensorsOfAModelInWhateverForm) {
  WriteModel(Path("one"), {{"a", {1, 2, 3}}}, 7);
  ASSERT_OK(
      WriteWholeFile(Path(kModelIndexName), R"({"weight_map": {"a": "one", "count": "one"}})"));
  for (const std::string& path : {Path("one"), Path(kModelIndexName), folder_}) {
    const Result result = Invoke({"ls", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out,
              "part   name   dtype  shape  size\n"
              "model  a      F32    [3]    12 B\n"
              "model  count  I64    []      8 B\n"
              "all: 2 tensors, 20 B\n");
  }
  EXPECT_THAT(Invoke({"ls", Path("none")}).err, HasSubstr("NOT_FOUND"));
}

TEST_F(TensorCommandsTest, LsListsTensorsOptimizerAndTrainersOfACheckpoint) {
  const std::string path = WriteCheckpoint("step", 0.5, "position 17");
  const Result result = Invoke({"ls", path + "/"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("optimizer  state.w.exp_avg    F32    [2]     8 B\n"),
                    HasSubstr("trainer    trainer-00000.bin  bytes  [11]   11 B\n"),
                    HasSubstr("model: 2 tensors, 16 B\n"), HasSubstr("trainer: 1 files"),
                    HasSubstr("all: 4 tensors, 1 files of bytes, 43 B\n")));
  const auto json = nlohmann::json::parse(Invoke({"ls", "--json", path}).out);
  EXPECT_EQ(json["bytes"], 43);
  ASSERT_EQ(json["tensors"].size(), 5);
  EXPECT_EQ(json["tensors"][1],
            (nlohmann::json{
                {"part", "model"}, {"name", "w"}, {"dtype", "F32"}, {"shape", {2}}, {"bytes", 8}}));
  EXPECT_TRUE(json["tensors"][4]["dtype"].is_null());
}

TEST_F(TensorCommandsTest, MatchTakesOnlySomeAndMustMeanAny) {
  WriteModel(Path("one"), {{"a", {1}}, {"b", {2}}}, 7);
  WriteModel(Path("two"), {{"a", {1}}, {"b", {3}}}, 8);
  EXPECT_THAT(Invoke({"ls", "--match", "[ab]", Path("one")}).out,
              AllOf(HasSubstr("all: 2 tensors, 8 B"), Not(HasSubstr("count"))));
  EXPECT_EQ(Invoke({"diff", "--match", "a*", Path("one"), Path("two")}).exit_code, 0);
  EXPECT_EQ(Invoke({"diff", "--match", "b*", Path("one"), Path("two")}).exit_code, 1);
  for (const Result& result : {Invoke({"ls", "--match", "c", Path("one")}),
                               Invoke({"diff", "--match", "c", Path("one"), Path("two")})}) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("no tensor's name matches 'c'"));
  }
}

TEST_F(TensorCommandsTest, DiffOfEqualModelsIsZeroAlsoWithNaN) {
  const Tensors tensors = {{"a", {1, std::numeric_limits<float>::quiet_NaN()}}};
  WriteModel(Path("one"), tensors, 7);
  WriteModel(Path("two"), tensors, 7);
  const Result result = Invoke({"diff", Path("one"), Path("two")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "equal: 2 of 2\n");
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(Invoke({"diff", Path("one"), Path("two")}, /*is_terminal=*/true).err,
              AllOf(HasSubstr("comparing: 50% of 16 B"), HasSubstr("100% of 16 B\n")));
}

TEST_F(TensorCommandsTest, DiffSaysWhatDiffersAndHow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  WriteModel(Path("one"), {{"a", {1, 2, 3}}, {"gone", {1}}, {"shape", {1}}}, 7);
  WriteModel(Path("two"), {{"a", {1, 2.5, nan}}, {"new", {1}}, {"shape", {1, 2}}}, 10);
  const Result result = Invoke({"diff", Path("one"), Path("two")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("values     in 2 of 3 elements, from 1 on, by up to 0.5, 1 of them NaN"),
            HasSubstr("values     in 1 of 1 elements, from 0 on, by up to 3\n"),
            HasSubstr("only in a  F32 [1]\n"), HasSubstr("only in b  F32 [1]\n"),
            HasSubstr("shape      [1], [2]\n"), HasSubstr("different: 5 of 5\n")));
  EXPECT_THAT(result.err, HasSubstr("differ in 5 of 5 tensors"));
  const auto json = nlohmann::json::parse(Invoke({"diff", "--json", Path("one"), Path("two")}).out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["compared"], 5);
  EXPECT_EQ(json["differences"][0]["differs"], "values");
  EXPECT_EQ(json["differences"][0]["different_elements"], 2);
  EXPECT_EQ(json["differences"][0]["non_finite_elements"], 1);
  EXPECT_EQ(json["differences"][0]["largest_difference"], 0.5);
  // What could not be compared is neither.
  const Result error = Invoke({"diff", Path("one"), Path("none")});
  EXPECT_EQ(error.exit_code, 1);
  EXPECT_EQ(error.out, "");
  EXPECT_THAT(error.err, HasSubstr("NOT_FOUND"));
}

TEST_F(TensorCommandsTest, DiffOfCheckpointsTakesInOptimizerAndTrainers) {
  const std::string one = WriteCheckpoint("one", 0.5, "position 17");
  const std::string two = WriteCheckpoint("two", 0.75, "position 18");
  EXPECT_EQ(Invoke({"diff", one, one}).exit_code, 0);
  const Result result = Invoke({"diff", one, two});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("by up to 0.25"),
                    HasSubstr("trainer-00000.bin  values   in 1 of 11 elements, from 10"),
                    HasSubstr("different: 2 of 5\n")));
  // A model file against a checkpoint: both have the parameters, only the checkpoint has the rest.
  const Result model = Invoke({"diff", one, absl::StrCat(two, "/", kModelFileName)});
  EXPECT_THAT(model.out, AllOf(HasSubstr("only in a"), HasSubstr("different: 3 of 5\n")));
}

}  // namespace
}  // namespace tessera::cli
