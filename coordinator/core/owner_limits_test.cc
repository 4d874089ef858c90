#include "coordinator/core/owner_limits.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

JobSpecPtr Spec(int num_parameters) {
  ModelSpec model;
  model.units.push_back({"root", {}});
  for (int i = 0; i < num_parameters; ++i)
    model.units[0].parameters.push_back({absl::StrCat("w", i), {8, 4}});
  return *MakeJobSpec(model, JobConfig(), -1);
}

class OwnerLimitsTest : public ::testing::Test {
 protected:
  void Add(const std::string& owner) {
    Job job;
    job.spec = Spec(10);
    job.spec_bytes = SizeBytes(*job.spec);
    job.owner = owner;
    jobs_.emplace(absl::StrCat("job", jobs_.size()), job);
  }
  absl::Status Check(const std::string& owner, bool by_operator = false) {
    CreateJobEvent event{"r", JobId("next"), Spec(10), owner};
    event.by_operator = by_operator;
    return limits_.Create(options_, jobs_, event, now_);
  }

  const int64_t spec_bytes_ = SizeBytes(*Spec(10));
  CoordinatorOptions options_;
  std::map<JobId, Job> jobs_;
  OwnerLimits limits_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(OwnerLimitsTest, OwnerOfTooManyJobsIsNamedAndOthersCreateTheirs) {
  options_.max_jobs_of_owner = 2;
  Add("uid:1");
  ASSERT_OK(Check("uid:1"));
  Add("uid:1");
  EXPECT_THAT(Check("uid:1"),
              StatusIs(kExhausted, AllOf(HasSubstr("'uid:1' has 2 jobs, and may have 2"),
                                         HasSubstr("--max-jobs-of-owner"))));
  EXPECT_OK(Check("uid:2"));
  EXPECT_OK(Check("uid:1", /*by_operator=*/true));
}

TEST_F(OwnerLimitsTest, ModelsOfOneOwnerTakeNoMoreThanHeMayHave) {
  options_.max_model_bytes_of_owner = 2 * spec_bytes_;
  Add("uid:1");
  ASSERT_OK(Check("uid:1"));
  now_ += absl::Minutes(1);
  Add("uid:1");
  EXPECT_THAT(Check("uid:1"),
              StatusIs(kExhausted, AllOf(HasSubstr("the model of job 'next' takes"),
                                         HasSubstr(absl::StrCat("take ", 2 * spec_bytes_)),
                                         HasSubstr("--max-model-bytes-of-owner"))));
  EXPECT_OK(Check("uid:2"));
  EXPECT_OK(Check("uid:1", /*by_operator=*/true));
}

TEST_F(OwnerLimitsTest, ModelsOfAllOwnersTakeNoMoreThanAllMayHave) {
  options_.max_model_bytes = 2 * spec_bytes_;
  Add("uid:1");
  Add("uid:2");
  EXPECT_THAT(Check("uid:3"), StatusIs(kExhausted, HasSubstr("--max-model-bytes)")));
  EXPECT_OK(Check("uid:3", /*by_operator=*/true));
}

TEST_F(OwnerLimitsTest, ModelsThatAreDeletedAtOnceCountForAMinute) {
  options_.max_model_bytes_of_owner = 2 * spec_bytes_;
  ASSERT_OK(Check("uid:1"));
  now_ += absl::Seconds(30);
  ASSERT_OK(Check("uid:1"));
  EXPECT_THAT(Check("uid:1"), StatusIs(kExhausted, HasSubstr("'uid:1' created within the last")));
  EXPECT_OK(Check("uid:2"));
  now_ += absl::Seconds(30);
  EXPECT_OK(Check("uid:1"));
  EXPECT_THAT(Check("uid:1"), StatusIs(kExhausted, HasSubstr("create it later")));
}

TEST_F(OwnerLimitsTest, OperatorsAreBoundByTheNumberOfAllJobsToo) {
  options_.max_jobs = 1;
  Add("uid:1");
  EXPECT_THAT(Check("uid:0", /*by_operator=*/true),
              StatusIs(kExhausted, HasSubstr("there are 1 jobs already")));
}

TEST_F(OwnerLimitsTest, SizeGrowsWithAllThatAClientCanFill) {
  const auto size = [](void (*change)(JobSpec*)) {
    JobSpec spec = *Spec(1);
    const int64_t before = SizeBytes(spec);
    change(&spec);
    return SizeBytes(spec) - before;
  };
  EXPECT_GE(size([](JobSpec* s) { s->model.units[0].name.resize(500); }), 400);
  EXPECT_GE(size([](JobSpec* s) { s->model.units[0].parameters[0].name.resize(500); }), 400);
  EXPECT_GE(size([](JobSpec* s) { s->model.units[0].parameters[0].shared_with.resize(500); }), 400);
  EXPECT_GE(size([](JobSpec* s) { s->model.units[0].parameters[0].shape.resize(16, 1); }), 100);
  EXPECT_GE(size([](JobSpec* s) { s->model.buffers.resize(10); }), 400);
  EXPECT_GE(size([](JobSpec* s) { s->model.buffers.emplace_back().name.resize(500); }), 500);
  EXPECT_GE(size([](JobSpec* s) {
              s->config.groups.emplace_back().parameter_names.emplace_back(500, 'n');
            }),
            500);
}

}  // namespace
}  // namespace tessera::coordinator
