// Saving to a full disk, and a journal on one: a real one, a small file system that only this
// process sees.
#include <stdlib.h>

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "tests/testing/process_view.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::ReadAll;
using testing_support::ReadFile;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 2;

class FullDiskTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { own_namespace_ = testing_support::EnterOwnMountNamespace(); }
  void SetUp() override {
    folder_ = "/tmp/tessera-disk-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    disk_ = folder_ + "/disk";
    ASSERT_TRUE(std::filesystem::create_directory(disk_));
    if (!own_namespace_.ok()) GTEST_SKIP() << "no mount namespace: " << own_namespace_;
    small_disk_.emplace();
    if (const absl::Status status = small_disk_->Mount(disk_, 16 << 20); !status.ok())
      GTEST_SKIP() << "no file system of its own: " << status;
    LocalCluster::Options options;
    options.num_devices = kWorldSize;
    options.journal_path = journal();
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  void TearDown() override {
    cluster_.reset();
    small_disk_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string journal() const { return disk_ + "/journal"; }
  absl::Status CreateAnotherJob(const std::string& id) {
    v1::CreateJobRequest request;
    request.set_request_id(NewRequestId());
    request.set_job_id(id);
    *request.mutable_model() = EncodeModel(testing_support::ToyModel(400));  // Some pages.
    *request.mutable_config() = EncodeJobConfig(JobConfig());
    return CreateJob({cluster_->coordinator_address()}, request, absl::Now() + absl::Seconds(10))
        .status();
  }

  static absl::Status own_namespace_;
  std::optional<testing_support::SmallDisk> small_disk_;
  std::string folder_, disk_;
  std::unique_ptr<LocalCluster> cluster_;
};

absl::Status FullDiskTest::own_namespace_;

TEST_F(FullDiskTest, SaveFailsByNameOnEveryRankThePreviousFileStaysAndTrainingGoesOn) {
  const SessionOptions options = testing_support::ToyOptions(*cluster_, "toy", kWorldSize);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::string path = disk_ + "/model.safetensors";
  const auto save_to = [&](const std::string& where) {
    return team.Run([&](Session* session) { return session->Save(where); });
  };
  ASSERT_OK(team.TrainTo(2));
  for (const absl::Status& status : save_to(path)) ASSERT_OK(status);
  const std::string previous = ReadFile(path);
  ASSERT_OK(ReadModelFile(path));

  ASSERT_OK(small_disk_->Fill());
  ASSERT_OK(team.TrainTo(4));
  for (const absl::Status& status : save_to(path)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 AllOf(HasSubstr(path), HasSubstr("No space left"),
                                       HasSubstr("save on rank 0"))));
  }
  EXPECT_EQ(ReadFile(path), previous);
  EXPECT_FALSE(std::filesystem::exists(path + ".partial")) << "nothing half-written is left";

  ASSERT_OK(team.TrainTo(6));
  const std::string elsewhere = folder_ + "/model.safetensors";
  for (const absl::Status& status : save_to(elsewhere)) EXPECT_OK(status);
  ASSERT_OK(small_disk_->Free());
  for (const absl::Status& status : save_to(path)) EXPECT_OK(status);
  EXPECT_EQ(ReadFile(path), ReadFile(elsewhere));
  EXPECT_NE(ReadFile(path), previous);
  // Nothing of the failures is in the model: it is that of a run without them.
  std::vector<float> values;
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(auto all, ReadAll(session));
    if (session->rank() == 0) values = std::move(all);
    return absl::OkStatus();
  }));
  EXPECT_THAT(values,
              testing::Pointwise(testing::FloatNear(2e-6f),
                                 testing_support::ReferenceRun(options.model, options.config, 6)));
}

TEST_F(FullDiskTest, JournalRefusesNewJobsByNameWhileTrainingGoesOn) {
  const SessionOptions options = testing_support::ToyOptions(*cluster_, "toy", kWorldSize);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(small_disk_->Fill());
  // The room that was set aside is for some jobs.
  absl::Status status;
  std::string last;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    last = absl::StrCat("another-", i);
    status = CreateAnotherJob(last);
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(journal())));
  EXPECT_THAT(GetJob({cluster_->coordinator_address()}, last, absl::Now() + absl::Seconds(10)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(absl::StrCat("'", last, "'"))))
      << "what could not be journalled was not done";
  ASSERT_OK(team.TrainTo(6));
  ASSERT_OK(small_disk_->Free());
  EXPECT_OK(CreateAnotherJob(last));
  ASSERT_OK(team.TrainTo(8));
}

}  // namespace
}  // namespace tessera
