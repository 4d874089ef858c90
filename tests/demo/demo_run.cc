#include "tests/demo/demo_run.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "client/rpc/job_rpc.h"
#include "nlohmann/json.hpp"
#include "tests/demo/progress.h"

namespace tessera::demo {
namespace {

constexpr char kJob[] = "demo";
constexpr absl::Duration kStartDeadline = absl::Seconds(30);
constexpr int64_t kComputeSamples = 7;

volatile sig_atomic_t g_signal = 0;

absl::Status CheckNoSignal() {
  if (g_signal == 0) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("ended by signal ", g_signal));
}

// The file `path` once it exists and is whole.
absl::StatusOr<std::string> AwaitFile(const std::string& path, ChildProcess* writer) {
  const absl::Time deadline = absl::Now() + kStartDeadline;
  while (absl::Now() < deadline && writer->running()) {
    std::ifstream in(path);
    std::string content;
    if (in >> content) return content;
    RETURN_IF_ERROR(CheckNoSignal());
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::DeadlineExceededError(absl::StrCat(path, " did not appear"));
}

// The logs of this program in output_dir; others' stay.
bool IsLog(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, ".log")) return false;
  if (absl::ConsumePrefix(&name, "trainer")) {
    return !name.empty() && name.find_first_not_of("0123456789") == absl::string_view::npos;
  }
  return name == "coordinator" || name == "worker" || name == "compute-only" || name == "unsharded";
}

// Waits until any of the processes has output, at most 200 ms.
// Errors: Cancelled  a signal came.
absl::Status AwaitOutput(const std::vector<const ChildProcess*>& processes) {
  std::vector<pollfd> fds;
  for (const ChildProcess* process : processes) {
    if (process != nullptr && !process->at_end()) fds.push_back({process->output_fd(), POLLIN, 0});
  }
  (void)poll(fds.data(), fds.size(), 200);
  return CheckNoSignal();
}

}  // namespace

void EndDemoOnSignal(int signal) {
  struct sigaction action = {};
  action.sa_handler = [](int number) { g_signal = number; };
  sigaction(signal, &action, nullptr);
}

int DemoSignal() { return g_signal; }

absl::StatusOr<DemoReport> DemoRun::Run() {
  RETURN_IF_ERROR(MakeFolders());
  report_.world_size = options_.world_size;
  report_.steps = options_.steps;
  RETURN_IF_ERROR(StartCluster());
  RETURN_IF_ERROR(Train());
  if (options_.compare_unsharded) RETURN_IF_ERROR(TrainUnsharded());
  return report_;
}

DemoRun::~DemoRun() {
  trainers_.clear();
  worker_.reset();
  coordinator_.reset();
  std::error_code ignored;
  if (!socket_dir_.empty()) std::filesystem::remove_all(socket_dir_, ignored);
}

absl::Status DemoRun::MakeFolders() {
  std::error_code error;
  std::filesystem::create_directories(options_.output_dir, error);
  if (error)
    return absl::PermissionDeniedError(absl::StrCat("cannot make folder ", options_.output_dir));
  // What an earlier run left here under the names that this one uses.
  for (const auto& entry : std::filesystem::directory_iterator(options_.output_dir, error)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "journal.sqlite") || name == "coordinator.port" || IsLog(name)) {
      unlink(entry.path().c_str());
    }
  }
  // A short path: that of a Unix socket is limited.
  std::string folder = "/tmp/tessera-demo-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, "make a folder for sockets");
  socket_dir_ = folder;
  return absl::OkStatus();
}

absl::Status DemoRun::StartCluster() {
  const std::string port_file = options_.output_dir + "/coordinator.port";
  ASSIGN_OR_RETURN(coordinator_,
                   ChildProcess::Start({options_.coordinator_binary, "--listen=127.0.0.1:0",
                                        "--port-file=" + port_file,
                                        "--journal=" + options_.output_dir + "/journal.sqlite"},
                                       LogPath("coordinator")));
  absl::StatusOr<std::string> port = AwaitFile(port_file, coordinator_.get());
  if (!port.ok())
    return Annotate(port.status(), absl::StrCat("coordinator (see ", LogPath("coordinator"), ")"));
  coordinator_address_ = absl::StrCat("127.0.0.1:", *port);
  worker_address_ = absl::StrCat("unix:", socket_dir_, "/worker.sock");
  ASSIGN_OR_RETURN(
      worker_,
      ChildProcess::Start(
          {options_.worker_binary, "--coordinator=" + coordinator_address_, "--worker-id=node0",
           absl::StrCat("--devices=", options_.world_size), "--socket-dir=" + socket_dir_,
           "--executor-binary=" + options_.executor_binary, "--keep-memory=0"},
          LogPath("worker")));
  return absl::OkStatus();
}

std::vector<std::string> DemoRun::TrainerArgs(const std::string& mode, int rank) const {
  return {options_.trainer_binary,
          "--mode=" + mode,
          "--text=" + options_.text,
          absl::StrCat("--rank=", rank),
          absl::StrCat("--world-size=", options_.world_size),
          absl::StrCat("--batch=", options_.batch),
          absl::StrCat("--context=", options_.context),
          absl::StrCat("--width=", options_.width),
          absl::StrCat("--blocks=", options_.blocks)};
}

absl::Status DemoRun::StartTrainer(int rank, bool replace) {
  std::vector<std::string> args = TrainerArgs("sharded", rank);
  args.insert(args.end(),
              {absl::StrCat("--steps=", options_.steps), "--coordinator=" + coordinator_address_,
               "--worker=" + worker_address_, absl::StrCat("--job=", kJob),
               absl::StrCat("--compute-samples=", kComputeSamples),
               "--save=" + std::filesystem::absolute(report_.checkpoint_path).string()});
  if (replace) args.push_back("--replace");
  ASSIGN_OR_RETURN(trainers_[rank].process,
                   ChildProcess::Start(args, LogPath(absl::StrCat("trainer", rank))));
  return absl::OkStatus();
}

absl::Status DemoRun::Train() {
  report_.checkpoint_path = options_.output_dir + "/model.safetensors";
  trainers_.resize(options_.world_size);
  rank_losses_.assign(options_.steps, std::vector<double>(options_.world_size, NAN));
  step_redone_.assign(options_.steps, 0);
  last_loss_.assign(options_.world_size, {0, 0.0});
  for (int rank = 0; rank < options_.world_size; ++rank) RETURN_IF_ERROR(StartTrainer(rank, false));
  Progress progress("train", options_.steps);
  const int64_t tokens = options_.world_size * options_.batch * options_.context;
  bool killed = false;
  on_step_complete_ = [&](int64_t step) {
    SampleMemory();
    std::string what = absl::StrFormat("loss %.4f  %.0f tokens/s", report_.losses.back(),
                                       tokens / step_seconds_.back());
    const int64_t bytes = report_.peak_parameter_bytes_per_rank +
                          report_.peak_gradient_bytes_per_rank +
                          report_.peak_optimizer_bytes_per_rank;
    // The worker says it once a second.
    if (bytes > 0) absl::StrAppendFormat(&what, "  rank memory %.1f MiB", bytes / 1048576.0);
    progress.Update(step, what);
  };
  while (true) {
    std::vector<const ChildProcess*> processes;
    int finished = 0;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      Trainer& trainer = trainers_[rank];
      for (const std::string& line : trainer.process->ReadLines())
        RETURN_IF_ERROR(OnLine(rank, line));
      if (trainer.process->at_end() && !trainer.finished) {
        if (const int status = trainer.process->Wait(); status != 0) {
          return absl::InternalError(absl::StrCat("trainer ", rank, " ended with ", status,
                                                  " (see ", LogPath(absl::StrCat("trainer", rank)),
                                                  ")"));
        }
        trainer.finished = true;
      }
      finished += trainer.finished;
      processes.push_back(trainer.process.get());
    }
    if (finished == options_.world_size) break;
    if (!worker_->running() || !coordinator_->running())
      return absl::InternalError("the worker or the coordinator ended");
    if (options_.kill_trainer && !killed &&
        static_cast<int64_t>(report_.losses.size()) >= options_.steps / 3) {
      killed = true;
      // In the middle of the step that has just started.
      absl::SleepFor(absl::Seconds(Median(step_seconds_) / 2));
      progress.Note(absl::StrCat("killing trainer 2 of ", options_.world_size,
                                 " with SIGKILL in step ", report_.losses.size() + 1));
      RETURN_IF_ERROR(KillAndReplace(options_.world_size / 2));
    }
    RETURN_IF_ERROR(AwaitOutput(processes));
  }
  if (static_cast<int64_t>(report_.losses.size()) != options_.steps)
    return absl::InternalError("a step is missing");
  for (int redone : step_redone_) report_.steps_redone += redone;
  report_.step_seconds_p50 = Median(step_seconds_);
  report_.compute_only_step_seconds_p50 = Median(compute_seconds_);
  computing_.reset();
  report_.tokens_per_second = tokens / report_.step_seconds_p50;
  ASSIGN_OR_RETURN(report_.parameters_sha, FileDigest(report_.checkpoint_path));
  return absl::OkStatus();
}

absl::Status DemoRun::KillAndReplace(int rank) {
  // What it said before its end still counts.
  for (const std::string& line : trainers_[rank].process->ReadLines())
    RETURN_IF_ERROR(OnLine(rank, line));
  trainers_[rank].process->Kill(SIGKILL);
  trainers_[rank].process->Wait();
  killed_at_ = absl::Now();
  ++report_.trainer_kills;
  for (const std::string& line : trainers_[rank].process->ReadLines())
    RETURN_IF_ERROR(OnLine(rank, line));
  return StartTrainer(rank, /*replace=*/true);
}

absl::Status DemoRun::OnLine(int rank, const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InternalError(absl::StrCat("trainer ", rank, " printed: ", line));
  const std::string event = json.value("event", "");
  if (event == "attached") {
    report_.units = json.value("units", 0);
    report_.parameters = json.value("parameters", int64_t{0});
    report_.unsharded_param_bytes = report_.parameters * 4;
    if (killed_at_ != absl::InfinitePast() && report_.reattach_seconds == 0) {
      report_.reattach_seconds = absl::ToDoubleSeconds(absl::Now() - killed_at_);
      // The trainer before it may have ended between the commit of a step and saying so.
      const auto [step, loss] = last_loss_[rank];
      if (step > 0 && step < json.value("next_step", int64_t{0}) &&
          std::isnan(rank_losses_[step - 1][rank])) {
        return Committed(rank, step, loss);
      }
    }
  } else if (event == "loss") {
    last_loss_[rank] = {json.value("step", int64_t{0}), json.value("loss", 0.0)};
  } else if (event == "saved") {
    report_.checkpoint_seconds = std::max(report_.checkpoint_seconds, json.value("seconds", 0.0));
  } else if (event == "computed") {
    const int64_t sample = json.value("sample", int64_t{0});
    if (sample < 1 || sample > kComputeSamples)
      return absl::InternalError(absl::StrCat("trainer ", rank, ": sample ", sample));
    if (!computing_.has_value())
      computing_.emplace("measure forward and backward alone", kComputeSamples, 2);
    compute_seconds_.resize(kComputeSamples);
    double& slowest = compute_seconds_[sample - 1];
    slowest = std::max(slowest, json.value("seconds", 0.0));
    if (rank == 0) computing_->Update(sample, "");
  } else if (event == "step") {
    const int64_t step = json.value("step", int64_t{0});
    if (step < 1 || step > options_.steps)
      return absl::InternalError(absl::StrCat("trainer ", rank, ": step ", step));
    step_redone_[step - 1] = std::max(step_redone_[step - 1], json.value("redone", 0));
    if (rank == 0 && json.value("redone", 0) == 0)
      step_seconds_.push_back(json.value("seconds", 0.0));
    return Committed(rank, step, json.value("loss", 0.0));
  }
  return absl::OkStatus();
}

absl::Status DemoRun::Committed(int rank, int64_t step, double loss) {
  double& known = rank_losses_[step - 1][rank];
  // A committed step is never reported again: that would be a step applied twice.
  if (!std::isnan(known))
    return absl::InternalError(absl::StrCat("rank ", rank, " committed step ", step, " twice"));
  known = loss;
  while (report_.losses.size() < rank_losses_.size()) {
    const std::vector<double>& next = rank_losses_[report_.losses.size()];
    const double sum = std::accumulate(next.begin(), next.end(), 0.0);
    if (std::isnan(sum) || step_seconds_.empty()) break;
    report_.losses.push_back(sum / options_.world_size);
    on_step_complete_(report_.losses.size());
  }
  return absl::OkStatus();
}

void DemoRun::SampleMemory() {
  const auto job = GetJob({coordinator_address_}, kJob, absl::Now() + absl::Seconds(2));
  if (!job.ok()) return;
  for (const auto& [rank, status] : job->ranks()) {
    report_.peak_parameter_bytes_per_rank =
        std::max(report_.peak_parameter_bytes_per_rank, status.parameter_bytes());
    report_.peak_gradient_bytes_per_rank =
        std::max(report_.peak_gradient_bytes_per_rank, status.gradient_bytes());
    report_.peak_optimizer_bytes_per_rank =
        std::max(report_.peak_optimizer_bytes_per_rank, status.optimizer_bytes());
  }
}

absl::Status DemoRun::TrainUnsharded() {
  const std::string path =
      std::filesystem::absolute(options_.output_dir).string() + "/unsharded.safetensors";
  std::vector<std::string> args = TrainerArgs("unsharded", 0);
  args.insert(args.end(), {absl::StrCat("--steps=", options_.steps), "--save=" + path});
  ASSIGN_OR_RETURN(auto process, ChildProcess::Start(args, LogPath("unsharded")));
  Progress progress("train unsharded", options_.steps, 4);
  while (!process->at_end()) {
    for (const std::string& line : process->ReadLines()) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object() || !json.contains("losses")) continue;
      const auto losses = json["losses"].get<std::vector<double>>();
      report_.unsharded_losses.push_back(std::accumulate(losses.begin(), losses.end(), 0.0) /
                                         losses.size());
      progress.Update(report_.unsharded_losses.size(),
                      absl::StrFormat("loss %.4f", report_.unsharded_losses.back()));
    }
    RETURN_IF_ERROR(AwaitOutput({process.get()}));
  }
  if (process->Wait() != 0)
    return absl::InternalError(
        absl::StrCat("the unsharded run failed (see ", LogPath("unsharded"), ")"));
  ASSIGN_OR_RETURN(report_.params_max_abs_diff_vs_unsharded,
                   MaxAbsDifference(report_.checkpoint_path, path));
  return absl::OkStatus();
}

}  // namespace tessera::demo
