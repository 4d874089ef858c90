// tessera-demo: runs the demo and prints its report. tools/demo builds everything and calls it.
#include <signal.h>

#include <cstdio>
#include <fstream>

#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "base/log.h"
#include "tests/demo/demo_run.h"
#include "tests/demo/text.h"

int main(int argc, char** argv) {
  tessera::demo::DemoOptions options;
  options.text = "/usr/share/games/fortunes";
  options.output_dir = "out/demo";
  std::string json_path;
  bool no_kill = false, no_compare = false;
  CLI::App app(
      "Trains a byte-level GPT on real text over a cluster of processes, through a killed "
      "trainer.",
      "tools/demo");
  app.add_option("--coordinator-binary", options.coordinator_binary)->required()->group("");
  app.add_option("--worker-binary", options.worker_binary)->required()->group("");
  app.add_option("--executor-binary", options.executor_binary)->required()->group("");
  app.add_option("--trainer-binary", options.trainer_binary)->required()->group("");
  app.add_option("--text", options.text, "a text file, or a folder of text files")
      ->capture_default_str();
  app.add_option("--output-dir", options.output_dir, "for logs and the model")
      ->capture_default_str();
  app.add_option("--steps", options.steps)
      ->capture_default_str()
      ->check(tessera::WholeNumber(3, 1000000));
  app.add_option("--world-size", options.world_size)
      ->capture_default_str()
      ->check(tessera::WholeNumber(1, 64));
  app.add_option("--batch", options.batch, "windows of a rank and step")
      ->capture_default_str()
      ->check(tessera::WholeNumber(1, 4096));
  app.add_option("--context", options.context, "bytes of a window")
      ->capture_default_str()
      ->check(tessera::WholeNumber(2, 4096));
  app.add_option("--width", options.width)
      ->capture_default_str()
      ->check(tessera::WholeNumber(4, 4096));
  app.add_option("--blocks", options.blocks)
      ->capture_default_str()
      ->check(tessera::WholeNumber(1, 256));
  app.add_option("--json", json_path, "also write the report to this file as JSON");
  app.add_flag("--no-kill", no_kill, "let every trainer live");
  app.add_flag("--no-compare", no_compare, "skip the unsharded run");
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  options.kill_trainer = !no_kill;
  options.compare_unsharded = !no_compare;
  // Noted by the run, which then ends all that it has started and takes its folder away.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) tessera::demo::EndDemoOnSignal(signal);
  absl::Status status = tessera::demo::ReadText(options.text, 16 * (options.context + 1)).status();
  if (status.ok()) {
    const auto report = tessera::demo::DemoRun(options).Run();
    status = report.status();
    if (report.ok()) {
      fputs(report->Text().c_str(), stdout);
      if (json_path.empty()) return 0;
      if (std::ofstream(json_path) << report->Json()) return 0;
      status = absl::PermissionDeniedError("cannot write " + json_path);
    }
  }
  fprintf(stderr, "tools/demo: %s\n", status.ToString().c_str());
  return tessera::demo::DemoSignal() == 0 ? 1 : 128 + tessera::demo::DemoSignal();
}
