#include "job/job_json.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = R"({"units": [{"name": "root", "parameters": [
    {"name": "w", "shape": [5, 8]},
    {"name": "tied", "shape": [5, 8], "shared_with": "w"},
    {"name": "b", "shape": [3], "dtype": "DTYPE_FP32", "requires_grad": false}]}],
  "buffers": [{"name": "count", "dtype": "I64", "shape": []}]})";

TEST(JobJsonTest, ParametersAreFp32AndTrainableWhereNothingIsSaid) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModelJson(kModel));
  const auto& parameters = model.units[0].parameters;
  EXPECT_EQ(parameters[0].dtype, DType::kFp32);
  EXPECT_TRUE(parameters[0].requires_grad);
  EXPECT_EQ(parameters[1].shared_with, "w");
  EXPECT_FALSE(parameters[2].requires_grad);
  EXPECT_EQ(model.buffers[0].dtype, StoredDType::kI64);
}

TEST(JobJsonTest, WhatAConfigLeavesOutHasItsDefault) {
  ASSERT_OK_AND_ASSIGN(const JobConfig config,
                       ParseJobConfigJson(R"({"world_size": 2, "gradient_slots": 0,
                             "optimizer": {"groups": [{"learning_rate": 0.5}, {"beta1": 0}]}})"));
  const JobConfig defaults;
  EXPECT_EQ(config.world_size, 2);
  EXPECT_EQ(config.gradient_slots, 0) << "0 is a value, not an absence";
  EXPECT_EQ(config.strategy, defaults.strategy);
  EXPECT_EQ(config.optimizer, defaults.optimizer);
  EXPECT_EQ(config.collective_timeout, defaults.collective_timeout);
  ASSERT_EQ(config.groups.size(), 2);
  EXPECT_EQ(config.groups[0].learning_rate, 0.5);
  EXPECT_EQ(config.groups[0].beta2, defaults.groups[0].beta2);
  EXPECT_EQ(config.groups[1].beta1, 0);
  EXPECT_EQ(config.groups[1].learning_rate, defaults.groups[0].learning_rate);
}

TEST(JobJsonTest, UnknownKeysAndWrongTypesAreNamed) {
  EXPECT_THAT(ParseJobConfigJson(R"({"learning_rate": 1})").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("learning_rate")));
  EXPECT_THAT(ParseJobConfigJson(R"({"world_size": "two"})").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world_size")));
  EXPECT_THAT(ParseModelJson(R"({"units": [{"nam": ""}]})").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nam")));
  EXPECT_THAT(ParseModelJson(R"({"units": [{"parameters": [{"dtype": "DTYPE_X"}]}]})").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("DTYPE_X")));
}

TEST(JobJsonTest, WhatIsNoJsonIsRefused) {
  for (const char* text : {"", "{", "[]", "1", "\xff", "{\"units\": \"\xff\"}", "null"}) {
    EXPECT_THAT(ParseModelJson(text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model")))
        << text;
    EXPECT_THAT(ParseJobConfigJson(text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("config")))
        << text;
  }
  EXPECT_THAT(ParseJobConfigJson(R"({"optimizer": 3})").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optimizer")));
}

TEST(JobJsonTest, LayoutSaysWhereEachParameterIs) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModelJson(kModel));
  JobConfig config;
  config.world_size = 2;
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(model, config));
  const auto json = nlohmann::json::parse(LayoutJson(layout));
  EXPECT_EQ(json["world_size"], 2);
  const auto& unit = json["units"][0];
  EXPECT_EQ(unit["num_shards"], 2);
  EXPECT_EQ(unit["size_elements"], 2 * unit["shard_elements"].get<int64_t>());
  EXPECT_EQ(unit["parameters"][0]["name"], "w");
  EXPECT_EQ(unit["parameters"][0]["offset_elements"], 0);
  EXPECT_EQ(unit["parameters"][1]["name"], "b");
  EXPECT_EQ(unit["parameters"][1]["offset_elements"], 40);
  EXPECT_EQ(unit["aliases"]["tied"], "w");
}

}  // namespace
}  // namespace tessera
