#include "checkpoint/open_model.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class OpenModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/tessera-open-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  // A file of fp32 tensors of shape [2], whose elements are `first` and one more.
  void WriteFile(const std::string& name, const std::vector<std::string>& tensors, float first) {
    std::vector<TensorSpec> specs;
    for (const std::string& tensor : tensors) specs.push_back({tensor, {2}, DType::kFp32});
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(specs, {}));
    std::ofstream file(absl::StrCat(folder_, "/", name), std::ios::binary);
    file << EncodeHeader(header);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const float values[] = {first, first + 1};
      file.write(reinterpret_cast<const char*>(values), sizeof(values));
    }
  }
  void WriteText(const std::string& name, const std::string& text) {
    std::ofstream(absl::StrCat(folder_, "/", name)) << text;
  }
  void WriteShardedModel() {
    WriteFile("one", {"a", "b"}, 1);
    WriteFile("two", {"c"}, 3);
    WriteText(kModelIndexName, R"({"weight_map": {"a": "one", "b": "one", "c": "two"}})");
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  static std::vector<float> Read(const ModelSource& model, const std::string& tensor) {
    std::vector<float> values(2);
    EXPECT_OK(model.ReadSlice(tensor, 0, absl::MakeSpan(values)));
    return values;
  }

  std::string folder_;
};

TEST_F(OpenModelTest, FileIndexAndFolderAreOneKindOfModel) {
  WriteShardedModel();
  for (const std::string& path : {Path(kModelIndexName), folder_, folder_ + "/"}) {
    ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(path));
    EXPECT_EQ(model->tensors().size(), 3);
    EXPECT_THAT(Read(*model, "b"), ElementsAre(1, 2));
    EXPECT_THAT(Read(*model, "c"), ElementsAre(3, 4));
    std::vector<float> value(1);
    EXPECT_THAT(model->ReadSlice("d", 0, absl::MakeSpan(value)),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("'d'")));
    EXPECT_THAT(model->ReadSlice("c", 2, absl::MakeSpan(value)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'c'")));
  }
  ASSERT_OK_AND_ASSIGN(const auto one, OpenModel(Path("one")));
  EXPECT_EQ(one->tensors().size(), 2);
}

TEST_F(OpenModelTest, FolderWithOneFileIsThatFile) {
  WriteFile(kSingleFileName, {"a"}, 5);
  ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(folder_));
  EXPECT_THAT(Read(*model, "a"), ElementsAre(5, 6));
}

TEST_F(OpenModelTest, FolderWithNoModelOrTwoIsRefusedByName) {
  EXPECT_THAT(OpenModel(folder_), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr(folder_), HasSubstr("holds no model"))));
  WriteShardedModel();
  WriteFile(kSingleFileName, {"a"}, 5);
  EXPECT_THAT(OpenModel(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("more than one"), HasSubstr(kSingleFileName))));
  EXPECT_THAT(OpenModel("relative"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'relative'")));
  EXPECT_THAT(OpenModel(Path("none")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("none"))));
}

TEST_F(OpenModelTest, FolderOfPyTorchsDistributedCheckpointIsRefusedWithWhatReadsIt) {
  WriteText(".metadata", "a pickle");
  EXPECT_THAT(OpenModel(folder_),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr(folder_), HasSubstr("in Python by tessera.load_model"),
                             HasSubstr("dcp_to_torch_save"))));
  WriteFile(kSingleFileName, {"a"}, 5);
  EXPECT_THAT(OpenModel(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("more than one model"), HasSubstr(".metadata"))));
}

TEST_F(OpenModelTest, IndexWhoseFilesAreNotAsItSaysIsRefusedByName) {
  WriteShardedModel();
  WriteFile("two", {"d"}, 3);
  EXPECT_THAT(OpenModel(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(Path(kModelIndexName)), HasSubstr("'c' is not in 'two'"))));
  WriteFile("two", {"a", "c"}, 3);
  EXPECT_THAT(OpenModel(folder_), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("'a' is in 'one' and in 'two'")));
  WriteText("two", "no safetensors file");
  EXPECT_THAT(OpenModel(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(Path("two"))));
  ASSERT_EQ(remove(Path("two").c_str()), 0);
  EXPECT_THAT(OpenModel(folder_), StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("two"))));
}

TEST_F(OpenModelTest, AnotherStateOfAnyFileIsAnotherIdentity) {
  WriteShardedModel();
  const auto identity = [&] { return (*OpenModel(folder_))->identity(); };
  const uint64_t first = identity();
  EXPECT_EQ(identity(), first);
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, Path("two").c_str(), times, 0), 0);
  const uint64_t second = identity();
  EXPECT_NE(second, first);
  WriteText(kModelIndexName, R"({"weight_map": {"a": "one", "b": "one",  "c": "two"}})");
  EXPECT_NE(identity(), second);
}

// Dtypes that Tessera does not train in are listed, and refused only when read as values.
TEST_F(OpenModelTest, TensorsOfEveryTypeOfTheFormatAreListed) {
  const std::string json = R"({"f8":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                           R"("f4":{"dtype":"F4","shape":[2],"data_offsets":[3,4]},)"
                           R"("c":{"dtype":"C64","shape":[],"data_offsets":[4,12]}})";
  std::string size(8, '\0');
  size[0] = static_cast<char>(json.size());
  WriteText(kSingleFileName, size + json + std::string(12, '\0'));
  ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(folder_));
  EXPECT_EQ(model->tensors().at("f4").dtype, StoredDType::kF4);
  EXPECT_THAT(model->tensors().at("f8").shape, ElementsAre(3));
  for (const auto& [name, info] : model->tensors()) {
    std::vector<float> value(1);
    EXPECT_THAT(
        model->ReadSlice(name, 0, absl::MakeSpan(value)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat(Name(info.dtype)))));
  }
}

TEST_F(OpenModelTest, TensorsOfEveryTypeAreReadAsTheyAreStored) {
  const std::string json = R"({"f8":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                           R"("f4":{"dtype":"F4","shape":[4],"data_offsets":[3,5]}})";
  std::string size(8, '\0');
  size[0] = static_cast<char>(json.size());
  WriteText("one", size + json + "abcde");
  WriteText(kModelIndexName, R"({"weight_map": {"f4": "one", "f8": "one"}})");
  for (const std::string& path : {Path("one"), folder_}) {
    ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(path));
    std::string bytes(2, 'x');
    ASSERT_OK(model->ReadStored("f8", 1, 2, bytes.data()));
    EXPECT_EQ(bytes, "bc");
    ASSERT_OK(model->ReadStored("f4", 2, 2, bytes.data()));
    EXPECT_EQ(bytes, "ec");
    EXPECT_THAT(model->ReadStored("f4", 1, 2, bytes.data()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'f4'")));
    EXPECT_THAT(model->ReadStored("f8", 2, 2, bytes.data()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'f8'")));
    EXPECT_THAT(model->ReadStored("none", 0, 0, bytes.data()),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("'none'")));
  }
}

}  // namespace
}  // namespace tessera
