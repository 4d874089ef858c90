// Shards whose bits change without their owner's doing: found, named, and not trained on.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"
#include "job/job_memory.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::InitializeToy;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 2;

// A descriptor of the state of the job's rank, which a worker in this process has.
UniqueFd OpenState(const std::string& job, int rank) {
  const std::string name = absl::StrCat("memfd:tessera:", job, "/", rank, "/state");
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!error && absl::StrContains(target, name))
      return UniqueFd(open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
  }
  return UniqueFd();
}

class ShardCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2 * kWorldSize;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions OptionsFor(int interval_steps) {
    SessionOptions options = ToyOptions(*cluster_, "job", kWorldSize);
    options.config.shard_check_interval_steps = interval_steps;
    return options;
  }
  // Flips a bit of what `step` made of the unit's parameters in the shard of rank 1.
  void FlipBit(const SessionOptions& options, int unit, int64_t step) {
    ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(options.model, options.config));
    ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(layout, options.config));
    const UniqueFd state = OpenState("job", 1);
    ASSERT_TRUE(state.valid());
    const int64_t at = memory.StateOffsetBytes(StateArray::kParameter, static_cast<int>(step % 2)) +
                       memory.units()[unit].shard_offset_bytes + 4;
    char byte = 0;
    ASSERT_EQ(pread(state.get(), &byte, 1, at), 1);
    byte ^= 1;
    ASSERT_EQ(pwrite(state.get(), &byte, 1, at), 1);
  }
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(ShardCheckTest, FlippedBitIsNamedToAllRanksWithUnitAndRankAndNoStepIsTakenFromIt) {
  const SessionOptions options = OptionsFor(1);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    for (int step = 1; step <= 3; ++step) RETURN_IF_ERROR(ToyStep(session, step));
    // Until here the executors may be busy with checksums after the step.
    return session->Unshard(0);
  }));
  ASSERT_OK(team.RunAll([](Session* session) { return session->Reshard(0); }));
  FlipBit(options, /*unit=*/2, /*step=*/3);
  const std::string unit = options.model.units[2].name;
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (const absl::Status& status :
         team.Run([](Session* session) { return ToyStep(session, 4); })) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kDataLoss,
                           AllOf(HasSubstr("step 4 was not taken"), HasSubstr("shard of rank 1"),
                                 HasSubstr(absl::StrCat("unit '", unit, "'")))));
    }
  }
  EXPECT_EQ(team.session(0)->next_step(), 4);
}

TEST_F(ShardCheckTest, WatchedTrainingIsTheSameToTheBit) {
  std::vector<std::vector<float>> results;
  for (const int interval : {0, 2}) {
    SessionOptions options = OptionsFor(interval);
    options.job_id = absl::StrCat("job-", interval);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    ASSERT_OK(team.TrainTo(5));
    std::vector<float> values;
    ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(std::vector<float> all, testing_support::ReadAll(session));
      if (session->rank() == 0) values = std::move(all);
      return absl::OkStatus();
    }));
    results.push_back(std::move(values));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace tessera
