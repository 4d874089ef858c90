// `tessera status`, `jobs`, `dump` and `top` against gRPC services in this process.
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cli/cli.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/fake_server.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class ServerCommandsTest : public testing::Test {
 protected:
  // A short path: that of a Unix socket has little room.
  ServerCommandsTest() : socket_dir_(MakeFolder()), server_(FakeServer::Start(socket_dir_)) {}
  ~ServerCommandsTest() override {
    server_.reset();
    rmdir(socket_dir_.c_str());
  }

  static std::string MakeFolder() {
    char path[] = "/tmp/tessera_cli_XXXXXX";
    return mkdtemp(path);
  }

  // The command with --coordinator, or with --worker, of the server here.
  CommandResult AskCoordinator(std::vector<std::string> args) {
    args.insert(args.end(), {"--coordinator", server_->coordinator_address()});
    return RunTessera(args);
  }
  CommandResult AskWorker(std::vector<std::string> args) {
    args.insert(args.end(), {"--worker", server_->worker_address()});
    return RunTessera(args);
  }

  const std::string socket_dir_;
  std::unique_ptr<FakeServer> server_;
};

void PutTwoJobs(FakeServer* server) {
  server->PutJob(MakeJob());
  v1::Job waiting;
  waiting.set_job_id("bert");
  waiting.set_state(v1::JOB_STATE_WAITING);
  waiting.set_state_reason("needs 4 devices, 1 is registered");
  waiting.mutable_config()->set_world_size(4);
  waiting.mutable_config()->set_strategy(v1::STRATEGY_NO_SHARD);
  server->PutJob(waiting);
}

constexpr char kGptRanks[] =
    "job gpt: RUNNING, epoch 3, step 120, 1 of 2 ranks attached, FULL_SHARD\n"
    "  rank  worker  device  attached  step  seq  doing             parameters  gradients  "
    "optimizer  executor\n"
    "     0  w0           0  yes        121    7  unshard blocks.2     3.0 MiB    2.0 KiB      "
    "100 B      4711\n"
    "     1  w1           0  no           -    -                             -          -          "
    "-         -\n";

TEST_F(ServerCommandsTest, JobsAreListedByName) {
  PutTwoJobs(server_.get());
  const CommandResult result = AskCoordinator({"jobs"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out,
            "job   state    epoch  step  ranks  attached  strategy    reason\n"
            "bert  WAITING      0     0      4         0  NO_SHARD    needs 4 devices, 1 is "
            "registered\n"
            "gpt   RUNNING      3   120      2         1  FULL_SHARD\n");
}

TEST_F(ServerCommandsTest, NoJobsIsNoError) {
  for (const char* command : {"jobs", "status"}) {
    const CommandResult result = AskCoordinator({command});
    EXPECT_EQ(result.exit_code, kExitOk);
    EXPECT_EQ(result.out, "no jobs\n");
  }
}

TEST_F(ServerCommandsTest, StatusShowsEveryRankOfEveryJob) {
  PutTwoJobs(server_.get());
  const CommandResult result = AskCoordinator({"status"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr(kGptRanks), HasSubstr("job bert: WAITING")));
  EXPECT_LT(result.out.find("job bert"), result.out.find("job gpt"));
}

TEST_F(ServerCommandsTest, StatusOfOneJobShowsOnlyThat) {
  PutTwoJobs(server_.get());
  EXPECT_EQ(AskCoordinator({"status", "gpt"}).out, kGptRanks);
  const CommandResult missing = AskCoordinator({"status", "t5"});
  EXPECT_EQ(missing.exit_code, kExitFailed);
  EXPECT_EQ(missing.err, absl::StrCat("tessera: NOT_FOUND: coordinator ",
                                      server_->coordinator_address(), ": no job 't5'\n"));
}

TEST_F(ServerCommandsTest, JsonHasTheSameFacts) {
  PutTwoJobs(server_.get());
  for (const char* command : {"jobs", "status", "top"}) {
    const Json json = Json::parse(AskCoordinator({command, "--json"}).out, nullptr, false);
    ASSERT_FALSE(json.is_discarded());
    ASSERT_EQ(json["jobs"].size(), 2);
    const Json& job = json["jobs"][1];
    EXPECT_EQ(job["job_id"], "gpt");
    EXPECT_EQ(job["state"], "RUNNING");
    EXPECT_EQ(job["committed_step"], 120);
    EXPECT_EQ(job["layout_digest"], "000000000000b1c2");
    ASSERT_EQ(job["ranks"].size(), 2);
    EXPECT_EQ(job["ranks"][0]["doing"], "unshard blocks.2");
    EXPECT_EQ(job["ranks"][0]["attached"], true);
    EXPECT_EQ(job["ranks"][1]["worker_id"], "w1");
    EXPECT_EQ(job["ranks"][1]["attached"], false);
  }
}

TEST_F(ServerCommandsTest, LayoutOfAJobSaysWhichShardsEachParameterIsIn) {
  server_->PutJob(MakeJob());
  const CommandResult text = AskCoordinator({"layout", "--job", "gpt"});
  EXPECT_EQ(text.exit_code, kExitOk) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("unit block?: FP32, FULL_SHARD, 96 elements, 2 shards of "
                                        "48\n"),
                              HasSubstr("0-1"), HasSubstr("tied is weight")));
  EXPECT_THAT(AskCoordinator({"layout", "--job", "t5"}).err, HasSubstr("no job 't5'"));
  EXPECT_EQ(AskCoordinator({"layout", "--job", "gpt", "--world-size", "2"}).exit_code, kExitUsage);
  EXPECT_THAT(AskCoordinator({"layout", "--world-size", "2"}).err,
              HasSubstr("needs --spec and --world-size, or --job"));
}

TEST_F(ServerCommandsTest, DeleteRemovesTheJobAndIsToldOnce) {
  PutTwoJobs(server_.get());
  const CommandResult first = AskCoordinator({"jobs", "delete", "gpt"});
  EXPECT_EQ(first.exit_code, kExitOk) << first.err;
  EXPECT_EQ(first.out, "deleted gpt\n");
  EXPECT_THAT(AskCoordinator({"jobs"}).out, Not(HasSubstr("gpt")));
  const CommandResult second = AskCoordinator({"jobs", "delete", "gpt"});
  EXPECT_EQ(second.exit_code, kExitFailed);
  EXPECT_THAT(second.err, HasSubstr("NOT_FOUND"));
  const std::vector<std::string> ids = server_->delete_request_ids();
  ASSERT_EQ(ids.size(), 2);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(Json::parse(AskCoordinator({"jobs", "--json", "delete", "bert"}).out)["deleted"],
            "bert");
}

TEST_F(ServerCommandsTest, WorkerStatusListsItsRanks) {
  v1::WorkerStatusResponse worker;
  worker.set_worker_id("w0");
  worker.set_num_devices(2);
  v1::JobProgress* progress = worker.add_jobs();
  progress->set_job_id("gpt");
  progress->set_epoch(3);
  (*progress->mutable_ranks())[0] = MakeJob().ranks().at(0);
  server_->SetWorker(worker);
  const CommandResult result = AskWorker({"status"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out,
            "worker w0: 2 devices, NOT connected\n"
            "job gpt: epoch 3, 1 rank here\n"
            "  rank  attached  step  seq  doing             parameters  gradients  optimizer  "
            "executor\n"
            "     0  yes        121    7  unshard blocks.2     3.0 MiB    2.0 KiB      100 B      "
            "4711\n");
  const Json json = Json::parse(AskWorker({"status", "--json"}).out, nullptr, false);
  EXPECT_EQ(json["worker_id"], "w0");
  EXPECT_EQ(json["coordinator_connected"], false);
  EXPECT_EQ(json["jobs"][0]["ranks"][0]["step"], 121);
}

v1::DumpRankResponse DumpOfRank0() {
  v1::DumpRankResponse dump;
  dump.set_job_id("gpt");
  dump.set_epoch(3);
  dump.set_text("worker's text\x1b[2J");
  v1::FlightRecord* record = dump.add_records();
  record->set_op("unshard");
  record->set_unit("root");
  record->set_stream("engine");
  record->set_epoch(3);
  record->set_enqueued_steady_ns(1000);
  record->set_started_steady_ns(2000);
  return dump;
}

TEST_F(ServerCommandsTest, DumpOfARankIsItsFlightRecord) {
  server_->SetDump(DumpOfRank0());
  EXPECT_THAT(AskWorker({"dump", "gpt", "--rank", "0"}).out,
              AllOf(HasSubstr("rank 0 of job gpt: epoch 3, 1 of 1 operations\n"),
                    HasSubstr("unshard  root"), HasSubstr("running\nworker's text?[2J\n")));
  const CommandResult json = AskWorker({"dump", "gpt", "--rank", "0", "--json"});
  EXPECT_EQ(Json::parse(json.out)["ranks"][0]["records"][0]["state"], "running");
  const CommandResult missing = AskWorker({"dump", "gpt", "--rank", "1"});
  EXPECT_EQ(missing.exit_code, kExitFailed);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("NOT_FOUND"), HasSubstr(server_->worker_address())));
}

TEST_F(ServerCommandsTest, DumpWithoutARankIsThatOfAllRanksOfTheWorker) {
  server_->SetDump(DumpOfRank0());
  const CommandResult unknown = AskWorker({"dump", "gpt"});
  EXPECT_EQ(unknown.exit_code, kExitFailed);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("NOT_FOUND"), HasSubstr("job 'gpt'")));
  v1::WorkerStatusResponse worker;
  v1::JobProgress* progress = worker.add_jobs();
  progress->set_job_id("gpt");
  (*progress->mutable_ranks())[0].set_step(1);
  server_->SetWorker(worker);
  EXPECT_THAT(AskWorker({"dump", "gpt"}).out, HasSubstr("rank 0 of job gpt"));
}

TEST_F(ServerCommandsTest, DumpForPerfettoGoesToTheFile) {
  server_->SetDump(DumpOfRank0());
  const std::string path = socket_dir_ + "/trace.json";
  const CommandResult result = AskWorker({"dump", "gpt", "--rank", "0", "--perfetto", path});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  std::ifstream file(path);
  const Json trace = Json::parse(file, nullptr, false);
  unlink(path.c_str());
  ASSERT_FALSE(trace.is_discarded());
  EXPECT_EQ(trace["traceEvents"].size(), 3);
  const CommandResult nowhere =
      AskWorker({"dump", "gpt", "--rank", "0", "--perfetto", socket_dir_ + "/no/trace.json"});
  EXPECT_EQ(nowhere.exit_code, kExitFailed);
  EXPECT_THAT(nowhere.err, HasSubstr("/no/trace.json"));
}

TEST_F(ServerCommandsTest, DumpOfAJobHoldsItsConfigAndModel) {
  server_->PutJob(MakeJob());
  const CommandResult text = AskCoordinator({"dump", "gpt"});
  EXPECT_EQ(text.exit_code, kExitOk) << text.err;
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("strategy: STRATEGY_FULL_SHARD"), HasSubstr("name: \"root\"")));
  const Json json = Json::parse(AskCoordinator({"dump", "gpt", "--json"}).out, nullptr, false);
  EXPECT_EQ(json["config"]["world_size"], 2);
  EXPECT_EQ(json["model"]["units"][0]["name"], "root");
}

TEST_F(ServerCommandsTest, TopOfOneJobShowsOnlyThat) {
  PutTwoJobs(server_.get());
  EXPECT_THAT(AskCoordinator({"top", "gpt"}).out,
              AllOf(HasSubstr(kGptRanks), HasSubstr("1 job\n"), Not(HasSubstr("bert"))));
  const CommandResult missing = AskCoordinator({"top", "t5"});
  EXPECT_EQ(missing.exit_code, kExitFailed);
  EXPECT_THAT(missing.err, HasSubstr("no job 't5'"));
}

TEST_F(ServerCommandsTest, WorkersAreListedByNameWithTheirSilence) {
  EXPECT_EQ(AskCoordinator({"workers"}).out, "no workers\n");
  v1::WorkerInfo worker;
  worker.set_worker_id("w1");
  worker.set_num_devices(4);
  worker.set_incarnation(77);
  worker.set_lost(true);
  worker.set_silent_ms(83'000);
  worker.set_address("unix:/run/w1.sock");
  worker.set_memory_bytes(int64_t{20} << 30);
  worker.set_claimed_memory_bytes(int64_t{5} << 30);
  server_->AddWorker(worker);
  worker.set_worker_id("w0");
  worker.set_memory_bytes(0);
  worker.set_lost(false);
  worker.set_silent_ms(400);
  worker.set_address("unix:/run/\x1b.sock");
  worker.set_device("GPU-7\x1b");
  worker.set_max_ranks_of_job(1);
  server_->AddWorker(worker);
  const CommandResult result = AskCoordinator({"workers"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out,
            "worker  state  devices  last heard of  address            memory  free for jobs\n"
            "w0      live         4      400ms ago  unix:/run/?.sock   GPU-7?  not told\n"
            "w1      LOST         4      1m23s ago  unix:/run/w1.sock  host    "
            "15.0 GiB of 20.0 GiB\n");
  const Json json = Json::parse(AskCoordinator({"workers", "--json"}).out, nullptr, false);
  ASSERT_EQ(json["workers"].size(), 2);
  EXPECT_EQ(json["workers"][0]["lost"], false);
  EXPECT_EQ(json["workers"][0]["device"], "GPU-7\x1b");
  EXPECT_EQ(json["workers"][0]["max_ranks_of_job"], 1);
  EXPECT_EQ(json["workers"][1]["worker_id"], "w1");
  EXPECT_EQ(json["workers"][1]["silent_ms"], 83'000);
  EXPECT_EQ(json["workers"][1]["memory_bytes"], int64_t{20} << 30);
  EXPECT_EQ(json["workers"][1]["claimed_memory_bytes"], int64_t{5} << 30);
  EXPECT_EQ(json["workers"][1]["incarnation"], 77);
}

void AddThreeEvents(FakeServer* server) {
  v1::Event event;
  event.set_time_unix_ms(1'795'761'119'000);
  event.set_kind(v1::EVENT_KIND_WORKER_JOINED);
  event.set_severity(v1::EVENT_SEVERITY_INFO);
  event.set_rank(-1);
  event.set_worker_id("n2");
  event.set_text("registered with 4 devices (incarnation 1)");
  server->AddEvent(event);
  event.set_kind(v1::EVENT_KIND_RANK_MISSING);
  event.set_severity(v1::EVENT_SEVERITY_WARNING);
  event.set_job_id("gpt");
  event.set_generation(5);
  event.set_epoch(3);
  event.set_committed_step(11);
  event.set_rank(3);
  event.set_text("rank 3 is missing at \x1b[2J\nblocks.2");
  server->AddEvent(event);
  event.set_kind(static_cast<v1::EventKind>(77));
  event.set_severity(static_cast<v1::EventSeverity>(77));
  event.set_job_id("bert");
  event.set_rank(-1);
  event.set_worker_id("");
  event.set_text("of a later version");
  server->AddEvent(event);
}

TEST_F(ServerCommandsTest, EventsAreALineEachAndSafeForATerminal) {
  EXPECT_EQ(AskCoordinator({"events"}).out, "no events\n");
  AddThreeEvents(server_.get());
  const CommandResult result = AskCoordinator({"events"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out,
            "2026-11-27 06:31:59Z INFO    worker n2: registered with 4 devices (incarnation 1)\n"
            "2026-11-27 06:31:59Z WARNING job gpt, rank 3, worker n2: rank 3 is missing at "
            "?[2J?blocks.2\n"
            "2026-11-27 06:31:59Z UNKNOWN job bert: of a later version\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(ServerCommandsTest, EventsOfOneJobOrAfterANumberAreOnlyThose) {
  AddThreeEvents(server_.get());
  EXPECT_THAT(AskCoordinator({"events", "--job", "gpt"}).out,
              AllOf(HasSubstr("job gpt"), Not(HasSubstr("bert")), Not(HasSubstr("registered"))));
  EXPECT_THAT(AskCoordinator({"events", "--after", "2"}).out,
              AllOf(HasSubstr("job bert"), Not(HasSubstr("gpt"))));
}

TEST_F(ServerCommandsTest, EventsAsJsonAreAnObjectALineWithWhatTheyHave) {
  EXPECT_EQ(AskCoordinator({"events", "--json"}).out, "");
  AddThreeEvents(server_.get());
  std::vector<Json> events;
  std::istringstream lines(AskCoordinator({"events", "--json"}).out);
  for (std::string line; std::getline(lines, line);)
    events.push_back(Json::parse(line, nullptr, false));
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0], (Json{{"number", 1},
                             {"time_unix_ms", 1'795'761'119'000},
                             {"kind", "WORKER_JOINED"},
                             {"severity", "INFO"},
                             {"worker_id", "n2"},
                             {"text", "registered with 4 devices (incarnation 1)"}}));
  EXPECT_EQ(events[1]["kind"], "RANK_MISSING");
  EXPECT_EQ(events[1]["severity"], "WARNING");
  EXPECT_EQ(events[1]["job_id"], "gpt");
  EXPECT_EQ(events[1]["generation"], 5);
  EXPECT_EQ(events[1]["epoch"], 3);
  EXPECT_EQ(events[1]["committed_step"], 11);
  EXPECT_EQ(events[1]["rank"], 3);
  EXPECT_EQ(events[1]["text"], "rank 3 is missing at \x1b[2J\nblocks.2");
  EXPECT_EQ(events[2].count("rank"), 0);
}

TEST_F(ServerCommandsTest, EventsThatAreGoneAndACoordinatorThatBeganAgainAreSaid) {
  AddThreeEvents(server_.get());
  server_->ForgetEvents(2);
  const CommandResult gone = AskCoordinator({"events", "--after", "1"});
  EXPECT_THAT(gone.out, HasSubstr("job bert"));
  EXPECT_EQ(gone.err, "tessera: events 2 to 2 are not kept any more\n");
  const CommandResult again = AskCoordinator({"events", "--after", "9"});
  EXPECT_THAT(again.out, HasSubstr("job bert"));
  EXPECT_THAT(again.err, HasSubstr("the coordinator has started again"));
}

TEST_F(ServerCommandsTest, TopInAPipeIsOneFrameWithoutEscapes) {
  server_->PutJob(MakeJob());
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"top"}, std::vector<std::string>{"top", "--once"}}) {
    const CommandResult result = AskCoordinator(args);
    EXPECT_EQ(result.exit_code, kExitOk) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr(server_->coordinator_address()), HasSubstr("1 job\n"),
                                  HasSubstr(kGptRanks), Not(HasSubstr("\x1b"))));
  }
}

TEST_F(ServerCommandsTest, ControlCharactersOfAServerDoNotReachTheTerminal) {
  v1::Job job = MakeJob();
  job.set_job_id("\x1b[2J");
  job.set_state_reason("\x1b]0;title\x07");
  (*job.mutable_ranks())[0].set_doing("a\nb");
  server_->PutJob(job);
  for (const char* command : {"status", "jobs", "top"}) {
    const CommandResult result = AskCoordinator({command});
    EXPECT_EQ(result.out.find_first_of("\x1b\x07"), std::string::npos);
  }
  EXPECT_THAT(AskCoordinator({"status"}).out, HasSubstr("a?b"));
}

TEST_F(ServerCommandsTest, UnreachableServerIsOneLineThatNamesTheAddress) {
  const std::string coordinator = server_->coordinator_address();
  const std::string worker = server_->worker_address();
  server_.reset();
  const std::vector<std::vector<std::string>> commands = {
      {"jobs", "--coordinator", coordinator},
      {"jobs", "delete", "gpt", "--coordinator", coordinator},
      {"status", "--coordinator", coordinator},
      {"top", "--coordinator", coordinator},
      {"workers", "--coordinator", coordinator},
      {"events", "--coordinator", coordinator},
      {"events", "--follow", "--coordinator", coordinator},
      {"dump", "gpt", "--coordinator", coordinator},
      {"status", "--worker", worker},
      {"dump", "gpt", "--rank", "0", "--worker", worker},
  };
  for (const std::vector<std::string>& args : commands) {
    SCOPED_TRACE(testing::PrintToString(args));
    const CommandResult result = RunTessera(args);
    EXPECT_EQ(result.exit_code, kExitFailed);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(args.back())));
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1);
  }
}

TEST_F(ServerCommandsTest, TlsFileThatIsMissingIsNamed) {
  const CommandResult result =
      AskCoordinator({"jobs", "--tls-cert", "/nonexistent.crt", "--tls-key", "/nonexistent.key",
                      "--tls-ca", "/nonexistent.ca"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("/nonexistent.ca"));
}

TEST_F(ServerCommandsTest, OtherMachinesAreNotAskedWithoutTlsOrAPermit) {
  // A name that no resolver knows: with the permit, that is what is found wrong.
  std::vector<std::string> args = {"jobs", "--coordinator", "nowhere.invalid:7070"};
  const CommandResult refused = RunTessera(args);
  EXPECT_EQ(refused.exit_code, kExitFailed);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("nowhere.invalid"),
                                 HasSubstr("--insecure-connect")));
  args.push_back("--insecure-connect");
  EXPECT_THAT(RunTessera(args).err, Not(HasSubstr("FAILED_PRECONDITION")));
}

TEST(ServerCommandsUsageTest, WithoutAddressTheInstalledCoordinatorIsAsked) {
  EndpointFlags flags;
  CLI::App app;
  flags.AddCoordinator(&app);
  flags.AddWorker(&app);
  app.parse("");
  EXPECT_EQ(flags.Coordinator().address, DefaultCoordinator());
  EXPECT_FALSE(flags.has_worker());
}

TEST(ServerCommandsUsageTest, MessageSaysWhatIsWrong) {
  const struct {
    std::vector<std::string> args;
    const char* says;
  } kCases[] = {
      {{"status", "--worker", "unix:/w.sock", "--coordinator", "h:1"},
       "status: only one of --coordinator and --worker may be given"},
      {{"jobs", "--timeout", "0s"}, "--timeout: '0s' must be > 0"},
      {{"jobs", "--timeout", "soon"}, "--timeout: 'soon' is not a time like 500ms or 10s"},
      {{"jobs", "--coordinator", "127.0.0.1:99999"}, "port 99999 is above 65535"},
      {{"dump", "gpt", "--rank", "0"}, "dump: --rank needs --worker"},
      {{"stauts"}, "unknown command 'stauts'"},
  };
  for (const auto& expected : kCases) {
    const CommandResult result = RunTessera(expected.args);
    EXPECT_EQ(result.exit_code, kExitUsage);
    EXPECT_THAT(result.err, HasSubstr(expected.says));
  }
}

TEST(ServerCommandsUsageTest, WrongUsageIsExitCodeTwoAndOneLine) {
  const std::vector<std::vector<std::string>> wrong = {
      {"workers", "w0"},
      {"events", "gpt"},
      {"events", "--after", "-1"},
      {"top", "gpt", "bert"},
      {"dump", "--coordinator", "h:1"},
      {"jobs", "delete", "--coordinator", "h:1"},
      {"jobs", "--coordinator", "host"},
      {"jobs", "--coordinator", "host:0"},
      {"jobs", "--coordinator", "host:65536"},
      {"jobs", "--coordinator", ":7070"},
      {"jobs", "--coordinator", "h:1", "--timeout", "soon"},
      {"jobs", "--coordinator", "h:1", "--timeout", "-1s"},
      {"jobs", "--coordinator", "h:1", "--tls-cert", "a.pem"},
      {"status", "--worker", "/run/worker.sock"},
      {"status", "--worker", "unix:"},
      {"status", "--worker", "unix:/w.sock", "--coordinator", "h:1"},
      {"status", "gpt", "--worker", "unix:/w.sock"},
      {"dump", "gpt", "--coordinator", "h:1", "--rank", "0"},
      {"dump", "gpt", "--coordinator", "h:1", "--perfetto", "/tmp/trace.json"},
      {"dump", "gpt", "--worker", "unix:/w.sock", "--perfetto", "/tmp/trace.json", "--json"},
      {"dump", "gpt", "--worker", "unix:/w.sock", "--rank", "-1"},
  };
  for (const std::vector<std::string>& args : wrong) {
    SCOPED_TRACE(testing::PrintToString(args));
    const CommandResult result = RunTessera(args);
    EXPECT_EQ(result.exit_code, kExitUsage);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("tessera: "));
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1);
  }
}

}  // namespace
}  // namespace tessera::cli
