#include "client/dashboard/unit_memory.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "job/job_codec.h"
#include "nlohmann/json.hpp"

namespace tessera::dashboard {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

UnitSpec UnitOf(const std::string& name, int64_t numel, DType dtype = DType::kFp32) {
  UnitSpec unit;
  unit.name = name;
  unit.parameters = {{absl::StrCat(name, ".weight"), {numel}, dtype}};
  return unit;
}

v1::Job JobOf(const std::vector<UnitSpec>& units, int world_size = 2) {
  JobConfig config;
  config.world_size = world_size;
  v1::Job job;
  job.set_job_id("gpt");
  job.set_generation(7);
  *job.mutable_model() = EncodeModel({units, {}});
  *job.mutable_config() = EncodeJobConfig(config);
  return job;
}

Json Parsed(const v1::Job& job, size_t max_units = 10) {
  const absl::StatusOr<std::string> text = UnitMemoryJson(job, max_units);
  EXPECT_OK(text);
  return text.ok() ? Json::parse(*text, nullptr, /*allow_exceptions=*/false) : Json();
}

TEST(UnitMemoryTest, BytesAreOfOneRanksShardWithPadding) {
  // 101 elements of 2 ranks: shards begin on 128 bytes, so each has 64 elements.
  const Json json = Parsed(JobOf({UnitOf("root", 101)}));
  const Json unit = {{"name", "root"},        {"dtype", "fp32"},        {"strategy", "FULL_SHARD"},
                     {"num_elements", 101},   {"parameter_bytes", 256}, {"gradient_bytes", 256},
                     {"optimizer_bytes", 512}};
  EXPECT_EQ(json["units"], Json::array({unit}));
  EXPECT_EQ(json["job_id"], "gpt");
  EXPECT_EQ(json["generation"], 7);
}

TEST(UnitMemoryTest, UnitsOfDoublesAndUnitsThatAreNotShardedTakeMore) {
  UnitSpec whole = UnitOf("whole", 64);
  whole.strategy = Strategy::kNoShard;
  const Json json = Parsed(JobOf({UnitOf("root", 64), UnitOf("fp64", 64, DType::kFp64), whole}));
  EXPECT_EQ(json["units"][0]["name"], "fp64") << "of equal ones the first of the model";
  EXPECT_EQ(json["units"][0]["dtype"], "fp64");
  EXPECT_EQ(json["units"][0]["parameter_bytes"], 256);
  EXPECT_EQ(json["units"][1]["name"], "whole");
  EXPECT_EQ(json["units"][1]["parameter_bytes"], 256);
  EXPECT_EQ(json["units"][2]["parameter_bytes"], 128);
  EXPECT_EQ(json["total"]["parameter_bytes"], 640);
}

TEST(UnitMemoryTest, OptimizerDecidesHowMuchItsStateTakes) {
  v1::Job job = JobOf({UnitOf("root", 64)});
  v1::OptimizerConfig& optimizer = *job.mutable_config()->mutable_optimizer();
  optimizer.set_kind(v1::OPTIMIZER_KIND_SGD);
  EXPECT_EQ(Parsed(job)["total"]["optimizer_bytes"], 0);
  // One group with momentum is enough: all share the array.
  v1::ParamGroup& other = *optimizer.add_groups();
  other = optimizer.groups(0);
  other.add_parameter_names("root.weight");
  other.set_momentum(0.9);
  EXPECT_EQ(Parsed(job)["total"]["optimizer_bytes"], 128);
}

TEST(UnitMemoryTest, LargestUnitsAreShownAndAllOfThemAreCounted) {
  std::vector<UnitSpec> units;
  for (int i = 0; i < 3000; ++i)
    units.push_back(UnitOf(absl::StrCat("blocks.", i), 64 + i % 7 * 64));
  const std::string text = *UnitMemoryJson(JobOf(units), 5);
  EXPECT_LT(text.size(), 2000);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["num_units"], 3000);
  ASSERT_EQ(json["units"].size(), 5);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(json["units"][i]["name"], absl::StrCat("blocks.", 6 + 7 * i));
  int64_t all = 0;
  for (int i = 0; i < 3000; ++i) all += 64 + i % 7 * 64;
  EXPECT_EQ(json["total"]["num_elements"], all);
  EXPECT_EQ(json["total"]["parameter_bytes"], all * 4 / 2);
}

TEST(UnitMemoryTest, ModelThatNoCoordinatorWouldSendIsAnError) {
  v1::Job job = JobOf({UnitOf("root", 64)});
  job.mutable_model()->mutable_units(0)->mutable_parameters(0)->mutable_shape()->Set(0, -1);
  EXPECT_THAT(UnitMemoryJson(job, 5),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("root")));
  job = JobOf({UnitOf("root", 64)});
  job.mutable_config()->set_world_size(0);
  EXPECT_THAT(UnitMemoryJson(job, 5), StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(UnitMemoryJson(v1::Job(), 5),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

}  // namespace
}  // namespace tessera::dashboard
