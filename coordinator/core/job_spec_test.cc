#include "coordinator/core/job_spec.h"

#include <limits>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TensorSpec Parameter(const std::string& name, DType dtype = DType::kFp32) {
  TensorSpec spec;
  spec.name = name;
  spec.shape = {4, 2};
  spec.dtype = dtype;
  return spec;
}

ModelSpec TwoUnits() {
  return {
      {{"root", {Parameter("root.w")}}, {"block", {Parameter("block.a"), Parameter("block.b")}}}};
}

JobConfig Config() {
  JobConfig config;
  config.world_size = 2;
  config.groups.resize(1);
  return config;
}

TEST(JobSpecTest, GoodSpecHasADigest) {
  ASSERT_OK_AND_ASSIGN(const JobSpecPtr spec, MakeJobSpec(TwoUnits(), Config(), 1));
  EXPECT_NE(spec->layout_digest, 0);
  EXPECT_EQ(spec->submitting_rank, 1);
  EXPECT_OK(CompareJobSpecs(*spec, *spec));
}

TEST(JobSpecTest, BadModelsAreRefusedByName) {
  ModelSpec integers = TwoUnits();
  for (TensorSpec& parameter : integers.units[1].parameters) parameter.dtype = DType::kInt64;
  EXPECT_THAT(MakeJobSpec(integers, Config(), 0),
              StatusIs(kInvalid, AllOf(HasSubstr("block"), HasSubstr("int64"))));

  ModelSpec mixed = TwoUnits();
  mixed.units[1].parameters[1].dtype = DType::kBf16;
  EXPECT_THAT(MakeJobSpec(mixed, Config(), 0), StatusIs(kInvalid, HasSubstr("block.b")));

  ModelSpec empty_unit = TwoUnits();
  empty_unit.units.push_back({"hollow", {}});
  EXPECT_THAT(MakeJobSpec(empty_unit, Config(), 0), StatusIs(kInvalid, HasSubstr("hollow")));

  ModelSpec twice = TwoUnits();
  twice.units[1].parameters[0].name = "root.w";
  EXPECT_THAT(MakeJobSpec(twice, Config(), 0), StatusIs(kInvalid, HasSubstr("root.w")));

  ModelSpec halves = TwoUnits();
  for (TensorSpec& parameter : halves.units[1].parameters) parameter.dtype = DType::kBf16;
  EXPECT_THAT(MakeJobSpec(halves, Config(), 0), StatusIs(kInvalid, HasSubstr("block.a")));

  ModelSpec overflow = TwoUnits();
  overflow.units[1].parameters[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(MakeJobSpec(overflow, Config(), 0), StatusIs(kInvalid, HasSubstr("block.a")));
}

TEST(JobSpecTest, BadConfigsAreRefusedByField) {
  const auto refused = [](auto change, const char* field) {
    JobConfig config = Config();
    change(&config);
    EXPECT_THAT(MakeJobSpec(TwoUnits(), config, 0), StatusIs(kInvalid, HasSubstr(field)));
  };
  refused([](JobConfig* c) { c->world_size = 0; }, "world_size");
  refused([](JobConfig* c) { c->world_size = kMaxLocalRanks + 1; }, "world_size is 241");
  refused([](JobConfig* c) { c->max_gathered_units = 0; }, "max_gathered_units");
  refused([](JobConfig* c) { c->collective_timeout = absl::Milliseconds(9); },
          "collective_timeout");
  refused([](JobConfig* c) { c->groups.resize(kMaxParamGroups + 1); }, "65 param groups");
  refused([](JobConfig* c) { c->groups[0].beta2 = 1.0; }, "beta2");
  refused([](JobConfig* c) { c->compute_dtype = DType::kFp64; }, "compute_dtype");
  refused([](JobConfig* c) { c->compute_dtype = DType::kInt32; }, "compute_dtype");
  refused([](JobConfig* c) { c->reduce_dtype = DType::kInt64; }, "reduce_dtype");
  refused([](JobConfig* c) { c->max_gradient_norm = -1; }, "max_gradient_norm");
  refused([](JobConfig* c) { c->gradient_norm_p = 0; }, "gradient_norm_p");
  refused([](JobConfig* c) { c->groups[0].beta1 = std::numeric_limits<double>::quiet_NaN(); },
          "beta1");
  refused([](JobConfig* c) { c->groups.push_back({{}, {"ghost"}}); }, "ghost");
  refused([](JobConfig* c) { c->groups.push_back({}); }, "param group 1");
  refused(
      [](JobConfig* c) {
        c->groups.push_back({{}, {"root.w"}});
        c->groups.push_back({{}, {"root.w"}});
      },
      "root.w");
}

TEST(JobSpecTest, DifferenceNamesBothRanksAndTheParameter) {
  ModelSpec other = TwoUnits();
  other.units[1].parameters[1].shape = {4, 3};
  const JobSpecPtr a = *MakeJobSpec(TwoUnits(), Config(), 0);
  const JobSpecPtr b = *MakeJobSpec(other, Config(), 3);
  EXPECT_THAT(
      CompareJobSpecs(*a, *b),
      StatusIs(kInvalid, AllOf(HasSubstr("rank 0"), HasSubstr("rank 3"), HasSubstr("block.b"))));
}

TEST(JobSpecTest, DifferenceNamesBothRanksAndTheField) {
  JobConfig other = Config();
  other.world_size = 4;
  const JobSpecPtr a = *MakeJobSpec(TwoUnits(), Config(), 0);
  const JobSpecPtr b = *MakeJobSpec(TwoUnits(), other, -1);
  EXPECT_THAT(
      CompareJobSpecs(*a, *b),
      StatusIs(kInvalid,
               HasSubstr("world_size differs: the job (made by rank 0) has 2, the caller 4")));
  EXPECT_THAT(CompareJobSpecs(*a, **MakeJobSpec(TwoUnits(), other, 0)),
              StatusIs(kInvalid, HasSubstr("(made by rank 0) has 2, this trainer (rank 0) 4")));
  other = Config();
  other.max_gathered_bytes = 9;
  EXPECT_THAT(CompareJobSpecs(*a, **MakeJobSpec(TwoUnits(), other, 1)),
              StatusIs(kInvalid, HasSubstr("max_gathered_bytes differs")));
  other = Config();
  other.backward_prefetch = BackwardPrefetch::kPost;
  EXPECT_THAT(CompareJobSpecs(*a, **MakeJobSpec(TwoUnits(), other, 1)),
              StatusIs(kInvalid, HasSubstr("backward_prefetch differs")));
  other = Config();
  other.groups[0].weight_decay = 0.5;
  EXPECT_THAT(CompareJobSpecs(*a, **MakeJobSpec(TwoUnits(), other, 1)),
              StatusIs(kInvalid, AllOf(HasSubstr("param group 0"), HasSubstr("decay 0.5"))));
}

TEST(JobSpecTest, TrainersMayWantToWaitForOthersLongerThanTheOneThatMadeTheJob) {
  JobConfig other = Config();
  other.collective_timeout = absl::Hours(1);
  EXPECT_OK(
      CompareJobSpecs(**MakeJobSpec(TwoUnits(), Config(), 0), **MakeJobSpec(TwoUnits(), other, 1)));
}

}  // namespace
}  // namespace tessera::coordinator
