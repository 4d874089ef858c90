// The memory that files of a job's state need besides the shards: pieces, however large the state
// is. And that saves in the background, which need a copy of it each, leak nothing.
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/parts/consolidate.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/optimizer_state.h"
#include "tessera/stored_model.h"
#include "tests/testing/freed_memory.h"
#include "tests/testing/own_memory.h"
#include "tests/testing/process_view.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::AnonymousBytesOf;
using testing_support::DescriptorsOf;
using testing_support::MemoryPeak;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int64_t kNumel = 8 << 20;
constexpr int64_t kStateBytes = kNumel * 3 * 4;    // With two moments: 96 MiB.
constexpr int64_t kMostBytes = int64_t{16} << 20;  // Of all ranks together.
constexpr int kWorld = 2;

class CheckpointMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    testing_support::ReturnFreedMemory();
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(std::filesystem::create_directories(folder_));
  }
  void TearDown() override {
    team_.reset();
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  void Start(int64_t numel, const std::string& executor_binary = "") {
    LocalCluster::Options of_cluster;
    of_cluster.num_devices = kWorld;
    of_cluster.executor_binary = executor_binary;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(of_cluster));
    SessionOptions options = ToyOptions(*cluster_, "large", kWorld);
    // Slices of ranks begin and end within parameters.
    options.model = {{{"root", {{"a", {numel / 2 - 3}, DType::kFp32}, {"b", {3}, DType::kFp32}}},
                      {"top", {{"c", {2, numel / 4}, DType::kFp32}}}}};
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    team_ = std::make_unique<TrainerTeam>(std::move(team));
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->Initialize([](int unit, int p, absl::Span<float> values) {
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>(i % 1000 + 3 * unit + p);
      });
    }));
    // As if it had been trained: moments are not zero, and files have them.
    ASSERT_OK(team_->RunAll([](Session* session) {
      TrainingProgress progress;
      progress.step = 7;
      progress.update_counts = {7, 6, 5};
      for (const ParamGroup& group : session->config().groups) progress.groups.push_back(group);
      return WriteOptimizerState(
          session, progress, [](StateArray array, int unit, int p, Values values) {
            for (float& value : values.as<float>())
              value = static_cast<float>(10 * static_cast<int>(array) + 3 * unit + p + 1);
          });
    }));
  }
  // Does something with the whole state, or the whole model.
  void ExpectTakesLittle(const std::string& what, const std::function<absl::Status()>& act) {
    SCOPED_TRACE(what);
    MemoryPeak peak({getpid()});
    ASSERT_OK(act());
    const int64_t grown_bytes = peak.Stop();
    RecordProperty(what, absl::StrCat(grown_bytes >> 10, " KiB"));
    if (!testing_support::kKeepsFreedMemory) {
      EXPECT_LT(grown_bytes, kMostBytes);
    }
  }
  void ExpectRanksTakeLittle(const std::string& what,
                             const std::function<absl::Status(Session*)>& act) {
    ExpectTakesLittle(what, [&] { return team_->RunAll(act); });
  }
  absl::Status Step() {
    return team_->RunAll([](Session* session) {
      return session->RunStep([&]() -> absl::Status {
        for (int unit = 0; unit < session->num_units(); ++unit) {
          RETURN_IF_ERROR(session->Unshard(unit));
          RETURN_IF_ERROR(session->Reshard(unit));
        }
        RETURN_IF_ERROR(session->AddGradient(0, 1, std::vector<float>{1, 2, 3}));
        RETURN_IF_ERROR(session->Reduce(0));
        return session->Step().status();
      });
    });
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
  std::string folder_;
};

TEST_F(CheckpointMemoryTest, FilesOfAStateTakeLittleMemoryHoweverLargeItIs) {
  static_assert(kStateBytes >= 6 * kMostBytes, "a copy, or a rank's of one array, is seen");
  Start(kNumel);
  SaveOptions files, parts;
  files.max_file_bytes = kNumel;
  parts.in_parts = true;
  ExpectRanksTakeLittle("save", [&](Session* s) { return SaveCheckpoint(s, Path("one")); });
  ExpectRanksTakeLittle("save_in_files",
                        [&](Session* s) { return SaveCheckpoint(s, Path("files"), {}, files); });
  ExpectRanksTakeLittle("save_in_parts",
                        [&](Session* s) { return SaveCheckpoint(s, Path("parts"), {}, parts); });
  ExpectTakesLittle("consolidate",
                    [&] { return Consolidate({Path("parts")}, Path("whole"), {}).status(); });
  for (const char* name : {"one", "files", "whole"}) {
    ExpectTakesLittle(absl::StrCat("verify_", name), [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const Verification verified, VerifyCheckpoint(Path(name)));
      EXPECT_TRUE(verified.damages.empty());
      int64_t bytes = 0;
      for (const auto& [file, of_manifest] : verified.manifest.files)
        bytes += of_manifest.size_bytes;
      EXPECT_GE(bytes, kStateBytes);
      return absl::OkStatus();
    });
    ExpectRanksTakeLittle(absl::StrCat("load_", name), [&](Session* session) {
      return LoadCheckpoint(session, Path(name)).status();
    });
  }
}

TEST_F(CheckpointMemoryTest, ModelsAloneTakeLittleToo) {
  Start(2 * kNumel);  // 64 MiB of parameters, without moments.
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    SaveOptions options;
    options.dtype = dtype;
    const std::string path = Path(absl::StrCat(Name(dtype)));
    ExpectRanksTakeLittle(absl::StrCat("save_", Name(dtype)),
                          [&](Session* s) { return SaveModel(s, path, options); });
    ExpectRanksTakeLittle(absl::StrCat("load_", Name(dtype)),
                          [&](Session* s) { return LoadModel(s, path).status(); });
  }
}

// Which descriptors an executor has, in kinds: numbers of sockets and inodes differ.
std::map<std::string, int> KindsOfDescriptors(int pid) {
  std::map<std::string, int> kinds;
  for (const auto& [fd, name] : DescriptorsOf(pid))
    ++kinds[name.substr(0, name.find_first_of(":["))];
  return kinds;
}

TEST_F(CheckpointMemoryTest, SavesInTheBackgroundLeaveNothingBehindHoweverManyThereWere) {
  constexpr int kSaves = 8;
  constexpr int64_t kMostLeftBytes = int64_t{4} << 20;  // A rank's copy is 24 MiB.
  Start(kNumel / 2, "worker/tessera-executor");
  const std::map<std::string, int> executors = testing_support::ExecutorsOf(getpid());
  ASSERT_EQ(executors.size(), kWorld);
  SaveOptions options;
  options.in_background = true;
  options.keep_newest = 2;
  const auto save = [&](int number) -> absl::Status {
    RETURN_IF_ERROR(team_->RunAll([&](Session* session) {
      return SaveCheckpoint(session, Path(absl::StrCat("c", number)), {}, options);
    }));
    // During it, and so soon after one another that some of the version is likely copied.
    for (int step = 0; step < 3; ++step) RETURN_IF_ERROR(Step());
    return team_->RunAll([](Session* session) { return AwaitSave(session); });
  };
  ASSERT_OK(save(0));
  ASSERT_OK(save(1));
  std::map<int, int64_t> bytes;
  std::map<int, std::map<std::string, int>> descriptors;
  for (const auto& [label, pid] : executors) {
    bytes[pid] = AnonymousBytesOf(pid);
    ASSERT_GT(bytes[pid], 0);
    descriptors[pid] = KindsOfDescriptors(pid);
  }
  for (int i = 2; i < kSaves; ++i) ASSERT_OK(save(i));
  EXPECT_EQ(testing_support::ExecutorsOf(getpid()), executors);
  for (const auto& [label, pid] : executors) {
    SCOPED_TRACE(label);
    EXPECT_EQ(KindsOfDescriptors(pid), descriptors[pid]);
    const int64_t left_bytes = AnonymousBytesOf(pid) - bytes[pid];
    RecordProperty(absl::StrCat("left_kib_", label), static_cast<int>(left_bytes >> 10));
    if (!testing_support::kKeepsFreedMemory) {
      EXPECT_LT(left_bytes, kMostLeftBytes);
    }
  }
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    names.insert(entry.path().filename());
  EXPECT_EQ(names,
            (std::set<std::string>{absl::StrCat("c", kSaves - 2), absl::StrCat("c", kSaves - 1)}));
}

}  // namespace
}  // namespace tessera
