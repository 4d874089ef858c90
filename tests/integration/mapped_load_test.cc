// Checkpoints of tensors so large that a load maps its files, as executors in processes of their
// own let it: here executors are in this one, which lets it too.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/storage/mapped_window.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/flip_bit.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::FlipBit;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

namespace fs = std::filesystem;

// Of two ranks each has 5 MB of the weight, more than is mapped at once, and of four still as much
// as is worth it. Nothing starts at a page boundary.
constexpr int64_t kNumel = (5 << 19) + 13;
constexpr int64_t kMostBytes = int64_t{1} << 30;

class MappedLoadTest : public testing::Test {
 protected:
  void SetUp() override {
    LetFilesBeMapped();
    root_ = "/tmp/tessera-mapped-load-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    LocalCluster::Options options;
    options.num_devices = 2 + 1 + 3 + 4;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    ASSERT_OK_AND_ASSIGN(team_, Open("job", 2));
    ASSERT_OK(team_->TrainTo(2));
    ASSERT_OK(Save(team_.get(), "saved"));
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    team_.reset();
    cluster_.reset();
    fs::remove_all(root_);
  }

  absl::StatusOr<std::unique_ptr<TrainerTeam>> Open(const std::string& id, int world_size) {
    SessionOptions job = ToyOptions(*cluster_, id, world_size);
    job.model = ModelSpec();
    job.model.units.push_back({"unit", {{"bias", {7}}, {"weight", {kNumel}}}});
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(job));
    return std::make_unique<TrainerTeam>(std::move(team));
  }
  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }
  absl::Status Save(TrainerTeam* team, const std::string& name) {
    return team->RunAll([&](Session* session) { return SaveCheckpoint(session, Path(name)); });
  }
  std::vector<absl::Status> Load(TrainerTeam* team, const std::string& name) {
    return team->Run(
        [&](Session* session) { return LoadCheckpoint(session, Path(name)).status(); });
  }
  void ExpectSameTensors(const std::string& a, const std::string& b) {
    for (const std::string file : {"model.safetensors", "optimizer.safetensors"}) {
      ASSERT_OK_AND_ASSIGN(const std::string of_a, ReadWholeFile(Path(a + "/" + file), kMostBytes));
      ASSERT_OK_AND_ASSIGN(const std::string of_b, ReadWholeFile(Path(b + "/" + file), kMostBytes));
      EXPECT_TRUE(of_a == of_b) << file;
    }
  }

  std::string root_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
};

TEST_F(MappedLoadTest, GivesAnyWorldTheBytesThatWereSaved) {
  for (const int world_size : {1, 3, 4}) {
    SCOPED_TRACE(world_size);
    ASSERT_OK_AND_ASSIGN(const auto team, Open(absl::StrCat("of", world_size), world_size));
    for (const absl::Status& status : Load(team.get(), "saved")) ASSERT_OK(status);
    const std::string again = absl::StrCat("again", world_size);
    ASSERT_OK(Save(team.get(), again));
    ExpectSameTensors("saved", again);
  }
}

TEST_F(MappedLoadTest, GivesTrainersWhatItGivesTheState) {
  std::vector<float> before, after;
  const auto read = [&](std::vector<float>* all) {
    return team_->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(std::vector<float> values, ReadAll(session));
      if (session->rank() == 1) *all = std::move(values);
      return absl::OkStatus();
    });
  };
  ASSERT_OK(read(&before));
  ASSERT_OK(team_->TrainTo(3));
  for (const absl::Status& status : Load(team_.get(), "saved")) ASSERT_OK(status);
  ASSERT_OK(read(&after));
  EXPECT_TRUE(before == after);
  ASSERT_OK(team_->TrainTo(4));
}

TEST_F(MappedLoadTest, FlippedBitAnywhereInALargeTensorIsRefusedByItsName) {
  for (const int64_t at : {kNumel * 4 / 2 - 1, kNumel * 3, int64_t{70000}}) {
    SCOPED_TRACE(at);
    // From the end, where the weight is: the bias and the header are before it.
    const int64_t from_end = at - kNumel * 4;
    FlipBit(Path("saved/model.safetensors"), from_end, 3);
    for (const absl::Status& status : Load(team_.get(), "saved"))
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'weight' is damaged")));
    FlipBit(Path("saved/model.safetensors"), from_end, 3);
    for (const absl::Status& status : Load(team_.get(), "saved")) EXPECT_OK(status);
  }
}

TEST_F(MappedLoadTest, FileThatIsCutOffWhileItIsReadFailsTheLoadAndTrainingGoesOn) {
  const std::string file = Path("saved/model.safetensors");
  fs::copy(file, Path("whole"));
  // The first rank to read a slice is held until the file, which both ranks have open, is shorter.
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("load.read", hold);
  std::vector<absl::Status> loaded;
  std::thread load([&] { loaded = Load(team_.get(), "saved"); });
  EXPECT_TRUE(Eventually([&] {
    int times_open = 0;
    for (const auto& [fd, path] : DescriptorsOf(getpid())) times_open += path == file ? 1 : 0;
    return times_open == 2;
  }));
  fs::resize_file(file, 4096);
  DisarmAllFaultPoints();
  load.join();
  for (const absl::Status& status : loaded)
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)));
  ASSERT_OK(team_->TrainTo(3));
  fs::copy(Path("whole"), file, fs::copy_options::overwrite_existing);
  for (const absl::Status& status : Load(team_.get(), "saved")) EXPECT_OK(status);
}

}  // namespace
}  // namespace tessera
