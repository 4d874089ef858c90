// Checkpoints in parts, of workers that share no folder, and what `tessera consolidate` makes of
// them.
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/parts/consolidate.h"
#include "checkpoint/safetensors/file_io.h"
#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::ReadAll;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kHosts = 2, kRanksAHost = 2, kWorld = kHosts * kRanksAHost;

class CheckpointPartsTest : public testing::Test {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    root_ = "/tmp/tessera-hosts-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    for (int host = 0; host < kHosts; ++host)
      ASSERT_TRUE(std::filesystem::create_directory(Path(absl::StrCat("host", host))));
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    cluster_.reset();
    std::filesystem::remove_all(root_);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }
  // Below which a rank's worker alone writes.
  std::string HostPath(int rank, const std::string& name) const {
    return Path(absl::StrCat("host", rank / kRanksAHost, "/", name));
  }
  // Of a cluster of its own: the job has all devices of all hosts.
  absl::StatusOr<TrainerTeam> OpenTeam(Strategy strategy) {
    LocalCluster::Options hosts;
    hosts.num_workers = kHosts;
    hosts.num_devices = kRanksAHost;
    cluster_.reset();
    ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(hosts));
    SessionOptions options = ToyOptions(*cluster_, "job", kWorld);
    options.model = ToyModel(3, /*with_frozen=*/true);
    options.config.strategy = strategy;
    if (strategy == Strategy::kHybridShard) options.config.shard_group_size = kRanksAHost;
    std::vector<std::string> workers;
    for (int rank = 0; rank < kWorld; ++rank)
      workers.push_back(cluster_->worker_address(rank / kRanksAHost));
    return TrainerTeam::Open(options, workers);
  }
  static CheckpointContents Own(int rank) {
    return {{{"mask", StoredDType::kBool, {2}, std::string("\1\0", 2)},
             {"mean", DType::kFp32, {}, "abcd"}},
            absl::StrCat("own bytes of ", rank)};
  }
  std::vector<absl::Status> SaveParts(TrainerTeam* team, const std::string& name,
                                      bool with_replicas = false) {
    SaveOptions options;
    options.in_parts = true;
    options.with_replicas = with_replicas;
    return team->Run([&](Session* session) {
      const int rank = session->rank();
      return SaveCheckpoint(session, HostPath(rank, name), Own(rank), options);
    });
  }
  std::vector<std::string> Parts(const std::string& name) const {
    return {HostPath(0, name), HostPath(kRanksAHost, name)};
  }
  static std::string PartOf(int rank) { return absl::StrCat("/rank-0000", rank); }
  std::set<std::string> NamesOnHosts() const {
    std::set<std::string> names;
    for (int host = 0; host < kHosts; ++host) {
      const std::string folder = Path(absl::StrCat("host", host));
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        if (entry.is_directory()) names.insert(entry.path().lexically_relative(root_));
      }
    }
    return names;
  }
  static std::map<std::string, std::string> BytesIn(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files[entry.path().filename()] = *ReadWholeFile(entry.path(), 1 << 30);
    return files;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::string root_;
};

TEST_F(CheckpointPartsTest, ConsolidatedPartsAreTheCheckpointThatRanksWouldHaveSavedTogether) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kHybridShard}) {
    for (const bool with_replicas : {false, true}) {
      const std::string name = absl::StrCat("s", static_cast<int>(strategy), with_replicas);
      SCOPED_TRACE(name);
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(strategy));
      ASSERT_OK(team.TrainTo(3));
      ASSERT_OK(team.RunAll([&](Session* session) {
        return SaveCheckpoint(session, Path(name + "-together"), Own(session->rank()));
      }));
      for (const absl::Status& status : SaveParts(&team, name, with_replicas)) ASSERT_OK(status);
      ASSERT_OK(Consolidate(Parts(name), Path(name), {}).status());
      EXPECT_TRUE(BytesIn(Path(name)) == BytesIn(Path(name + "-together")));
      ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path(name)));
      EXPECT_THAT(verified.damages, IsEmpty());
      ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
        LoadCheckpointOptions options;
        options.buffers = Own(0).buffers;
        ASSIGN_OR_RETURN(const LoadedCheckpoint loaded,
                         LoadCheckpoint(session, Path(name), options));
        EXPECT_EQ(loaded.trainer_state, Own(session->rank()).trainer_state);
        return absl::OkStatus();
      }));
    }
  }
}

TEST_F(CheckpointPartsTest, InTheBackgroundTheyAreOfTheStepAtWhichTheyWereAskedFor) {
  for (const bool with_replicas : {false, true}) {
    const std::string name = absl::StrCat("background-", with_replicas);
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kHybridShard));
    const int64_t step = team.session(0)->next_step();
    ASSERT_OK(team.TrainTo(step));
    ASSERT_OK(team.RunAll([&](Session* session) {
      return SaveCheckpoint(session, Path(name + "-together"), Own(session->rank()));
    }));
    SaveOptions options;
    options.in_parts = options.in_background = true;
    options.with_replicas = with_replicas;
    Fault hold;  // Until training has continued.
    hold.action = FaultAction::kHold;
    ArmFaultPoint("save.created", hold);
    ASSERT_OK(team.RunAll([&](Session* session) {
      return SaveCheckpoint(session, HostPath(session->rank(), name), Own(session->rank()),
                            options);
    }));
    ASSERT_OK(team.TrainTo(step + 3));
    DisarmAllFaultPoints();
    ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
    ASSERT_OK(Consolidate(Parts(name), Path(name), {}).status());
    EXPECT_TRUE(BytesIn(Path(name)) == BytesIn(Path(name + "-together")));
  }
}

TEST_F(CheckpointPartsTest, OneRankThatCancelsThemEndsThemOnAllAndNoPartIsLeft) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kFullShard));
  ASSERT_OK(team.TrainTo(2));
  SaveOptions options;
  options.in_parts = options.in_background = true;
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.created", hold);
  ASSERT_OK(team.RunAll([&](Session* session) {
    return SaveCheckpoint(session, HostPath(session->rank(), "c"), {}, options);
  }));
  ASSERT_OK(CancelSave(team.session(1)));
  DisarmAllFaultPoints();
  for (const absl::Status& status : team.Run([](Session* session) { return AwaitSave(session); }))
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("rank 1")));
  for (const std::string& name : NamesOnHosts())
    EXPECT_THAT(name, testing::Not(HasSubstr("rank-")));
}

TEST_F(CheckpointPartsTest, HostWithReplicasMayBeLost) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kHybridShard));
  ASSERT_OK(team.TrainTo(2));
  for (const absl::Status& status : SaveParts(&team, "c", /*with_replicas=*/true))
    ASSERT_OK(status);
  EXPECT_THAT(Consolidate({HostPath(0, "c")}, Path("out"), {}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 2 is not given")));
  ConsolidateOptions options;
  options.allow_missing_ranks = true;
  ASSERT_OK_AND_ASSIGN(const Consolidated made,
                       Consolidate({HostPath(0, "c")}, Path("out"), options));
  EXPECT_EQ(made.missing_ranks, (std::vector<int>{2, 3}));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("out")));
  EXPECT_THAT(verified.damages, IsEmpty());
}

TEST_F(CheckpointPartsTest, CommandLineConsolidatesAndSaysWhat) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kFullShard));
  ASSERT_OK(team.TrainTo(2));
  for (const absl::Status& status : SaveParts(&team, "c")) ASSERT_OK(status);
  std::ostringstream out, err;
  const auto run = [&](std::vector<std::string> args) {
    out.str("");
    err.str("");
    args.insert(args.begin(), "consolidate");
    return cli::RunCli(args, {&out, &err, false});
  };
  const std::string a = Parts("c")[0], b = Parts("c")[1];
  EXPECT_EQ(run({a, b, "--out", Path("o") + "/", "--json", "--max-file-bytes", "150"}), 0)
      << err.str();
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["path"], Path("o"));
  EXPECT_EQ(json["parts"], kWorld);
  EXPECT_EQ(json["step"], 2);
  EXPECT_TRUE(std::filesystem::exists(Path("o/model.safetensors.index.json")));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("o")));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(run({a, b, "--out", Path("o")}), 0) << err.str();
  EXPECT_THAT(out.str(), HasSubstr(Path("o") + ": step 2 of job"));
  EXPECT_EQ(run({a, "--out", Path("o")}), 1);
  EXPECT_THAT(err.str(), HasSubstr("the part of rank 2 is not given"));
  EXPECT_EQ(run({a}), 2);
}

TEST_F(CheckpointPartsTest, ErrorAtAnyPointIsEveryRanksAndNoPartIsLeft) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kFullShard));
  ASSERT_OK(team.TrainTo(1));
  for (const char* point :
       {"checkpoint.begin", "save.created", "model-file.write", "model-file.sync", "save.written",
        "model-file.publish", "file.write", "file.sync", "folder.sync", "checkpoint.rename"}) {
    int hit = 1;
    while (true) {
      SCOPED_TRACE(absl::StrCat(point, " ", hit));
      Fault fault;
      fault.at_hit = hit;
      fault.status = absl::ResourceExhaustedError("no space left");
      ArmFaultPoint(point, fault);
      const std::vector<absl::Status> statuses = SaveParts(&team, "c");
      DisarmAllFaultPoints();
      if (statuses[0].ok()) break;
      for (const absl::Status& status : statuses)
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank")));
      ASSERT_THAT(NamesOnHosts(), IsEmpty());
      hit += hit < 8 ? 1 : 5;
    }
    EXPECT_GT(hit, 1) << "the point is on the way";
    EXPECT_EQ(NamesOnHosts().size(), kHosts + kWorld);
    for (int host = 0; host < kHosts; ++host)
      std::filesystem::remove_all(Path(absl::StrCat("host", host, "/c")));
  }
}

TEST_F(CheckpointPartsTest, PartsAreReplacedByTheSameStepOnlyAndAFailureLeavesTheOld) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kFullShard));
  ASSERT_OK(team.TrainTo(1));
  for (const absl::Status& status : SaveParts(&team, "c")) ASSERT_OK(status);
  for (int hit = 1; hit <= kWorld; ++hit) {
    Fault fault;
    fault.at_hit = hit;
    fault.status = absl::ResourceExhaustedError("no space left");
    ArmFaultPoint("checkpoint.rename", fault);
    for (const absl::Status& status : SaveParts(&team, "c"))
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
    DisarmAllFaultPoints();
    EXPECT_EQ(NamesOnHosts().size(), kHosts + kWorld);
    ASSERT_OK(Consolidate(Parts("c"), Path("out"), {}).status()) << "those of one save";
  }
  for (const absl::Status& status : SaveParts(&team, "c")) ASSERT_OK(status);
  ASSERT_OK(Consolidate(Parts("c"), Path("out"), {}).status());
  ASSERT_OK(team.TrainTo(2));
  for (const absl::Status& status : SaveParts(&team, "c")) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank-0000"), HasSubstr("belongs to step 1 of job"))));
  }
  ASSERT_OK_AND_ASSIGN(const Consolidated made, Consolidate(Parts("c"), Path("out"), {}));
  EXPECT_EQ(made.manifest.step, 1);
}

TEST_F(CheckpointPartsTest, WhatPartsHaveNotIsRefusedAndAPartIsNotLoaded) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kFullShard));
  ASSERT_OK(team.TrainTo(1));
  const auto refused = [&](const SaveOptions& options, const std::string& why) {
    for (const absl::Status& status : team.Run([&](Session* session) {
           return SaveCheckpoint(session, HostPath(session->rank(), "c"), {}, options);
         })) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
    }
  };
  SaveOptions files, newest, replicas;
  files.in_parts = newest.in_parts = true;
  files.max_file_bytes = 100;
  newest.keep_newest = 1;
  replicas.with_replicas = true;
  refused(files, "a part is one file");
  refused(newest, "none is removed");
  refused(replicas, "replicas are only saved in parts");
  for (const absl::Status& status : SaveParts(&team, "c")) ASSERT_OK(status);
  for (const absl::Status& status : team.Run([&](Session* session) {
         return LoadCheckpoint(session, HostPath(session->rank(), "c/rank-00000")).status();
       })) {
    EXPECT_FALSE(status.ok());
  }
}

TEST_F(CheckpointPartsTest, CausesOfAllRanksThatFailAreToldToAll) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kFullShard));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(WriteWholeFile(Path("file"), "of somebody's"));
  const auto path_of = [&](int rank) {
    if (rank == 1) return Path("none/below");
    return rank == 3 ? Path("file") : HostPath(rank, "c");
  };
  SaveOptions options;
  options.in_parts = true;
  const auto expect_both = [&](const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.message(), statuses[0].message()) << "every rank is told the same";
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kNotFound,
                           AllOf(HasSubstr(absl::StrCat("save on rank 1: make folder ", path_of(1),
                                                        ": No such file or directory; rank 3: ")),
                                 HasSubstr(path_of(3)), HasSubstr("Not a directory"))));
    }
    EXPECT_EQ(NamesOnHosts(), std::set<std::string>()) << "nothing is left of the others' parts";
  };
  const auto save = [&](Session* session) {
    return SaveCheckpoint(session, path_of(session->rank()), {}, options);
  };
  expect_both(team.Run(save));
  options.in_background = true;
  for (const absl::Status& status : team.Run(save)) ASSERT_OK(status);
  expect_both(team.Run([](Session* session) { return AwaitSave(session); }));
  ASSERT_OK(team.TrainTo(2));
  for (const absl::Status& status : SaveParts(&team, "c")) EXPECT_OK(status);
}

TEST_F(CheckpointPartsTest, PartThatIsThereIsNotReplacedWhereThatIsNotWanted) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(Strategy::kFullShard));
  ASSERT_OK(team.TrainTo(1));
  for (const absl::Status& status : SaveParts(&team, "c")) ASSERT_OK(status);
  for (const int rank : {0, 2, 3}) std::filesystem::remove_all(HostPath(rank, "c") + PartOf(rank));
  const std::set<std::string> before = NamesOnHosts();
  SaveOptions once;
  once.in_parts = true;
  once.overwrite = false;
  for (const absl::Status& status : team.Run([&](Session* session) {
         return SaveCheckpoint(session, HostPath(session->rank(), "c"), {}, once);
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAlreadyExists,
                                 HasSubstr(absl::StrCat("on rank 1: there is a checkpoint at ",
                                                        HostPath(1, "c"), PartOf(1)))));
  }
  EXPECT_EQ(NamesOnHosts(), before);
}

}  // namespace
}  // namespace tessera
