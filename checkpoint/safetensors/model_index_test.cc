#include "checkpoint/safetensors/model_index.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ModelIndexTest, EncodedIndexIsSortedAndIndentedAndDecodesToTheSame) {
  ModelIndex index;
  index.file_of = {{"b", "model-00002-of-00002.safetensors"},
                   {"a", "model-00001-of-00002.safetensors"}};
  index.total_size_bytes = 32;
  const std::string json = EncodeModelIndex(index);
  EXPECT_EQ(json,
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_size\": 32\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a\": \"model-00001-of-00002.safetensors\",\n"
            "    \"b\": \"model-00002-of-00002.safetensors\"\n"
            "  }\n"
            "}\n");
  ASSERT_OK_AND_ASSIGN(const ModelIndex decoded, DecodeModelIndex(json));
  EXPECT_EQ(decoded.file_of, index.file_of);
  EXPECT_EQ(decoded.total_size_bytes, 32);
  EXPECT_THAT(FilesOf(decoded),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
}

TEST(ModelIndexTest, MetadataOfAnyFormIsNoReasonToRefuse) {
  for (const std::string metadata :
       {"", R"("metadata": null,)", R"("metadata": {"total_size": 1.5e9},)",
        R"("metadata": {"total_size": -1, "total_parameters": 7},)"}) {
    ASSERT_OK_AND_ASSIGN(const ModelIndex index,
                         DecodeModelIndex("{" + metadata + R"("weight_map": {"a": "f"}})"));
    EXPECT_FALSE(index.total_size_bytes.has_value()) << metadata;
  }
}

TEST(ModelIndexTest, RefusesWhatIsNoIndexAndNamesTheTensor) {
  const struct {
    std::string json, message;
  } kCases[] = {
      {"", "no JSON object"},
      {"[]", "no JSON object"},
      {R"({"weight_map": {"a": "f"})", "no JSON object"},
      {R"({"metadata": {}})", "no weight_map"},
      {R"({"weight_map": ["a"]})", "no weight_map"},
      {R"({"weight_map": {}})", "has no tensor"},
      {R"({"weight_map": {"a": "f", "a": "g"}})", "'a': the key is there twice"},
      {R"({"weight_map": {"a": "f"}, "weight_map": {"a": "g"}})", "'weight_map': the key is there"},
      {R"({"weight_map": {"a": 1}})", "tensor 'a' is in 1"},
      {R"({"weight_map": {"a": ""}})", "tensor 'a' is in \"\""},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "tensor 'a' is in \"/etc/passwd\""},
      {R"({"weight_map": {"a": "../f"}})", "tensor 'a' is in \"../f\""},
      {R"({"weight_map": {"a": "b/../../f"}})", "tensor 'a'"},
      {R"({"weight_map": {"a": "b//f"}})", "tensor 'a'"},
      {R"({"weight_map": {"a": "./f"}})", "tensor 'a'"},
      {R"({"weight_map": {"a": "b/"}})", "tensor 'a'"},
      {R"({"weight_map": {"a": "f\u0000.x"}})", "tensor 'a'"},
      {R"({"x": )" + std::string(200, '[') + std::string(200, ']') + "}", "nested deeper"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(DecodeModelIndex(c.json),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)))
        << c.json;
  }
  EXPECT_OK(DecodeModelIndex(R"({"weight_map": {"a": "sub/f..x"}})").status());
}

TEST(ModelIndexTest, FilesThatDisagreeWithTheIndexAreNamed) {
  ASSERT_OK_AND_ASSIGN(const ModelIndex index,
                       DecodeModelIndex(R"({"weight_map": {"a": "f", "b": "g"}})"));
  const TensorTable a = {{"a", {}}}, b = {{"b", {}}}, both = {{"a", {}}, {"b", {}}};
  const TensorTable more = {{"b", {}}, {"c", {}}};
  EXPECT_OK(CheckAgainstFiles(index, {{"f", a}, {"g", b}}));
  EXPECT_THAT(CheckAgainstFiles(index, {{"f", a}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'g'")));
  EXPECT_THAT(CheckAgainstFiles(index, {{"f", b}, {"g", a}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a' is not in 'f'")));
  EXPECT_THAT(CheckAgainstFiles(index, {{"f", a}, {"g", both}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a' is in 'f' and in 'g'")));
  EXPECT_THAT(CheckAgainstFiles(index, {{"f", a}, {"g", more}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'c' of 'g' is not in it")));
}

std::vector<std::vector<std::string>> Split(const std::vector<std::pair<std::string, int64_t>>& t,
                                            int64_t max_bytes) {
  std::vector<std::vector<std::string>> split;
  const auto shards = SplitIntoShards(t, max_bytes);
  EXPECT_OK(shards.status());
  for (const ModelShard& shard : *shards) split.push_back(shard.tensors);
  return split;
}

TEST(SplitIntoShardsTest, FillsOneFileAfterTheOtherInOrder) {
  EXPECT_THAT(Split({{"a", 4}, {"b", 6}, {"c", 1}, {"d", 0}, {"e", 9}}, 10),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("c", "d", "e")));
  EXPECT_THAT(Split({{"a", 5}, {"b", 6}, {"c", 5}}, 10),
              ElementsAre(ElementsAre("a"), ElementsAre("b"), ElementsAre("c")));
}

TEST(SplitIntoShardsTest, TensorLargerThanTheLimitGetsAFileOfItsOwn) {
  EXPECT_THAT(Split({{"a", 3}, {"large", 11}, {"b", 3}, {"large2", 99}}, 10),
              ElementsAre(ElementsAre("large"), ElementsAre("large2"), ElementsAre("a", "b")));
}

TEST(SplitIntoShardsTest, FilesAreNumberedAndOneAloneHasTheModelsName) {
  ASSERT_OK_AND_ASSIGN(const auto two, SplitIntoShards({{"a", 9}, {"b", 9}}, 10));
  EXPECT_EQ(two[0].file, "model-00001-of-00002.safetensors");
  EXPECT_EQ(two[1].file, "model-00002-of-00002.safetensors");
  ASSERT_OK_AND_ASSIGN(const auto one, SplitIntoShards({{"a", 9}, {"b", 1}}, 10));
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0].file, "model.safetensors");
}

TEST(SplitIntoShardsTest, BadLimitSizeAndNameAreRefused) {
  EXPECT_THAT(SplitIntoShards({{"a", 1}}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 bytes")));
  EXPECT_THAT(SplitIntoShards({{"a", -1}}, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a'")));
  EXPECT_THAT(SplitIntoShards({{"a", 1}, {"a", 1}}, 9),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a'")));
}

}  // namespace
}  // namespace tessera
