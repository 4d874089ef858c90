// The real binary, killed at every critical moment: what was acknowledged is there afterwards,
// once; what was not is there completely or not at all.
#include <signal.h>
#include <sqlite3.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/coordinator_process.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Command = v1::CoordinatorCommand;

class CoordinatorKillTest : public ::testing::Test {
 protected:
  void SetUp() override { NewFolder(); }

  void NewFolder() {
    process_.reset();
    static int num_folders = 0;
    folder_ = absl::StrCat(::testing::TempDir(), "/kill-", getpid(), "-", ++num_folders);
    std::filesystem::create_directories(folder_);
  }
  // (Re)starts on the same journal.
  void StartProcess(const std::string& fault_points = "",
                    const std::vector<std::string>& more_flags = {}) {
    process_.reset();
    std::vector<std::string> flags = {absl::StrCat("--journal=", journal()),
                                      "--worker-timeout=" + worker_timeout_};
    flags.insert(flags.end(), more_flags.begin(), more_flags.end());
    if (!fault_points.empty()) flags.push_back("--fault-points=" + fault_points);
    ASSERT_OK_AND_ASSIGN(process_, CoordinatorProcess::Start(folder_, flags));
    channel_ = *OpenChannel({process_->address()}, {});
    jobs_ = v1::Jobs::NewStub(channel_);
  }
  std::string journal() const { return folder_ + "/journal.db"; }

  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  }
  absl::StatusOr<v1::Job> Create(const std::string& request_id, const std::string& job,
                                 int world_size = 1) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::Job reply;
    const absl::Status status = FromGrpcStatus(
        jobs_->CreateJob(&context, MakeCreateJob(request_id, job, world_size), &reply));
    if (!status.ok()) return status;
    return reply;
  }
  absl::Status Delete(const std::string& request_id, const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::DeleteJobRequest request;
    request.set_request_id(request_id);
    request.set_job_id(job);
    v1::DeleteJobResponse response;
    return FromGrpcStatus(jobs_->DeleteJob(&context, request, &response));
  }
  absl::StatusOr<v1::Job> Get(const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(&context);
    context.set_wait_for_ready(true);
    v1::GetJobRequest request;
    request.set_job_id(job);
    v1::Job reply;
    const absl::Status status = FromGrpcStatus(jobs_->GetJob(&context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }
  void AwaitCommitted(const std::string& job, int64_t step) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::WatchJobRequest request;
    request.set_job_id(job);
    auto reader = jobs_->WatchJob(&context, request);
    v1::Job seen;
    while (reader->Read(&seen) && seen.committed_step() < step) {
    }
    EXPECT_GE(seen.committed_step(), step);
    context.TryCancel();
    reader->Finish();
  }
  absl::Status Register(const std::string& worker) {
    return FromGrpcStatus(TestWorker(channel_, worker).Register(1));
  }

  std::string folder_, worker_timeout_ = "60s";
  std::unique_ptr<CoordinatorProcess> process_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Jobs::Stub> jobs_;
};

TEST_F(CoordinatorKillTest, KilledBeforeTheJournalTheJobIsNotThere) {
  StartProcess("journal.before_append=kill@1");
  EXPECT_THAT(Create("r1", "one"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  EXPECT_EQ(process_->Wait(), -SIGKILL);
  StartProcess();
  EXPECT_THAT(Get("one"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("one")));
  EXPECT_OK(Create("r1", "one"));
}

TEST_F(CoordinatorKillTest, KilledAfterTheJournalTheRetryGetsTheFirstReply) {
  StartProcess("journal.after_append=kill@1");
  EXPECT_THAT(Create("r1", "one"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  EXPECT_EQ(process_->Wait(), -SIGKILL);
  StartProcess();
  EXPECT_OK(Register("a"));
  EXPECT_EQ(Get("one")->epoch(), 1);
  ASSERT_OK_AND_ASSIGN(const v1::Job reply, Create("r1", "one"));
  EXPECT_EQ(reply.state(), v1::JOB_STATE_WAITING);
  EXPECT_EQ(reply.epoch(), 0);
  EXPECT_EQ(Get("one")->epoch(), 1);
}

// A history of changes, killed at its n-th journal write, for each n, before and after the write.
TEST_F(CoordinatorKillTest, WhateverWriteItDiesAtNothingAcknowledgedIsLostOrDoubled) {
  struct Change {
    const char* name;
    std::function<absl::Status()> make;
    std::function<bool()> is_there;
  };
  const std::vector<Change> history = {
      // Visible in the epoch of "one", which needs a device to have an epoch.
      {"register", [&] { return Register("a"); }, [] { return true; }},
      {"create one", [&] { return Create("r1", "one").status(); },
       [&] { return Get("one").ok() && Get("one")->epoch() == 1; }},
      // If "r3" deleted it already, the retry succeeds; if it never existed, "r3" finds nothing.
      {"create two", [&] { return Create("r2", "two").status(); },
       [&] { return Get("two").ok() || Delete("r3", "two").ok(); }},
      {"delete two", [&] { return Delete("r3", "two"); }, [&] { return !Get("two").ok(); }},
      {"register b", [&] { return Register("b"); }, [] { return true; }},
  };
  for (const char* point : {"journal.before_append", "journal.after_append"}) {
    for (size_t nth = 1; nth <= history.size(); ++nth) {
      SCOPED_TRACE(absl::StrCat("killed at ", point, " number ", nth));
      NewFolder();
      StartProcess(absl::StrCat(point, "=kill@", nth));
      size_t num_acknowledged = 0;
      while (num_acknowledged < history.size() && history[num_acknowledged].make().ok()) {
        ++num_acknowledged;
      }
      EXPECT_EQ(num_acknowledged, nth - 1);
      EXPECT_EQ(process_->Wait(), -SIGKILL);
      StartProcess();
      for (size_t i = 0; i < num_acknowledged; ++i) {
        EXPECT_TRUE(history[i].is_there()) << history[i].name << " was lost";
      }
      for (size_t i = num_acknowledged; i < history.size(); ++i) {
        EXPECT_OK(history[i].make()) << history[i].name;
        EXPECT_TRUE(history[i].is_there()) << history[i].name;
      }
      EXPECT_OK(Delete("r3", "two"));  // The reply may have been lost: a repeat is not an error.
      EXPECT_EQ(Get("one")->epoch(), 1);
    }
  }
}

// A new journal of a cluster that has jobs: workers may hold some that it lacks.
TEST_F(CoordinatorKillTest, WhateverWriteItDiesAtTheNextOneGoesOnTakingOver) {
  const std::string cluster = "--cluster-id=0123456789abcdef0123456789abcdef";
  bool is_killed = true;
  for (int nth = 1; is_killed; ++nth) {
    ASSERT_LT(nth, 20);
    SCOPED_TRACE(absl::StrCat("killed at write ", nth));
    NewFolder();
    auto started = CoordinatorProcess::Start(
        folder_, {"--journal=" + journal(), "--worker-timeout=60s", cluster,
                  absl::StrCat("--fault-points=journal.sqlite.append=kill@", nth)});
    is_killed = !started.ok();
    if (started.ok()) {
      channel_ = *OpenChannel({(*started)->address()}, {});
      is_killed = !Register("a").ok();
      started->reset();  // Where it lives on, it has the journal.
    }
    // The second one does not need the flag, since the journal is of the cluster by then.
    for (const std::vector<std::string>& flags : {std::vector<std::string>{cluster}, {}}) {
      ASSERT_NO_FATAL_FAILURE(StartProcess("", flags));
      EXPECT_THAT(Create("r1", "one"),
                  StatusIs(absl::StatusCode::kUnavailable, HasSubstr("takes over")));
    }
    worker_timeout_ = "1s";
    ASSERT_NO_FATAL_FAILURE(StartProcess("", {cluster, "--heartbeat-interval=100ms"}));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    absl::Status made = Create("r1", "one").status();
    while (!made.ok() && std::chrono::steady_clock::now() < deadline)
      made = Create("r1", "one").status();
    EXPECT_OK(made);
    // It is over, for those that follow too.
    worker_timeout_ = "60s";
    ASSERT_NO_FATAL_FAILURE(StartProcess("", {cluster}));
    EXPECT_OK(Create("r2", "two"));
  }
}

TEST_F(CoordinatorKillTest, KillingItDisturbsNoRunningJobAndLosesNoStep) {
  StartProcess();
  auto worker = std::make_unique<TestWorker>(channel_, "a");
  ASSERT_TRUE(worker->Register(2).ok());
  worker->Connect();
  ASSERT_OK(Create("r1", "one", 2));
  worker->Await(Command::kPrepare);
  worker->Prepared("one", 1, 0);
  worker->Await(Command::kStart);
  for (int64_t step = 1; step <= 4; ++step) {
    for (int rank = 0; rank < 2; ++rank) worker->ReportStep("one", 1, rank, step);
    if (step == 2) {
      AwaitCommitted("one", 2);
      process_->Signal(SIGKILL);
      EXPECT_EQ(process_->Wait(), -SIGKILL);
      StartProcess();
      EXPECT_EQ(Get("one")->committed_step(), 2);
      worker = std::make_unique<TestWorker>(channel_, "a");
      worker->Hold("one", Get("one")->generation());
      worker->Connect();  // Without registering: the coordinator still knows it.
      EXPECT_EQ(worker->Await(Command::kStart).start().epoch(), 1);
    }
  }
  AwaitCommitted("one", 4);
  EXPECT_EQ(Get("one")->epoch(), 1);
  EXPECT_EQ(Get("one")->state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CoordinatorKillTest, TermEndsItCleanlyThoughWorkersAreConnected) {
  StartProcess();
  TestWorker worker(channel_, "a");
  ASSERT_TRUE(worker.Register(1).ok());
  worker.Connect();
  ASSERT_OK(Create("r1", "one"));
  worker.Await(Command::kPrepare);
  process_->Signal(SIGTERM);
  EXPECT_EQ(process_->Wait(), 0);
}

TEST_F(CoordinatorKillTest, JournalOfANewerVersionIsRefusedNamingBoth) {
  StartProcess();
  process_->Signal(SIGTERM);
  process_->Wait();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(journal().c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db, "PRAGMA user_version=7", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(CoordinatorProcess::Start(folder_, {"--journal=" + journal()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("version 7"), HasSubstr("reads version 2"))));
}

TEST_F(CoordinatorKillTest, WrongFlagsAreNamed) {
  const auto refused = [&](const std::string& flag, const std::string& what) {
    EXPECT_THAT(CoordinatorProcess::Start(folder_, {flag}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what)));
  };
  refused("--worker-timeout=soon", "--worker-timeout 'soon'");
  refused("--log-level=loud", "loud");
  refused("--fault-points=x=y", "x=y");
  refused("--journal=/nonexistent/j.db", "/nonexistent/j.db");
  refused("--novel-flag", "novel-flag");
}

TEST_F(CoordinatorKillTest, SecondCoordinatorOnTheSameJournalIsRefused) {
  StartProcess();
  const std::string other = folder_ + "/other";
  std::filesystem::create_directories(other);
  EXPECT_THAT(CoordinatorProcess::Start(other, {"--journal=" + journal()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another process holds the journal")));
}

}  // namespace
}  // namespace tessera::coordinator
