// What `tessera dashboard` answers over HTTP, with coordinator, worker and trainers that are real
// processes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "tests/demo/child_process.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::Eventually;
using Json = nlohmann::json;

class DashboardTest : public ProcessCluster {
 protected:
  void StartDashboard(std::vector<std::string> flags = {}) {
    std::vector<std::string> args = {"client/cli/tessera", "dashboard", "--listen=127.0.0.1:0",
                                     "--coordinator=" + coordinator_address()};
    args.insert(args.end(), flags.begin(), flags.end());
    ASSERT_OK_AND_ASSIGN(dashboard_, demo::ChildProcess::Start(args, folder_ + "/dashboard.log"));
    std::string line;
    ASSERT_TRUE(Eventually([&] {
      for (const std::string& each : dashboard_->ReadLines()) line += each;
      return !line.empty();
    }));
    // "dashboard of 127.0.0.1:7070 at http://127.0.0.1:7080/"
    const size_t colon = line.rfind(':');
    ASSERT_TRUE(absl::SimpleAtoi(line.substr(colon + 1, line.size() - colon - 2), &page_port_))
        << line;
  }
  void TearDown() override {
    dashboard_.reset();
    ProcessCluster::TearDown();
  }

  httplib::Result Get(const std::string& target, const httplib::Headers& headers = {}) const {
    httplib::Client client("127.0.0.1", page_port_);
    client.set_read_timeout(30);
    return client.Get(target, headers);
  }
  // Of an answer that has this status.
  Json Ask(const std::string& target, int status = 200) const {
    const httplib::Result result = Get(target);
    EXPECT_TRUE(result) << target << ": " << httplib::to_string(result.error());
    if (!result) return nullptr;
    EXPECT_EQ(result->status, status) << target << ": " << result->body;
    EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
    const Json json = Json::parse(result->body, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << result->body;
    return json;
  }
  std::string ErrorOf(const std::string& target, int status) const {
    return Ask(target, status).value("error", "");
  }
  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(page_port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  void StartPausedJob() {
    pause_at_ = 5;
    StartAll();
    for (int rank = 0; rank < kWorldSize; ++rank) AwaitStep(rank, pause_at_);
  }

  int page_port_ = 0;
  std::unique_ptr<demo::ChildProcess> dashboard_;
};

TEST_F(DashboardTest, AnswersAreTheMessagesOfCoordinatorAndWorkers) {
  StartPausedJob();
  StartDashboard({"--worker=" + folder_});
  // Heartbeats bring what ranks do.
  ASSERT_TRUE(Eventually([&] {
    Json jobs = Ask("/api/jobs")["jobs"];  // Not const: what is missing is null.
    if (jobs.size() != 1 || jobs[0]["ranks"].size() != kWorldSize) return false;
    for (const Json& rank : jobs[0]["ranks"]) {
      if (rank.value("step", "") != "5" || !rank.value("attached", false)) return false;
    }
    return true;
  }));
  Json listed = Ask("/api/jobs")["jobs"][0];
  EXPECT_EQ(listed["job_id"], "toy");
  EXPECT_EQ(listed["state"], "JOB_STATE_RUNNING");
  EXPECT_EQ(listed["committed_step"], "4");
  EXPECT_EQ(listed["ranks"]["1"]["attached"], true);
  EXPECT_EQ(listed.count("model"), 0) << "a page shows no names of parameters";
  EXPECT_EQ(Ask("/api/job?id=toy")["generation"], listed["generation"]);
  EXPECT_EQ(Ask("/api/job?id=toy").count("model"), 0);
  EXPECT_EQ(Ask("/api/jobs?after=toy").count("jobs"), 0);
  Json workers = Ask("/api/workers")["workers"];
  ASSERT_EQ(workers.size(), 1);
  EXPECT_EQ(workers[0]["worker_id"], "w");
  EXPECT_EQ(workers[0]["num_devices"], kWorldSize);
  EXPECT_TRUE(Ask("/api/events").is_object());
  EXPECT_EQ(Ask("/api/saves?job=toy").count("saves"), 0);

  Json memory = Ask("/api/memory?job=toy");
  EXPECT_EQ(memory["generation"], std::stoll(listed["generation"].get<std::string>()));
  EXPECT_EQ(memory["num_units"], memory["units"].size());
  EXPECT_GT(memory["units"][0]["parameter_bytes"], 0);
  EXPECT_EQ(memory["units"][0]["optimizer_bytes"],
            2 * memory["units"][0]["parameter_bytes"].get<int64_t>())
      << "AdamW's";

  Json rank = Ask("/api/rank?job=toy&rank=2");
  EXPECT_EQ(rank["rank"], 2);
  ASSERT_FALSE(rank["records"].empty());
  EXPECT_LE(rank["records"].size(), 512);
  const httplib::Result trace = Get("/api/trace?job=toy&rank=2");
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->get_header_value("Content-Disposition"),
            "attachment; filename=\"toy-rank-2.trace.json\"");
  EXPECT_FALSE(Json::parse(trace->body)["traceEvents"].empty());
}

TEST_F(DashboardTest, WhatIsUnknownAndWhatIsWrongIsNamed) {
  StartPausedJob();
  StartDashboard();
  EXPECT_THAT(ErrorOf("/api/job?id=bert", 404), AllOf(HasSubstr("NOT_FOUND"), HasSubstr("bert")));
  EXPECT_THAT(ErrorOf("/api/saves?job=bert", 404), HasSubstr("bert"));
  EXPECT_THAT(ErrorOf("/api/memory?job=bert", 404), HasSubstr("bert"));
  EXPECT_THAT(ErrorOf("/api/memory?id=toy", 400), HasSubstr("unknown parameter 'id'"));
  EXPECT_THAT(ErrorOf("/api/job?id=%3Cscript%3E", 400), HasSubstr("id: a job's id"));
  EXPECT_THAT(ErrorOf("/api/job", 400), HasSubstr("id: a job's id"));
  EXPECT_THAT(ErrorOf("/api/job?id=" + std::string(64, 'a'), 400), HasSubstr("id: a job's id"));
  EXPECT_THAT(ErrorOf("/api/jobs?before=a", 400),
              AllOf(HasSubstr("unknown parameter 'before'"), HasSubstr("after")));
  EXPECT_THAT(ErrorOf("/api/events?after=-1", 400), HasSubstr("after: needs a whole number"));
  EXPECT_THAT(ErrorOf("/api/rank?job=toy&rank=two", 400), HasSubstr("rank: needs a whole number"));
  EXPECT_THAT(ErrorOf("/api/rank?job=toy&rank=2147483648", 400), HasSubstr("rank"));
  EXPECT_THAT(ErrorOf("/api/rank?job=toy&rank=0", 404),
              AllOf(HasSubstr("rank 0 of job 'toy'"), HasSubstr("--worker")));
  StartDashboard({"--worker=" + worker_address()});
  EXPECT_THAT(ErrorOf("/api/rank?job=toy&rank=7", 404), HasSubstr("rank 7 of job 'toy'"));
  EXPECT_EQ(Get("/other")->status, 404);
}

TEST_F(DashboardTest, WorkerThatDoesNotAnswerIsNamedAtTheStart) {
  StartPausedJob();
  StartDashboard({"--worker=" + folder_ + "/nobody", "--worker=" + folder_});
  const std::string log = testing_support::ReadFile(folder_ + "/dashboard.log");
  EXPECT_THAT(log, AllOf(HasSubstr("no worker answers"), HasSubstr("/nobody/worker.sock")));
  EXPECT_THAT(log, Not(HasSubstr(folder_ + "/worker.sock")));
  EXPECT_FALSE(Ask("/api/rank?job=toy&rank=2")["records"].empty()) << "the other one is asked";
}

TEST_F(DashboardTest, OnlyReadsAndOnlyForThisMachine) {
  StartCoordinator();
  StartDashboard();
  httplib::Client client("127.0.0.1", page_port_);
  EXPECT_EQ(client.Post("/api/jobs", "{}", "application/json")->status, 405);
  EXPECT_EQ(client.Delete("/api/job?id=toy")->status, 405);
  const httplib::Result head = client.Head("/api/jobs");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->body, "");
  EXPECT_EQ(Get("/api/jobs", {{"Host", "rebound.example"}})->status, 421);
  EXPECT_EQ(Get("/", {{"Host", "rebound.example"}})->status, 421);
}

TEST_F(DashboardTest, PageLoadsItsOwnFilesAndNothingElse) {
  StartCoordinator();
  StartDashboard();
  const struct {
    const char* path;
    const char* type;
    const char* has;
  } kFiles[] = {
      {"/", "text/html", "<script type=\"module\" src=\"app.js\">"},
      {"/style.css", "text/css", "prefers-color-scheme: dark"},
      {"/app.js", "text/javascript", "fetch("},
      {"/views.js", "text/javascript", "export function overview"},
      {"/icon.svg", "image/svg+xml", "<svg"},
  };
  for (const auto& file : kFiles) {
    const httplib::Result result = Get(file.path);
    ASSERT_TRUE(result) << file.path;
    EXPECT_EQ(result->status, 200) << file.path;
    EXPECT_THAT(result->get_header_value("Content-Type"), HasSubstr(file.type));
    EXPECT_THAT(result->body, AllOf(HasSubstr(file.has), Not(HasSubstr("innerHTML"))));
    EXPECT_EQ(result->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_THAT(result->get_header_value("Content-Security-Policy"),
                AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self'"),
                      HasSubstr("frame-ancestors 'none'"), Not(HasSubstr("unsafe"))));
  }
}

TEST_F(DashboardTest, CoordinatorThatIsAwayIsSaidSoAndFoundAgain) {
  StartCoordinator();
  StartDashboard();
  EXPECT_EQ(Ask("/api/jobs").count("jobs"), 0);
  coordinator_.reset();  // Kills it.
  ASSERT_TRUE(Eventually([&] { return Get("/api/jobs")->status == 503; }));
  EXPECT_THAT(ErrorOf("/api/workers", 503),
              AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(coordinator_address())));
  EXPECT_EQ(Get("/")->status, 200) << "the page itself is there";
  StartCoordinator();
  ASSERT_TRUE(Eventually([&] { return Get("/api/jobs")->status == 200; }));
}

TEST_F(DashboardTest, ClientsThatSendSlowlyEndAndOthersAreAnswered) {
  StartCoordinator();
  StartDashboard();
  // More than the listener has threads. Each ends after ten seconds, whatever it does.
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(Connect());
    ASSERT_EQ(send(slow.back().get(), "GET /api/jo", 11, MSG_NOSIGNAL), 11);
  }
  Ask("/api/jobs");
}

TEST_F(DashboardTest, AddressThatOthersReachNeedsTlsOrPermission) {
  StartCoordinator();
  int num_logs = 0;
  const auto outcome = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"client/cli/tessera", "dashboard",
                                     "--coordinator=" + coordinator_address()};
    args.insert(args.end(), flags.begin(), flags.end());
    const std::string log = absl::StrCat(folder_, "/refused", ++num_logs, ".log");
    auto started = demo::ChildProcess::Start(args, log);
    EXPECT_OK(started);
    const int exit_code = (*started)->Wait();
    return absl::StrCat(exit_code, " ", testing_support::ReadFile(log));
  };
  EXPECT_THAT(outcome({"--listen=0.0.0.0:0"}),
              AllOf(HasSubstr("1 tessera: FAILED_PRECONDITION"), HasSubstr("--insecure-listen")));
  EXPECT_THAT(outcome({"--listen=unix:/tmp/page"}), HasSubstr("2 tessera: --listen"));
  EXPECT_THAT(outcome({"--listen=127.0.0.1"}), HasSubstr("2 tessera: --listen"));
  EXPECT_THAT(outcome({"--worker=unix:"}), HasSubstr("2 tessera: --worker"));
}

}  // namespace
}  // namespace tessera
