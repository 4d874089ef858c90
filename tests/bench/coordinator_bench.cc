// What many workers, waiting jobs and waiting calls cost a coordinator: its host with a journal in
// memory, without gRPC; and what a tick of its core costs where jobs have a rank on each worker.
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
#include "coordinator/core/coordinator.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/core/straggler_watch.h"
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

void Print(const char* what, std::vector<double> micros) {
  double all_micros = 0;
  for (const double each : micros) all_micros += each;
  std::sort(micros.begin(), micros.end());
  printf("| %s | %zu | %.2f | %.1f | %.1f |\n", what, micros.size(), all_micros / 1e6,
         micros[micros.size() / 2], micros[micros.size() * 99 / 100]);
  fflush(stdout);
}

template <typename Body>
void Measure(const char* what, int count, Body body) {
  std::vector<double> micros;
  for (int i = 0; i < count; ++i) {
    const absl::Time at = SteadyNow();
    body(i);
    micros.push_back(absl::ToDoubleMicroseconds(SteadyNow() - at));
  }
  Print(what, std::move(micros));
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
    const auto outbox = std::make_shared<coordinator::Outbox>([] {});
    TESSERA_CHECK(host_->Connect(SenderOf(worker), std::string(32, 'k'), outbox).ok());
    const auto beat = [&](int) {
      const std::vector<coordinator::JobProgress> no_jobs;
      TESSERA_CHECK(host_->OnStreamEvent(SenderOf(worker), outbox, no_jobs).ok());
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

  const Flags flags_;
  std::unique_ptr<CoordinatorHost> host_;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> waiting_;
};

// Its core alone, with jobs that have a rank on each worker, and with the watches for ranks that are
// missing or slow. Heartbeats are heard before what is measured.
class TickBench {
 public:
  static constexpr int kRanksOfJob = 240;  // The most.

  explicit TickBench(int num_workers)
      : num_workers_(num_workers), num_jobs_(num_workers / kRanksOfJob), core_(Options()) {}

  void Run(int times) {
    Start();
    Measure("tick where nothing was heard", times, [this](int) { Tick(); });
    Measure("watch where nothing was heard", times, [this](int) { Watch(); });
    MeasureWatch("watch where each rank has moved", times, [this](int i) { BeatAll(1, 1 + i); });
    // One window after the other: compute is the same for all, so that nobody is slow.
    MeasureWatch("watch where windows of steps end", times, [this](int i) {
      BeatAll(2 + (i + 1) * coordinator::StragglerWatch::kWindowSteps, 0);
    });
    const int64_t last = 3 + times * coordinator::StragglerWatch::kWindowSteps;
    BeatAll(last, 0);
    MeasureWatch("watch where one rank of each job is behind", times, [this, last](int i) {
      for (Job& job : jobs_) {
        for (int rank = 1; rank < kRanksOfJob; ++rank) Beat(job, rank, last, 1 + i);
      }
    });
  }

 private:
  struct Job {
    JobId id;
    Generation generation;
    Epoch epoch;
    std::vector<coordinator::RankPlacement> placements;
  };

  static coordinator::CoordinatorOptions Options() {
    coordinator::CoordinatorOptions options;
    options.placement = coordinator::PlacementRule::kSpread;
    options.worker_timeout = absl::Hours(1000);
    options.hang_after = absl::Hours(1000);  // Nothing is wrong yet.
    return options;
  }
  template <typename Call>
  void Do(Call call) {
    coordinator::Effects effects;
    call(&effects);
    core_.Accept();
  }
  void Start() {
    for (int i = 0; i < num_workers_; ++i) {
      coordinator::Member member;
      member.incarnation = Incarnation(1);
      member.num_devices = 1;
      Do([&](auto* e) {
        TESSERA_CHECK(core_.RegisterWorker(SenderOf(i).worker, member, now_, e).ok());
      });
    }
    const coordinator::JobSpecPtr spec = SpecOf(kRanksOfJob);
    for (int i = 0; i < num_jobs_; ++i) {
      const std::string id = absl::StrCat("job", i);
      Do([&](auto* e) { TESSERA_CHECK(core_.CreateJob({id, JobId(id), spec}, now_, e).ok()); });
      const coordinator::JobView view = *core_.GetJob(JobId(id));
      jobs_.push_back({view.id, view.generation, view.status.epoch, view.status.placements});
      const Job& job = jobs_.back();
      for (const coordinator::RankPlacement& placement : job.placements) {
        Do([&](auto* e) {
          const absl::Status prepared =
              core_.ReportPrepared({placement.worker, Incarnation(1)},
                                   {job.id, job.generation, job.epoch, Step(0)}, now_, e);
          TESSERA_CHECK(prepared.ok());
        });
      }
      TESSERA_CHECK(core_.GetJob(job.id)->status.state == coordinator::JobState::kRunning);
    }
  }
  void Beat(const Job& job, int rank, int64_t step, int64_t sequence) {
    coordinator::RankStatus status;
    status.step = Step(step);
    status.sequence = sequence;
    status.doing = "idle";
    status.attached = true;
    status.compute_seconds = 0.01 * static_cast<double>(step);
    const std::vector<coordinator::JobProgress> progress = {
        {job.id, job.generation, job.epoch, {{rank, status}}}};
    Do([&](auto* e) {
      const coordinator::Sender sender = {job.placements[rank].worker, Incarnation(1)};
      TESSERA_CHECK(core_.Heartbeat(sender, progress, now_, e).ok());
    });
  }
  void BeatAll(int64_t step, int64_t sequence) {
    for (const Job& job : jobs_) {
      for (int rank = 0; rank < kRanksOfJob; ++rank) Beat(job, rank, step, sequence);
    }
  }
  void Tick() {
    now_ += absl::Milliseconds(50);
    Do([&](auto* e) { core_.Tick(now_, e); });
  }
  void Watch() {
    Do([&](auto* e) {
      core_.WatchRanks(now_, e);
      TESSERA_CHECK(e->events.empty());
    });
  }
  template <typename Prepare>
  void MeasureWatch(const char* what, int times, Prepare prepare) {
    std::vector<double> micros;
    for (int i = 0; i < times; ++i) {
      prepare(i);
      Tick();
      const absl::Time at = SteadyNow();
      Watch();
      micros.push_back(absl::ToDoubleMicroseconds(SteadyNow() - at));
    }
    Print(what, std::move(micros));
  }

  const int num_workers_, num_jobs_;
  coordinator::Coordinator core_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::vector<Job> jobs_;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Flags flags;
  CLI::App app("What many workers, jobs and calls cost a coordinator.", "coordinator_bench");
  app.add_option("--workers", flags.workers, "that register, of one device each")
      ->check(CLI::Range(2, 1 << 15))
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
  tessera::TickBench(std::min(flags.workers, 10000)).Run(200);
  return 0;
}
