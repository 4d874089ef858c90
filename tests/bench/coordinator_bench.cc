// What many workers, waiting jobs and waiting calls cost a coordinator: its host with a journal in
// memory, without gRPC.
//
//   bazel run //tests/bench:coordinator_bench -- --workers 10000 --jobs 1000 --waiting 4000
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/command_line.h"
#include "base/log.h"
#include "base/steady_time.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/storage/memory_journal.h"

namespace tessera {
namespace {

using coordinator::CoordinatorHost;

struct Flags {
  int workers = 1000;
  int jobs = 100;      // That wait for more devices than there are.
  int waiting = 1000;  // Calls that wait for a job that does not change.
  int events = 20000;
};

coordinator::JobSpecPtr SpecOf(int world_size) {
  ModelSpec model;
  model.units.resize(1);
  model.units[0].name = "unit";
  model.units[0].parameters = {{"w", {1 << 20}}};
  JobConfig config;
  config.world_size = world_size;
  return *coordinator::MakeJobSpec(std::move(model), std::move(config), -1);
}

coordinator::Sender SenderOf(int worker) {
  return {WorkerId(absl::StrCat("w", worker)), Incarnation(1)};
}

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags) {
    auto host = CoordinatorHost::Create({}, std::make_unique<coordinator::MemoryJournal>());
    TESSERA_CHECK(host.ok());
    host_ = *std::move(host);
  }

  void Run() {
    const coordinator::JobSpecPtr large = SpecOf(240);
    Measure("create a job that waits", flags_.jobs, [&](int i) {
      const std::string id = absl::StrCat("large", i);
      TESSERA_CHECK(host_->CreateJob({id, JobId(id), large}).ok());
    });
    Measure("register a worker", flags_.workers, [&](int i) {
      coordinator::Member member;
      member.incarnation = Incarnation(1);
      member.num_devices = 1;
      member.address = "unix:/w";
      member.key = std::string(32, 'k');
      TESSERA_CHECK(host_->RegisterWorker({SenderOf(i).worker, member, ""}).ok());
    });
    TESSERA_CHECK(host_->CreateJob({"small", JobId("small"), SpecOf(1)}).ok());
    const int worker = WorkerOfSmall();
    const auto beat = [&](int) {
      TESSERA_CHECK(
          host_->OnStreamEvent(SenderOf(worker), std::vector<coordinator::JobProgress>{}).ok());
    };
    Measure("hear a heartbeat", flags_.events, beat);
    Measure("look at a job", flags_.events, [&](int) { TESSERA_CHECK(Small().ok()); });
    StartWaiting();
    Measure("hear one while calls wait", flags_.events, beat);
    Measure("look at one while calls wait", flags_.events,
            [&](int) { TESSERA_CHECK(Small().ok()); });
    stop_ = true;
    host_->Stop();
    for (std::thread& thread : waiting_) thread.join();
  }

 private:
  absl::StatusOr<coordinator::JobView> Small() { return host_->GetJob(JobId("small")); }
  int WorkerOfSmall() {
    const auto view = Small();
    TESSERA_CHECK(view.ok() && !view->status.placements.empty());
    return std::stoi(view->status.placements[0].worker.value().substr(1));
  }
  void StartWaiting() {
    std::atomic<int> begun = 0;
    for (int i = 0; i < flags_.waiting; ++i) {
      waiting_.emplace_back([this, i, &begun] {
        const JobId job(absl::StrCat("large", i % flags_.jobs));
        int64_t seen_change = 0;
        (void)host_->AwaitChange(job, &seen_change, [this] { return stop_.load(); });
        ++begun;
        (void)host_->AwaitChange(job, &seen_change, [this] { return stop_.load(); });
      });
    }
    while (begun < flags_.waiting) std::this_thread::yield();
  }
  template <typename Body>
  void Measure(const char* what, int count, Body body) {
    std::vector<double> micros;
    const absl::Time began = SteadyNow();
    for (int i = 0; i < count; ++i) {
      const absl::Time at = SteadyNow();
      body(i);
      micros.push_back(absl::ToDoubleMicroseconds(SteadyNow() - at));
    }
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - began);
    std::sort(micros.begin(), micros.end());
    printf("| %s | %d | %.2f | %.1f | %.1f |\n", what, count, seconds, micros[count / 2],
           micros[count * 99 / 100]);
    fflush(stdout);
  }

  const Flags flags_;
  std::unique_ptr<CoordinatorHost> host_;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> waiting_;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Flags flags;
  CLI::App app("What many workers, jobs and calls cost a coordinator.", "coordinator_bench");
  app.add_option("--workers", flags.workers, "that register, of one device each")
      ->check(CLI::Range(1, 1 << 15))
      ->capture_default_str();
  app.add_option("--jobs", flags.jobs, "that wait for devices")
      ->check(CLI::Range(1, 999))
      ->capture_default_str();
  app.add_option("--waiting", flags.waiting, "calls that wait for one of those to change")
      ->check(CLI::Range(0, 20000))
      ->capture_default_str();
  app.add_option("--events", flags.events, "of each kind")
      ->check(CLI::Range(100, 10'000'000))
      ->capture_default_str();
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  (void)tessera::SetLogLevel("error");
  printf(
      "| %d workers, %d waiting jobs, %d waiting calls | times | seconds | median µs | p99 µs |\n",
      flags.workers, flags.jobs, flags.waiting);
  printf("|---|---|---|---|---|\n");
  tessera::Bench(flags).Run();
  return 0;
}
