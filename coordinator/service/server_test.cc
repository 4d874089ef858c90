#include "coordinator/service/server.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "coordinator/service/test_worker.h"
#include "coordinator/storage/sqlite_journal.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/events.grpc.pb.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Command = v1::CoordinatorCommand;

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override { StartServer({}); }
  void TearDown() override { DisarmAllFaultPoints(); }

  void StartServer(CoordinatorServer::Options options) {
    server_.reset();
    options.listen_address = "127.0.0.1:0";
    options.spread_ranks = true;  // The protocol of several workers is what is tested here.
    if (options.worker_timeout == absl::Seconds(10)) options.worker_timeout = absl::Seconds(60);
    ASSERT_OK_AND_ASSIGN(server_, CoordinatorServer::Start(options));
    channel_ = *OpenChannel({absl::StrCat("127.0.0.1:", server_->port())}, {});
    jobs_ = v1::Jobs::NewStub(channel_);
  }

  // Options of a server whose journal is this file, which does not exist yet.
  static CoordinatorServer::Options JournalIn(const std::string& file) {
    CoordinatorServer::Options options;
    options.journal_path = absl::StrCat(testing::TempDir(), "/", file);
    for (const char* suffix : {"", "-wal", "-head"})
      std::remove((options.journal_path + suffix).c_str());
    return options;
  }
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request) {
    grpc::ClientContext context;
    v1::Job job;
    const absl::Status status = FromGrpcStatus(jobs_->CreateJob(&context, request, &job));
    if (!status.ok()) return status;
    return job;
  }
  absl::StatusOr<v1::Job> GetJob(const std::string& id) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_job_id(id);
    v1::Job job;
    const absl::Status status = FromGrpcStatus(jobs_->GetJob(&context, request, &job));
    if (!status.ok()) return status;
    return job;
  }
  // Watches until `done` holds.
  template <typename Predicate>
  v1::Job AwaitJob(const std::string& id, Predicate done) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::WatchJobRequest request;
    request.set_job_id(id);
    auto reader = jobs_->WatchJob(&context, request);
    v1::Job job;
    while (reader->Read(&job)) {
      if (done(job)) {
        context.TryCancel();
        reader->Finish();
        return job;
      }
    }
    ADD_FAILURE() << "watch of " << id << " ended: " << reader->Finish().error_message();
    return job;
  }
  v1::ListJobsResponse ListJobs() {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    EXPECT_OK(FromGrpcStatus(jobs_->ListJobs(&context, {}, &response)));
    return response;
  }
  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request = {}) {
    grpc::ClientContext context;
    v1::ListEventsResponse response;
    const absl::Status status =
        FromGrpcStatus(v1::Events::NewStub(channel_)->ListEvents(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }
  // Asks until `done` holds for an event; that event.
  template <typename Predicate>
  v1::Event AwaitEvent(Predicate done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    v1::ListEventsResponse events;
    while (std::chrono::steady_clock::now() < deadline) {
      events = *ListEvents();
      for (const v1::Event& event : events.events()) {
        if (done(event)) return event;
      }
    }
    ADD_FAILURE() << "no such event among " << events.ShortDebugString();
    return {};
  }
  v1::ListWorkersResponse ListWorkers() {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    auto membership = v1::Membership::NewStub(channel_);
    EXPECT_OK(FromGrpcStatus(membership->ListWorkers(&context, {}, &response)));
    return response;
  }

  // Two workers of one device each hold ranks 0 and 1 of job "gpt", which runs in epoch 1.
  void StartTwoRanks() {
    a_ = std::make_unique<TestWorker>(channel_, "a");
    b_ = std::make_unique<TestWorker>(channel_, "b");
    for (TestWorker* worker : {a_.get(), b_.get()}) {
      ASSERT_TRUE(worker->Register(1).ok());
      worker->Connect();
    }
    ASSERT_OK(CreateJob(MakeCreateJob("r1", "gpt", 2)));
    for (TestWorker* worker : {a_.get(), b_.get()}) {
      EXPECT_EQ(worker->Await(Command::kPrepare).prepare().job().epoch(), 1);
      worker->Prepared("gpt", 1, 0);
    }
    for (TestWorker* worker : {a_.get(), b_.get()}) {
      EXPECT_EQ(worker->Await(Command::kStart).start().resume_step(), 0);
    }
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Jobs::Stub> jobs_;
  std::unique_ptr<TestWorker> a_;
  std::unique_ptr<TestWorker> b_;
};

TEST_F(ServerTest, JobRunsOrdersAgreeAndStepsCommit) {
  StartTwoRanks();
  for (int sequence = 0; sequence < 3; ++sequence) {
    a_->Announce("gpt", 1, 0, 1, sequence, "unshard", sequence);
    b_->Announce("gpt", 1, 1, 1, sequence, "unshard", sequence);
    EXPECT_EQ(a_->Await(Command::kRelease).release().sequence(), sequence);
    EXPECT_EQ(b_->Await(Command::kRelease).release().rank(), 1);
  }
  a_->ReportStep("gpt", 1, 0, 1);
  b_->ReportStep("gpt", 1, 1, 1);
  const v1::Job job = AwaitJob("gpt", [](const v1::Job& j) { return j.committed_step() == 1; });
  EXPECT_EQ(job.state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(job.epoch(), 1);
  EXPECT_EQ(job.placements_size(), 2);
  EXPECT_NE(job.layout_digest(), 0);
}

TEST_F(ServerTest, ListOfJobsHasNoModels) {
  StartTwoRanks();
  const v1::ListJobsResponse list = ListJobs();
  ASSERT_EQ(list.jobs_size(), 1);
  EXPECT_EQ(list.jobs(0).placements_size(), 2);
  ASSERT_GT(list.jobs(0).model().units_size(), 0);
  EXPECT_LE(list.jobs(0).model().ByteSizeLong(), 2 * list.jobs(0).model().units_size());
}

TEST_F(ServerTest, ListOfJobsComesInPagesThatHaveEachJobOnce) {
  std::vector<std::string> created, listed;
  for (int i = 0; i < 230; ++i) {
    created.push_back(absl::StrFormat("job-%03d", i));
    ASSERT_OK(CreateJob(MakeCreateJob(absl::StrCat("r", i), created.back(), 2)));
  }
  v1::ListJobsRequest request;
  int num_pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse page;
    ASSERT_OK(FromGrpcStatus(jobs_->ListJobs(&context, request, &page)));
    EXPECT_LE(page.jobs_size(), 100);
    for (const v1::Job& job : page.jobs()) listed.push_back(job.job_id());
    request.set_after_job_id(page.next_after_job_id());
    ++num_pages;
  } while (!request.after_job_id().empty());
  EXPECT_EQ(listed, created);
  EXPECT_EQ(num_pages, 3);
}

// Reasons are cut; one may be cut in the middle of a character.
TEST_F(ServerTest, LongReasonInAnotherScriptIsCutByCharactersAndSurvivesARestart) {
  const CoordinatorServer::Options options = JournalIn("long_reason.db");
  StartServer(options);
  StartTwoRanks();
  std::string reason;
  while (reason.size() < 8192) reason += "\xe9\x94\x99\xe8\xaf\xaf";  // Two characters of 3 bytes.
  a_->Fail("gpt", 1, 0, reason);
  const v1::Job job = AwaitJob("gpt", [](const v1::Job& j) { return j.epoch() == 2; });
  EXPECT_THAT(job.state_reason(), HasSubstr("\xe9\x94\x99"));
  EXPECT_EQ(ListJobs().jobs_size(), 1);
  StartServer(options);
  ASSERT_OK_AND_ASSIGN(const v1::Job again, GetJob("gpt"));
  EXPECT_THAT(again.state_reason(), HasSubstr("\xe9\x94\x99"));
}

TEST_F(ServerTest, JobWhoseRowCannotBeDecodedIsSetAsideAndTheOthersAreServed) {
  const CoordinatorServer::Options options = JournalIn("undecodable.db");
  StartServer(options);
  for (const char* job : {"bad", "good"}) ASSERT_OK(CreateJob(MakeCreateJob(job, job, 2)));
  server_.reset();  // It holds the journal.
  {
    SqliteJournal::Options file;
    file.path = options.journal_path;
    ASSERT_OK_AND_ASSIGN(const auto journal, SqliteJournal::Open(file));
    // Append writes a valid checksum: a row with a wrong one would be DATA_LOSS at the start.
    ASSERT_OK(journal->Append({{JournalChange::Kind::kPut, "job/bad/status", "\xff"}},
                              Durability::kPowerLoss));
  }
  ASSERT_NO_FATAL_FAILURE(StartServer(options));
  const v1::ListJobsResponse list = ListJobs();
  ASSERT_EQ(list.jobs_size(), 2);
  EXPECT_EQ(list.jobs(0).job_id(), "bad");
  EXPECT_EQ(list.jobs(0).state(), v1::JOB_STATE_ORPHANED);
  EXPECT_THAT(list.jobs(0).state_reason(), HasSubstr("'job/bad/status'"));
  EXPECT_EQ(list.jobs(1).job_id(), "good");
  ASSERT_OK_AND_ASSIGN(const v1::Job good, GetJob("good"));
  EXPECT_EQ(good.state(), v1::JOB_STATE_WAITING);
  EXPECT_GT(good.model().units_size(), 0);
  for (const char* job : {"good", "bad"}) {
    v1::DeleteJobRequest request;
    request.set_request_id(absl::StrCat("delete-", job));
    request.set_job_id(job);
    grpc::ClientContext context;
    v1::DeleteJobResponse response;
    EXPECT_OK(FromGrpcStatus(jobs_->DeleteJob(&context, request, &response)));
    EXPECT_THAT(GetJob(job), StatusIs(absl::StatusCode::kNotFound, HasSubstr(job)));
  }
  StartServer(options);
  EXPECT_EQ(ListJobs().jobs_size(), 0) << "its rows are gone";
}

TEST_F(ServerTest, DifferentOrdersAreNamedToBothAndANewEpochBegins) {
  StartTwoRanks();
  a_->Announce("gpt", 1, 0, 1, 0, "unshard", 1);
  b_->Announce("gpt", 1, 1, 1, 0, "reduce", 2);
  for (TestWorker* worker : {a_.get(), b_.get()}) {
    EXPECT_THAT(worker->Await(Command::kMismatch).mismatch().message(),
                AllOf(HasSubstr("rank 0 is about to unshard unit 'u0' (parameters u0.q, u0.k, u0.v "
                                "and 1 more"),
                      HasSubstr("rank 1 is about to reduce unit 'u1' (parameters u1.q"),
                      HasSubstr("step 1, position 0")));
    EXPECT_EQ(worker->Await(Command::kPrepare).prepare().job().epoch(), 2);
  }
}

TEST_F(ServerTest, RankFailureBeginsANewEpochFromTheLatestDecidedStep) {
  StartTwoRanks();
  a_->Fail("gpt", 1, 0, "executor died");
  for (TestWorker* worker : {a_.get(), b_.get()}) {
    const auto prepare = worker->Await(Command::kPrepare).prepare();
    EXPECT_EQ(prepare.job().epoch(), 2);
    EXPECT_THAT(prepare.reason(), HasSubstr("rank 0 on worker 'a' failed: executor died"));
  }
  b_->Fail("gpt", 1, 1, "peer is gone");  // Of the old epoch: ignored.
  a_->Prepared("gpt", 2, 4);
  b_->Prepared("gpt", 2, 5);
  EXPECT_EQ(a_->Await(Command::kStart).start().resume_step(), 5);
  EXPECT_EQ(b_->Await(Command::kStart).start().epoch(), 2);
}

TEST_F(ServerTest, WorkerThatCannotHoldTheJobSaysWhyAndKeepsItsStream) {
  ASSERT_NO_FATAL_FAILURE(StartTwoRanks());
  b_->Fail("gpt", 1, /*rank=*/-1, "no memory");
  for (TestWorker* worker : {a_.get(), b_.get()}) {
    EXPECT_EQ(worker->Await(Command::kPrepare).prepare().job().epoch(), 2);
  }
  EXPECT_THAT(GetJob("gpt")->state_reason(), HasSubstr("worker 'b' failed: no memory"));
}

TEST_F(ServerTest, SecondWorkerOfANameIsRefusedWhileTheFirstIsConnected) {
  StartTwoRanks();
  TestWorker second(channel_, "b", 2);
  const absl::Status refused = FromGrpcStatus(second.Register(1));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAlreadyExists,
                                AllOf(HasSubstr("'b'"), HasSubstr("is connected"))));
  EXPECT_EQ(GetJob("gpt")->epoch(), 1) << "and disturbs nobody";
}

TEST_F(ServerTest, NewIncarnationOfAWorkerBeginsANewEpoch) {
  StartTwoRanks();
  b_->Disconnect();
  TestWorker again(channel_, "b", 2);
  // As a restarted worker does: the coordinator may not have seen yet that the connection ended.
  grpc::Status registered = again.Register(1);
  while (registered.error_code() == grpc::StatusCode::ALREADY_EXISTS)
    registered = again.Register(1);
  ASSERT_TRUE(registered.ok()) << registered.error_message();
  again.Connect();
  EXPECT_EQ(a_->Await(Command::kPrepare).prepare().job().epoch(), 2);
  EXPECT_EQ(again.Await(Command::kPrepare).prepare().job().epoch(), 2);
  b_->Connect();  // The old life is told that it is over.
  EXPECT_EQ(b_->AwaitEnd().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServerTest, SilentWorkerIsLostAndTheJobWaitsForIt) {
  CoordinatorServer::Options options;
  options.worker_timeout = absl::Milliseconds(600);
  options.heartbeat_interval = absl::Milliseconds(50);
  StartServer(options);
  a_ = std::make_unique<TestWorker>(channel_, "a");
  ASSERT_TRUE(a_->Register(1).ok());
  a_->Connect();
  ASSERT_OK(CreateJob(MakeCreateJob("r1", "gpt", 1)));
  a_->Await(Command::kPrepare);
  const v1::Job lost =
      AwaitJob("gpt", [](const v1::Job& j) { return j.state() == v1::JOB_STATE_WAITING; });
  EXPECT_THAT(lost.state_reason(), HasSubstr("worker 'a' does not answer"));
  EXPECT_EQ(lost.epoch(), 2);
  v1::ListWorkersResponse workers = ListWorkers();
  ASSERT_EQ(workers.workers_size(), 1);
  EXPECT_EQ(workers.workers(0).worker_id(), "a");
  EXPECT_EQ(workers.workers(0).num_devices(), 1);
  EXPECT_EQ(workers.workers(0).incarnation(), 1);
  EXPECT_TRUE(workers.workers(0).lost());
  EXPECT_GE(workers.workers(0).silent_ms(), 600);
  a_->Heartbeat();  // Only slow, not gone.
  EXPECT_GE(a_->Await(Command::kPrepare).prepare().job().epoch(), 2);
}

TEST_F(ServerTest, WorkersAreListedInTheOrderOfTheirIds) {
  EXPECT_EQ(ListWorkers().workers_size(), 0);
  TestWorker b(channel_, "b", 7), a(channel_, "a");
  ASSERT_TRUE(b.Register(3).ok());
  ASSERT_TRUE(a.Register(1).ok());
  const v1::ListWorkersResponse workers = ListWorkers();
  ASSERT_EQ(workers.workers_size(), 2);
  EXPECT_EQ(workers.workers(0).worker_id(), "a");
  EXPECT_EQ(workers.workers(1).worker_id(), "b");
  EXPECT_EQ(workers.workers(1).num_devices(), 3);
  EXPECT_EQ(workers.workers(1).incarnation(), 7);
  EXPECT_FALSE(workers.workers(1).lost());
  EXPECT_LT(workers.workers(1).silent_ms(), 60'000);
}

TEST_F(ServerTest, JobWithTooFewDevicesWaitsAndSaysWhatItNeeds) {
  TestWorker worker(channel_, "a");
  ASSERT_TRUE(worker.Register(2).ok());
  ASSERT_OK_AND_ASSIGN(const v1::Job job, CreateJob(MakeCreateJob("r1", "gpt", 8)));
  EXPECT_EQ(job.state(), v1::JOB_STATE_WAITING);
  EXPECT_THAT(job.state_reason(), HasSubstr("needs 8 devices, 2 registered are free"));
}

TEST_F(ServerTest, DeletedJobIsDroppedAndItsWatchEnds) {
  StartTwoRanks();
  grpc::ClientContext watch_context;
  v1::WatchJobRequest watch;
  watch.set_job_id("gpt");
  auto reader = jobs_->WatchJob(&watch_context, watch);
  v1::Job job;
  ASSERT_TRUE(reader->Read(&job));
  v1::DeleteJobRequest request;
  request.set_request_id("d1");
  request.set_job_id("gpt");
  v1::DeleteJobResponse response;
  for (int attempt = 0; attempt < 2; ++attempt) {  // The second: its reply was lost.
    grpc::ClientContext context;
    EXPECT_OK(FromGrpcStatus(jobs_->DeleteJob(&context, request, &response)));
  }
  while (reader->Read(&job)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(a_->Await(Command::kDrop).drop().job_id(), "gpt");
  EXPECT_THAT(GetJob("gpt"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'gpt'")));
  request.set_request_id("d2");
  grpc::ClientContext context;
  EXPECT_EQ(jobs_->DeleteJob(&context, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerTest, UnregisteredWorkerCannotConnect) {
  TestWorker stranger(channel_, "stranger");
  stranger.Connect();
  EXPECT_EQ(stranger.AwaitEnd().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerTest, EventForARankOnAnotherWorkerEndsTheStream) {
  StartTwoRanks();
  a_->ReportStep("gpt", 1, 1, 1);
  const grpc::Status status = a_->AwaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 1 is on worker 'b', not on 'a'"));
}

TEST_F(ServerTest, NewestStreamOfAWorkerCountsAndEndsTheOlder) {
  StartTwoRanks();
  TestWorker second(channel_, "a");
  second.Connect();
  EXPECT_EQ(second.Await(Command::kStart).start().epoch(), 1);
  EXPECT_NE(a_->AwaitEnd().error_code(), grpc::StatusCode::OK);
  EXPECT_EQ(GetJob("gpt")->epoch(), 1);
}

TEST_F(ServerTest, RefusedMutationChangesNothing) {
  Fault fault;
  fault.status = absl::ResourceExhaustedError("no space left");
  ArmFaultPoint("journal.before_append", fault);
  EXPECT_THAT(CreateJob(MakeCreateJob("r1", "gpt", 1)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no space left")));
  EXPECT_THAT(GetJob("gpt"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
  EXPECT_OK(CreateJob(MakeCreateJob("r1", "gpt", 1)));
}

TEST_F(ServerTest, FailureHeardWhileTheJournalFailsIsActedOnLater) {
  StartTwoRanks();
  ArmFaultPoint("journal.before_append", {});
  a_->Fail("gpt", 1, 0, "test");
  EXPECT_EQ(b_->Await(Command::kPrepare).prepare().job().epoch(), 2);
}

TEST_F(ServerTest, WhatHappensToJobsAndWorkersIsAnEventEachInItsOrder) {
  ASSERT_NO_FATAL_FAILURE(StartTwoRanks());
  a_->Fail("gpt", 1, 0, "executor died");
  AwaitJob("gpt", [](const v1::Job& j) { return j.epoch() == 2; });
  v1::DeleteJobRequest request;
  request.set_request_id("d1");
  request.set_job_id("gpt");
  v1::DeleteJobResponse response;
  grpc::ClientContext context;
  ASSERT_OK(FromGrpcStatus(jobs_->DeleteJob(&context, request, &response)));
  ASSERT_OK_AND_ASSIGN(const v1::ListEventsResponse list, ListEvents());
  std::vector<std::string> texts;
  for (const v1::Event& event : list.events()) {
    EXPECT_EQ(event.number(), static_cast<int64_t>(texts.size()) + 1);
    EXPECT_NEAR(event.time_unix_ms(), absl::ToUnixMillis(absl::Now()), 60'000);
    texts.push_back(absl::StrCat(v1::EventKind_Name(event.kind()).substr(11), " ", event.job_id(),
                                 event.worker_id(), ": ", event.text()));
  }
  EXPECT_THAT(
      texts,
      testing::ElementsAre(
          "WORKER_JOINED a: registered with 1 device (incarnation 1)",
          "WORKER_JOINED b: registered with 1 device (incarnation 1)",
          "JOB_CREATED gpt: created with 2 ranks",
          "JOB_STATE gpt: STARTING: there are enough devices; preparing epoch 1, not yet prepared: "
          "'a', 'b'",
          "JOB_STATE gpt: RUNNING: there are enough devices",
          "JOB_STATE gpt: STARTING: rank 0 on worker 'a' failed: executor died; preparing epoch 2, "
          "not yet prepared: 'a', 'b'",
          "JOB_DELETED gpt: deleted"));
  EXPECT_EQ(list.events(5).severity(), v1::EVENT_SEVERITY_ERROR);
  EXPECT_EQ(list.events(5).epoch(), 2);
  EXPECT_EQ(list.events(4).severity(), v1::EVENT_SEVERITY_INFO);
  EXPECT_EQ(list.events(4).rank(), -1);
  EXPECT_EQ(list.first_number(), 1);
  EXPECT_EQ(list.last_number(), 7);
}

TEST_F(ServerTest, EventsComeInPagesOfOneJobOrOfAllAndWrongBoundsAreNamed) {
  for (int i = 0; i < 5; ++i)
    ASSERT_OK(CreateJob(MakeCreateJob(absl::StrCat("r", i), absl::StrCat("job", i), 2)));
  v1::ListEventsRequest request;
  request.set_max_events(3);
  std::vector<int64_t> numbers;
  while (true) {
    ASSERT_OK_AND_ASSIGN(const v1::ListEventsResponse page, ListEvents(request));
    EXPECT_LE(page.events_size(), 3);
    EXPECT_EQ(page.last_number(), 10);
    if (page.events().empty()) break;
    for (const v1::Event& event : page.events()) numbers.push_back(event.number());
    request.set_after_number(numbers.back());
  }
  EXPECT_THAT(numbers, testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  request = {};
  request.set_job_id("job3");
  ASSERT_OK_AND_ASSIGN(const v1::ListEventsResponse of_job, ListEvents(request));
  ASSERT_EQ(of_job.events_size(), 2);
  for (const v1::Event& event : of_job.events()) EXPECT_EQ(event.job_id(), "job3");
  request.set_job_id("job3'");
  EXPECT_THAT(ListEvents(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("job_id")));
  request = {};
  request.set_max_events(1001);
  EXPECT_THAT(ListEvents(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_events")));
  request = {};
  request.set_after_number(-1);
  EXPECT_THAT(ListEvents(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("after_number")));
}

TEST_F(ServerTest, WhatTheJournalRefusedIsNoEvent) {
  Fault fault;
  fault.status = absl::ResourceExhaustedError("no space left");
  ArmFaultPoint("journal.before_append", fault);
  EXPECT_FALSE(CreateJob(MakeCreateJob("r1", "gpt", 1)).ok());
  EXPECT_EQ(ListEvents()->last_number(), 0);
  EXPECT_OK(CreateJob(MakeCreateJob("r1", "gpt", 1)));
  EXPECT_EQ(ListEvents()->events(0).kind(), v1::EVENT_KIND_JOB_CREATED);
}

TEST_F(ServerTest, FailureThatTheJournalRefusedAtFirstIsOneEvent) {
  ASSERT_NO_FATAL_FAILURE(StartTwoRanks());
  ArmFaultPoint("journal.before_append", {});
  a_->Announce("gpt", 1, 0, 1, 0, "unshard", 1);
  b_->Announce("gpt", 1, 1, 1, 0, "reduce", 2);
  EXPECT_EQ(b_->Await(Command::kPrepare).prepare().job().epoch(), 2);
  int mismatches = 0, states = 0;
  const v1::ListEventsResponse list = *ListEvents();
  for (const v1::Event& event : list.events()) {
    mismatches += event.kind() == v1::EVENT_KIND_ORDER_MISMATCH;
    states += event.kind() == v1::EVENT_KIND_JOB_STATE && event.epoch() == 2;
  }
  EXPECT_EQ(mismatches, 1);
  EXPECT_EQ(states, 1);
}

TEST_F(ServerTest, SilentWorkerIsLostAndReturnedAsEvents) {
  CoordinatorServer::Options options;
  options.worker_timeout = absl::Milliseconds(600);
  options.heartbeat_interval = absl::Milliseconds(50);
  StartServer(options);
  a_ = std::make_unique<TestWorker>(channel_, "a");
  ASSERT_TRUE(a_->Register(1).ok());
  a_->Connect();
  ASSERT_OK(CreateJob(MakeCreateJob("r1", "gpt", 1)));
  const v1::Event lost =
      AwaitEvent([](const v1::Event& event) { return event.kind() == v1::EVENT_KIND_WORKER_LOST; });
  EXPECT_EQ(lost.worker_id(), "a");
  EXPECT_EQ(lost.text(), "not heard of for 600ms");
  EXPECT_EQ(lost.severity(), v1::EVENT_SEVERITY_ERROR);
  a_->Heartbeat();
  AwaitEvent([](const v1::Event& event) {
    return event.kind() == v1::EVENT_KIND_WORKER_RETURNED && event.worker_id() == "a";
  });
}

TEST_F(ServerTest, RankThatTheOthersWaitForIsAnEventAndItsEpochEndsWithThatReason) {
  CoordinatorServer::Options options;
  options.heartbeat_interval = absl::Milliseconds(50);
  options.hang_after = absl::Milliseconds(200);
  options.end_hung_epochs = true;
  StartServer(options);
  ASSERT_NO_FATAL_FAILURE(StartTwoRanks());
  a_->HeartbeatAt("gpt", 1, 0, 12, 7);
  b_->HeartbeatAt("gpt", 1, 1, 12, 6);
  const v1::Event missing = AwaitEvent(
      [](const v1::Event& event) { return event.kind() == v1::EVENT_KIND_RANK_MISSING; });
  EXPECT_EQ(missing.rank(), 1);
  EXPECT_EQ(missing.worker_id(), "b");
  EXPECT_EQ(missing.severity(), v1::EVENT_SEVERITY_WARNING);
  EXPECT_THAT(missing.text(), HasSubstr("rank 1 on worker b is missing at an operation (step 12, "
                                        "operation 7) for 200ms; rank 0 waits"));
  for (TestWorker* worker : {a_.get(), b_.get()})
    EXPECT_EQ(worker->Await(Command::kPrepare).prepare().reason(), missing.text());
}

// A call whose client is gone before a thread has looked at it: another thread may hear of its end
// first.
TEST_F(ServerTest, CallsWhoseEndIsHeardBeforeTheirArrivalHarmNothing) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("call.arrived", hold);
  {
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_job_id("none");
    const auto reader = jobs_->WatchJob(&context, request);  // Sends it.
    context.TryCancel();
    EXPECT_TRUE(absl::IsCancelled(FromGrpcStatus(reader->Finish())));
  }
  // They come over the same connection, after the cancellation.
  for (int i = 0; i < 100; ++i)
    EXPECT_THAT(GetJob("none"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  DisarmAllFaultPoints();
  EXPECT_THAT(GetJob("none"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST_F(ServerTest, StopEndsCallsThatWait) {
  StartTwoRanks();
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_job_id("gpt");
  auto reader = jobs_->WatchJob(&context, request);
  v1::Job job;
  ASSERT_TRUE(reader->Read(&job));
  server_->Stop();
  server_->Wait();
  while (reader->Read(&job)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace tessera::coordinator
