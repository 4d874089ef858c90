// Trains the toy model as one rank and saves it. Prints "step N" before each step, "done" at the
// end. With --buffers rank 0 publishes those of ToyBuffers. Before step --pause-at it waits until
// the file --resume-file exists. After step
// --hand-over-at it hands the job over, and prints "handed over" or "goes on". With --take-over-from
// the job begins with the state of that one.
#include <grp.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "base/fault_point.h"
#include "base/log.h"
#include "tessera/hand_over.h"
#include "tessera/in_process_executor.h"
#include "tessera/session.h"
#include "tests/testing/toy_training.h"

int main(int argc, char** argv) {
  tessera::SessionOptions options;
  int64_t steps = 1;
  int64_t pause_at = 0;
  std::string save, resume_file;
  CLI::App app;
  app.add_option("--coordinator", options.coordinator_address)->required();
  app.add_option("--worker", options.worker_address)->required();
  app.add_option("--rank", options.rank)->required();
  app.add_option("--world-size", options.config.world_size)->required();
  app.add_option("--steps", steps)->required();
  app.add_option("--save", save)->required();
  app.add_option("--pause-at", pause_at);
  app.add_option("--resume-file", resume_file);
  app.add_option("--shard-group-size", options.config.shard_group_size);
  app.add_flag("--replace", options.wait_if_attached);
  app.add_flag("--insecure-connect", options.insecure_connect);
  int64_t collective_timeout_ms = absl::ToInt64Milliseconds(options.config.collective_timeout);
  app.add_option("--collective-timeout-ms", collective_timeout_ms);
  double learning_rate = 0.01;
  app.add_option("--learning-rate", learning_rate);
  bool no_clipping = false;
  app.add_flag("--no-clipping", no_clipping);
  app.add_flag("--optimizer-in-backward", options.config.optimizer_in_backward);
  int64_t hand_over_at = 0;
  app.add_option("--hand-over-at", hand_over_at);
  options.job_id = "toy";
  app.add_option("--job", options.job_id);
  std::string take_over_from;
  app.add_option("--take-over-from", take_over_from);
  bool host_executor = false;
  app.add_flag("--host-executor", host_executor);
  bool buffers = false;
  app.add_flag("--buffers", buffers);
  int64_t unused_buffer_bytes = 0;  // Of one that nobody publishes.
  app.add_option("--unused-buffer-bytes", unused_buffer_bytes);
  bool reports = false;  // A number at each step.
  app.add_flag("--report", reports);
  std::string faults;
  app.add_option("--fault-points", faults);
  int uid = -1;  // To be, once this is loaded from where only the test's user may read.
  app.add_option("--uid", uid);
  CLI11_PARSE(app, argc, argv);
  if (uid >= 0 && (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0)) return 2;
  if (!tessera::ArmFaultPointsFromFlag(faults).ok()) return 2;
  if (host_executor) options.host_executor = tessera::InProcessExecutor();
  if (options.config.shard_group_size > 0)
    options.config.strategy = tessera::Strategy::kHybridShard;
  options.config.collective_timeout = absl::Milliseconds(collective_timeout_ms);
  options.model = tessera::testing_support::ToyModel(4);
  if (buffers) options.model.buffers = tessera::testing_support::ToyBuffers();
  if (unused_buffer_bytes > 0)
    options.model.buffers.push_back({"unused", tessera::StoredDType::kU8, {unused_buffer_bytes}});
  options.config.groups[0].learning_rate = learning_rate;
  options.config.max_gradient_norm = no_clipping ? 0.0 : 1.0;
  auto session = tessera::Session::Open(options);
  absl::Status status = session.status();
  if (status.ok() && buffers) tessera::testing_support::PublishToyBuffers(session->get());
  // Every step has numbers of its own, so that one that is redone with another's would show.
  const auto numbers = [&](int64_t step) {
    tessera::StepOptions of_step;
    of_step.groups = {options.config.groups[0]};
    of_step.groups[0].learning_rate *= 1.0 / static_cast<double>(step);
    of_step.groups[0].beta1 = 0.9 - 0.01 * static_cast<double>(step % 5);
    return of_step;
  };
  const auto announce = [&](int64_t step) {
    printf("step %ld\n", static_cast<long>(step));
    fflush(stdout);
    if (reports) (void)(*session)->Report({{"number", static_cast<double>(step)}});
    while (step == pause_at && access(resume_file.c_str(), F_OK) != 0) usleep(1000);
    // Where this fails the try of the step will too, and says so.
    if (options.config.optimizer_in_backward) (void)(*session)->AnnounceStep(numbers(step));
  };
  while (status.ok() && !take_over_from.empty() && !(*session)->initialized()) {
    status = tessera::TakeOver(session->get(), {take_over_from, absl::Seconds(60)}).status();
    if (absl::IsAborted(status)) status = (*session)->Recover();
  }
  while (status.ok() && hand_over_at > 0) {
    status = tessera::testing_support::TrainToy(session->get(), hand_over_at, announce, 1, numbers);
    if (status.ok()) {
      status = tessera::HandOver(session->get(), {std::to_string(options.rank)});
      if (status.ok()) return puts("handed over") < 0;
    }
    if (absl::IsCancelled(status)) {
      puts("goes on");
      fflush(stdout);
      status = absl::OkStatus();
      break;
    }
    if (absl::IsAborted(status)) status = (*session)->Recover();
  }
  while (status.ok()) {
    status = tessera::testing_support::TrainToy(session->get(), steps, announce, 1, numbers);
    if (status.ok()) status = (*session)->Save(save);
    if (status.ok()) status = tessera::FaultPoint("toy.saved");
    if (!absl::IsAborted(status)) break;
    status = (*session)->Recover();  // A failure while saving: the steps are done already.
  }
  if (!status.ok()) {
    fprintf(stderr, "toy trainer %d: %s\n", options.rank, status.ToString().c_str());
    return 1;
  }
  puts("done");
  return 0;
}
