#include "job/job_config.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/field_limits.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

ParamGroup GroupNaming(const char* parameter) {
  ParamGroup group;
  group.parameter_names = {parameter};
  return group;
}

TEST(JobConfigTest, BuffersAreBoundedTogether) {
  ModelSpec model;
  model.units.push_back({"u", {{"w", {4}, DType::kFp32}}});
  model.buffers = {{"half", StoredDType::kI64, {kMaxBufferBytes / 16}},
                   {"other half", StoredDType::kU8, {kMaxBufferBytes / 2}}};
  EXPECT_OK(ValidateJobConfig(JobConfig(), model));
  model.buffers.push_back({"last", StoredDType::kBool, {}});
  EXPECT_THAT(ValidateJobConfig(JobConfig(), model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("buffer 'last'")));
}

TEST(JobConfigTest, TiedParameterIsInTheGroupOfItsFirstName) {
  ModelSpec model;
  model.units.push_back({"u", {{"w", {4}, DType::kFp32}, {"tied", {4}, DType::kFp32, true, "w"}}});
  JobConfig config;
  config.groups.push_back(GroupNaming("tied"));
  EXPECT_THAT(ValidateJobConfig(config, model),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("param group 1: 'tied' is another name of parameter 'w', which is "
                                 "in param group 0: name 'w' in param group 1")));
  config.groups.push_back(GroupNaming("w"));
  EXPECT_THAT(ValidateJobConfig(config, model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which is in param group 2")));
  config.groups.pop_back();
  config.groups[1].parameter_names = {"tied", "w"};
  EXPECT_OK(ValidateJobConfig(config, model));
}

TEST(JobConfigTest, EachBadFieldIsNamed) {
  ModelSpec model;
  model.units.push_back({"u", {{"w", {4}, DType::kFp32}}});
  const auto expect = [&](const JobConfig& config, const std::string& text) {
    EXPECT_THAT(ValidateJobConfig(config, model),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  JobConfig config;
  EXPECT_OK(ValidateJobConfig(config, model));
  config.world_size = 0;
  expect(config, "world_size is 0");
  config.world_size = kMaxLocalRanks;
  EXPECT_OK(ValidateJobConfig(config, model));
  config.world_size = kMaxLocalRanks + 1;
  expect(config, "world_size is 241");
  config = JobConfig();
  config.compute_dtype = DType::kFp64;
  expect(config, "compute_dtype fp64");
  config = JobConfig();
  config.groups[0].beta2 = 1.0;
  expect(config, "param group 0: beta2");
  config = JobConfig();
  config.groups.push_back(GroupNaming("nope"));
  expect(config, "'nope'");
  config = JobConfig();
  config.groups.push_back(GroupNaming("w"));
  config.groups.push_back(GroupNaming("w"));
  expect(config, "'w' is in two param groups");
  config = JobConfig();
  config.groups.resize(kMaxParamGroups + 1);
  expect(config, "65 param groups; at most 64");
  config = JobConfig();
  config.groups[0].parameter_names = {"w"};
  expect(config, "param group 0: is the default one");
  // HSDP-1, HSDP-2
  config = JobConfig();
  config.world_size = 4;
  config.strategy = Strategy::kHybridShard;
  expect(config, "HYBRID_SHARD needs a shard_group_size");
  config.shard_group_size = 3;
  expect(config, "divides world_size 4; it is 3");
  config.shard_group_size = 2;
  EXPECT_OK(ValidateJobConfig(config, model));
  config.strategy = Strategy::kFullShard;
  expect(config, "shard_group_size 2 where no unit is hybrid");
  model.units[0].strategy = Strategy::kHybridShardZero2;
  EXPECT_OK(ValidateJobConfig(config, model));
  config.shard_group_size = 0;
  expect(config, "HYBRID_SHARD_ZERO2 needs a shard_group_size");
  model.units[0].strategy.reset();
  config = JobConfig();
  config.world_size = 4;
  for (const int group : {-2, 1, 3, 4}) {
    config.reshard_group_size = group;
    expect(config, absl::StrCat("reshard_group_size ", group, " does not divide world_size 4"));
  }
  config.reshard_group_size = 2;
  EXPECT_OK(ValidateJobConfig(config, model));
  config.strategy = Strategy::kShardGradOp;
  expect(config, "reshard_group_size 2 where no unit is FULL_SHARD");
  config = JobConfig();
  config.max_gathered_units = 0;
  expect(config, "max_gathered_units");
  config = JobConfig();
  config.optimizer_in_backward = true;
  EXPECT_OK(ValidateJobConfig(config, model));
  config.max_gradient_norm = 1;
  expect(config, "optimizer_in_backward with max_gradient_norm");
  config = JobConfig();
  config.shard_check_interval_steps = -1;
  expect(config, "shard_check_interval_steps -1");
  config = JobConfig();
  config.max_gathered_bytes = -1;
  expect(config, "max_gathered_bytes -1");
  config = JobConfig();
  config.collective_timeout = absl::Milliseconds(9);
  expect(config, "collective_timeout");
  config = JobConfig();
  config.groups[0].beta1 = 1.5;
  expect(config, "param group 0: beta1");
  model.units[0].parameters[0].dtype = DType::kBf16;
  expect(JobConfig(), "'w' is bf16");
  model.units[0].parameters[0].dtype = DType::kFp64;
  EXPECT_OK(ValidateJobConfig(JobConfig(), model));
  model.units[0].parameters[0].dtype = DType::kFp32;
  model.units[0].reduce_dtype = DType::kFp64;
  expect(JobConfig(), "unit 'u': compute or reduce dtype fp64");
  model.units[0].reduce_dtype = DType::kFp16;
  EXPECT_OK(ValidateJobConfig(JobConfig(), model));
  model.units.resize(kMaxUnits + 1);
  expect(JobConfig(), "number of units is 16385");
}

}  // namespace
}  // namespace tessera
