#include "client/cli/model_spec_json.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTied[] = R"({"comment": "ignored", "units": [
    {"name": "root", "parameters": [
        {"name": "embed", "shape": [4, 3], "dtype": "bfloat16", "requires_grad": false},
        {"name": "head", "shared_with": "embed"},
        {"name": "scale", "shape": [], "dtype": "bf16", "shared_with": null}]}]})";

TEST(ModelSpecJsonTest, ReadsUnitsParametersAndAliases) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModelSpecJson(kTied));
  ASSERT_EQ(model.units.size(), 1);
  EXPECT_EQ(model.units[0].name, "root");
  ASSERT_EQ(model.units[0].parameters.size(), 3);
  const TensorSpec& embed = model.units[0].parameters[0];
  EXPECT_THAT(embed.shape, ElementsAre(4, 3));
  EXPECT_EQ(embed.dtype, DType::kBf16);
  EXPECT_FALSE(embed.requires_grad);
  EXPECT_EQ(embed.shared_with, "");
  EXPECT_TRUE(model.units[0].parameters[2].shape.empty());
  EXPECT_TRUE(model.units[0].parameters[2].requires_grad);
}

TEST(ModelSpecJsonTest, AliasIsAsItsPrimaryWhereItSaysNothing) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModelSpecJson(kTied));
  const TensorSpec& head = model.units[0].parameters[1];
  EXPECT_EQ(head.name, "head");
  EXPECT_EQ(head.shared_with, "embed");
  EXPECT_THAT(head.shape, ElementsAre(4, 3));
  EXPECT_EQ(head.dtype, DType::kBf16);
  EXPECT_FALSE(head.requires_grad);
}

struct Refusal {
  const char* promise;
  const char* json;  // One parameter of unit "u", or a whole document where it starts with '!'.
  const char* fragment;
};

class ModelSpecJsonRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(ModelSpecJsonRefusalTest, ErrorSaysWhatAndWhere) {
  std::string text = GetParam().json;
  if (text[0] == '!') {
    text = text.substr(1);
  } else {
    text = absl::StrCat(R"({"units": [{"name": "u", "parameters": [)", text, "]}]}");
  }
  EXPECT_THAT(ParseModelSpecJson(text),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().fragment)));
}

const Refusal kRefusals[] = {
    {"NotJson", "!{\"units\": [,]}", "not JSON at byte 12"},
    {"Truncated", "!{\"units\": [", "not JSON at byte"},
    {"Empty", "!", "not JSON"},
    {"TrailingText", "!{\"units\": []} x", "not JSON"},
    {"InvalidUtf8", "!{\"units\": \"\xff\"}", "not JSON"},
    {"NoObject", "![]", "not a JSON object"},
    {"NoUnits", "!{}", "\"units\" is missing"},
    {"UnitsNoArray", "!{\"units\": {}}", "\"units\" is not an array"},
    {"EmptyUnits", "!{\"units\": []}", "the model has no unit"},
    {"UnitNoObject", "!{\"units\": [3]}", "unit 0: is not an object"},
    {"UnitUnnamed", "!{\"units\": [{\"parameters\": []}]}", "unit 0: \"name\" is missing"},
    {"UnitWithoutParameters", "!{\"units\": [{\"name\": \"u\"}]}",
     "unit \"u\": \"parameters\" is missing"},
    {"UnitParametersNoArray", "!{\"units\": [{\"name\": \"u\", \"parameters\": 1}]}",
     "unit \"u\": \"parameters\" is not an array"},
    {"UnitUnknownKey", "!{\"units\": [{\"name\": \"u\", \"params\": [], \"parameters\": []}]}",
     "unit \"u\": unknown key \"params\""},
    {"NoParameters", "", "unit \"u\": has no parameters"},
    {"ParameterNoObject", "[]", "unit \"u\", parameter 0: is not an object"},
    {"ParameterUnnamed", R"({"shape": [1]})", "unit \"u\", parameter 0: \"name\" is missing"},
    {"ParameterNameNoString", R"({"name": 7})", "parameter 0: \"name\" is not a string"},
    {"ShapeMissing", R"({"name": "w", "dtype": "fp32"})",
     "unit \"u\", parameter \"w\": \"shape\" is missing"},
    {"ShapeNoArray", R"({"name": "w", "shape": 4, "dtype": "fp32"})",
     "unit \"u\", parameter \"w\": \"shape\" is not an array"},
    {"ShapeFractional", R"({"name": "w", "shape": [1.5], "dtype": "fp32"})", "non-integer"},
    {"ShapeTooLarge", R"({"name": "w", "shape": [9223372036854775808], "dtype": "fp32"})",
     "int64 cannot"},
    {"ShapeNegative", R"({"name": "w", "shape": [-1], "dtype": "fp32"})",
     "unit \"u\": parameter \"w\": negative dimension"},
    {"DTypeMissing", R"({"name": "w", "shape": [1]})", "parameter \"w\": \"dtype\" is missing"},
    {"DTypeUnknown", R"({"name": "w", "shape": [1], "dtype": "fp8"})",
     "unit \"u\", parameter \"w\": unknown dtype \"fp8\""},
    {"DTypeInteger", R"({"name": "w", "shape": [1], "dtype": "int64"})",
     "parameter \"w\": integer dtype int64"},
    {"RequiresGradNoBoolean", R"({"name": "w", "shape": [1], "dtype": "fp32", "requires_grad": 1})",
     "parameter \"w\": \"requires_grad\""},
    {"SharedWithNoString", R"({"name": "w", "shared_with": 1})", "\"shared_with\" is not a string"},
    {"SharedWithNobody", R"({"name": "w", "shared_with": "v"})",
     "parameter \"w\": shared with \"v\", which is not an earlier primary"},
    {"UnknownKey", R"({"name": "w", "shape": [1], "dtype": "fp32", "requires-grad": true})",
     "parameter \"w\": unknown key \"requires-grad\""},
};

INSTANTIATE_TEST_SUITE_P(All, ModelSpecJsonRefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.promise); });

TEST(ModelSpecJsonTest, DeepNestingIsRefusedAndDoesNotOverflowTheStack) {
  EXPECT_THAT(ParseModelSpecJson(std::string(1 << 20, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not JSON")));
  const std::string closed = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  EXPECT_THAT(ParseModelSpecJson(closed),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")));
}

TEST(ModelSpecFileTest, ErrorsNameTheFile) {
  EXPECT_THAT(ReadModelSpecFile("/nonexistent/spec.json"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/spec.json")));
  const std::string path = testing::TempDir() + "/broken.json";
  std::ofstream(path) << "{";
  EXPECT_THAT(ReadModelSpecFile(path),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("broken.json"), HasSubstr("not JSON"))));
  EXPECT_FALSE(ReadModelSpecFile(testing::TempDir()).ok());  // A folder.
}

}  // namespace
}  // namespace tessera::cli
