// The `tessera` binary against a coordinator, a worker and executors that are real processes and
// train.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "job/job_codec.h"
#include "nlohmann/json.hpp"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;
using Json = nlohmann::json;

class CliTest : public ProcessCluster {
 protected:
  struct Outcome {
    int exit_code = -1;
    std::string out, err;
  };
  Outcome Tessera(std::vector<std::string> args) {
    args.insert(args.begin(), "client/cli/tessera");
    const std::string err_path = absl::StrCat(folder_, "/cli", ++num_commands_, ".log");
    auto started = demo::ChildProcess::Start(args, err_path);
    EXPECT_OK(started);
    Outcome outcome;
    EXPECT_TRUE(Eventually([&] {
      for (const std::string& line : (*started)->ReadLines()) outcome.out += line + "\n";
      return (*started)->at_end();
    })) << absl::StrJoin(args, " ");
    outcome.exit_code = (*started)->Wait();
    outcome.err = ReadFile(err_path);
    return outcome;
  }
  std::string AskCoordinator(std::vector<std::string> args) {
    args.insert(args.end(), {"--coordinator", coordinator_address()});
    const Outcome outcome = Tessera(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  // A job that this cluster has no room for.
  void CreateBigJob() {
    v1::CreateJobRequest request;
    request.set_request_id(NewRequestId());
    request.set_job_id("big");
    JobConfig config;
    config.world_size = 8;
    *request.mutable_model() = EncodeModel(testing_support::ToyModel(2));
    *request.mutable_config() = EncodeJobConfig(config);
    request.set_submitting_rank(0);
    ASSERT_OK(CreateJob({coordinator_address()}, request, absl::Now() + absl::Seconds(10)));
  }
  Json TopOf(const std::string& job_id) {
    const Json parsed = Json::parse(AskCoordinator({"top", "--json"}));
    for (const Json& job : parsed.at("jobs")) {
      if (job["job_id"] == job_id) return job;
    }
    return nullptr;
  }

  int num_commands_ = 0;
};

TEST_F(CliTest, ShowsDumpsAndDeletesJobsOfARealCluster) {
  pause_at_ = 7;
  StartAll();
  for (int rank = 0; rank < kWorldSize; ++rank) AwaitStep(rank, pause_at_);
  CreateBigJob();
  const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
  ASSERT_EQ(executors.size(), kWorldSize);

  // What the ranks do reaches the coordinator with a heartbeat, committed steps with a tick.
  Json toy;
  EXPECT_TRUE(Eventually([&] {
    toy = TopOf("toy");
    return !toy.is_null() && toy["committed_step"] == pause_at_ - 1 &&
           toy["ranks"].size() == kWorldSize && toy["ranks"][0]["attached"] == true &&
           toy["ranks"][1]["attached"] == true && toy["ranks"][2]["attached"] == true &&
           toy["ranks"][2]["executor_pid"] != 0;
  }));
  ASSERT_FALSE(toy.is_null());
  EXPECT_EQ(toy["state"], "RUNNING");
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const Json& row = toy["ranks"][rank];
    EXPECT_EQ(row["worker_id"], "w");
    EXPECT_EQ(row["executor_pid"], executors.at(absl::StrCat("toy/", rank)));
    for (const char* bytes : {"parameter_bytes", "gradient_bytes", "optimizer_bytes"}) {
      EXPECT_GT(row[bytes], 0) << bytes;
    }
  }
  EXPECT_THAT(AskCoordinator({"top", "--once"}),
              AllOf(HasSubstr("tessera top"), HasSubstr("2 jobs"), HasSubstr("job toy: RUNNING")));
  EXPECT_THAT(AskCoordinator({"status"}),
              AllOf(HasSubstr("job toy: RUNNING, epoch 1, step 6, 3 of 3 ranks attached"),
                    HasSubstr("job big: WAITING")));
  EXPECT_THAT(AskCoordinator({"jobs"}),
              AllOf(HasSubstr("toy"), HasSubstr("RUNNING"),
                    HasSubstr("needs 8 devices on one worker; largest free: none")));
  EXPECT_THAT(AskCoordinator({"dump", "toy"}), HasSubstr("job_id: \"toy\""));
  const Outcome rank = Tessera({"dump", "toy", "--worker", worker_address(), "--rank", "1"});
  EXPECT_EQ(rank.exit_code, 0) << rank.err;
  EXPECT_THAT(rank.out, AllOf(HasSubstr("rank 1"), HasSubstr("unit3"), HasSubstr("step")));

  const Outcome missing = Tessera({"dump", "toy", "--worker", worker_address(), "--rank", "9"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("NOT_FOUND"), HasSubstr("rank 9 of job 'toy'")));
  const Outcome unknown = Tessera({"jobs", "delete", "t5", "--coordinator", coordinator_address()});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("no job 't5'"));

  const Outcome not_given =
      Tessera({"jobs", "take-back", "toy", "--coordinator", coordinator_address()});
  EXPECT_EQ(not_given.exit_code, 1);
  EXPECT_THAT(not_given.err, HasSubstr("job 'toy' is not handed over"));

  EXPECT_EQ(AskCoordinator({"jobs", "delete", "toy"}), "deleted toy\n");
  EXPECT_TRUE(Eventually([&] { return ExecutorsOf(worker_->pid()).empty(); }));
  EXPECT_TRUE(TopOf("toy").is_null());
  EXPECT_FALSE(TopOf("big").is_null());
  Resume();
  for (int r = 0; r < kWorldSize; ++r) EXPECT_EQ(AwaitEnd(r), 1) << "its job is gone";
  EXPECT_THAT(ReadFile(folder_ + "/trainer.log"), HasSubstr("job 'toy' ends on this worker"));
}

}  // namespace
}  // namespace tessera
