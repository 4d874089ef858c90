// A cluster of threads whose jobs are asked to save, for tests of that. A test fixture.
#ifndef TESSERA_TESTS_INTEGRATION_SAVE_REQUEST_FIXTURE_H_
#define TESSERA_TESTS_INTEGRATION_SAVE_REQUEST_FIXTURE_H_

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/cli/saves_client.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {

inline constexpr int kWorldSize = 3;
// A save ends within a few; so many mean that it never does.
inline constexpr int64_t kMostSteps = 20000;

inline CheckpointContents ContentsOf(int rank, int64_t step) {
  CheckpointContents contents;
  contents.buffers.emplace_back("buffer", DType::kFp32, std::vector<int64_t>{1}, "abcd");
  contents.trainer_state = absl::StrCat("rank ", rank, " after step ", step);
  return contents;
}

class SaveRequestTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/wanted-XXXXXX";
    folder_ = mkdtemp(path.data());
    StartCluster(3 * kWorldSize, 1);
  }
  void StartCluster(int num_devices, int num_workers) {
    LocalCluster::Options options;
    options.num_devices = num_devices;
    options.num_workers = num_workers;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    // Each cluster has a coordinator of its own.
    cli::Endpoint endpoint;
    endpoint.address = cluster_->coordinator_address();
    ASSERT_OK_AND_ASSIGN(client_, cli::SavesClient::Create(endpoint));
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  absl::StatusOr<testing_support::TrainerTeam> OpenTeam(const std::string& job,
                                                        int world_size = kWorldSize) {
    return testing_support::TrainerTeam::Open(
        testing_support::ToyOptions(*cluster_, job, world_size));
  }
  absl::StatusOr<testing_support::TrainerTeam> OpenHandlingTeam(const std::string& job) {
    ASSIGN_OR_RETURN(testing_support::TrainerTeam team, OpenTeam(job));
    RETURN_IF_ERROR(team.RunAll([](Session* session) {
      OnSaveRequest(session,
                    [rank = session->rank()](int64_t step) { return ContentsOf(rank, step); });
      return absl::OkStatus();
    }));
    return team;
  }
  testing_support::CliResult Cli(std::vector<std::string> args) const {
    return testing_support::RunTessera(cluster_->coordinator_address(), std::move(args));
  }
  absl::StatusOr<int64_t> Ask(const std::string& path, v1::SaveSpec spec = {},
                              int64_t expires_in_ms = 0) {
    v1::RequestSaveRequest request;
    request.set_request_id(absl::StrCat("test-", ++num_requests_));
    request.set_job_id("toy");
    request.set_expires_in_ms(expires_in_ms);
    *request.mutable_spec() = std::move(spec);
    request.mutable_spec()->set_path(path);
    ASSIGN_OR_RETURN(const v1::Save save, client_->Request(request));
    return save.number();
  }
  v1::Save Get(int64_t number) {
    const auto save = client_->Get("toy", number);
    EXPECT_OK(save);
    return save.ok() ? *save : v1::Save();
  }
  // Trains on until the save is there.
  v1::Save TrainUntil(testing_support::TrainerTeam* team, int64_t number, v1::SaveState state) {
    const int64_t first = team->session(0)->next_step();
    for (int64_t step = first; step < first + kMostSteps; ++step) {
      v1::Save save = Get(number);
      if (save.state() == state) return save;
      const absl::Status trained = team->TrainTo(step);
      EXPECT_OK(trained);
      if (!trained.ok()) return v1::Save();
    }
    ADD_FAILURE() << "save " << number << " never gets there: " << Get(number).DebugString();
    return v1::Save();
  }
  v1::Save TrainUntilEnded(testing_support::TrainerTeam* team, int64_t number) {
    return TrainUntil(team, number, v1::SAVE_STATE_ENDED);
  }
  // What a job that nobody asks anything of saves after the step.
  testing_support::StoredValues Undisturbed(int64_t step) {
    auto team = OpenTeam("undisturbed");
    EXPECT_OK(team);
    EXPECT_OK(team->TrainTo(step));
    EXPECT_OK(team->RunAll([&](Session* session) {
      return SaveCheckpoint(session, Path("undisturbed"), ContentsOf(session->rank(), step));
    }));
    return testing_support::ReadStored(Path("undisturbed"));
  }

  std::string folder_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<cli::SavesClient> client_;
  int num_requests_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_INTEGRATION_SAVE_REQUEST_FIXTURE_H_
