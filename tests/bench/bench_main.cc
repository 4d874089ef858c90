// Measures this build against the machine's limits and against peers, prints a table, and writes
// the same as JSON. No timing here is a test: a loaded machine would make it fail.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "kernels/kernels.h"
#include "tests/bench/benchmarks.h"

namespace {

using tessera::bench::Row;

struct Flags {
  int rounds = 9;
  int64_t mebibytes = 64;
  int64_t parameters = 32 << 20;
  std::vector<int> sizes = {2, 4, 8};
  std::vector<int> batches = {1, tessera::bench::kLargeBatch};
  std::vector<std::string> only = {"collectives", "hosts", "ragged", "optimizer",
                                   "round-trip",  "sdk",   "memory", "overlap",
                                   "checkpoint",  "live",  "step"};
  std::string folder = "/tmp";
  std::string json;
  std::string executor_binary;
  std::string open_mpi_peer;
  tessera::bench::CheckpointPeerFlags checkpoint_peer;
};

bool Wants(const Flags& flags, const char* name) {
  return std::find(flags.only.begin(), flags.only.end(), name) != flags.only.end();
}

void Append(const absl::StatusOr<std::vector<Row>>& rows, std::vector<Row>* all, bool* ok) {
  if (rows.ok()) {
    all->insert(all->end(), rows->begin(), rows->end());
    return;
  }
  std::cerr << rows.status() << "\n";
  *ok = false;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Benchmarks of Tessera's host path", "tools/bench");
  app.add_option("--rounds", flags.rounds, "Interleaved rounds, 1 to 32")->capture_default_str();
  app.add_option("--mebibytes", flags.mebibytes, "Unsharded size for collectives")
      ->capture_default_str();
  app.add_option("--parameters", flags.parameters, "For the optimizer")->capture_default_str();
  app.add_option("--sizes", flags.sizes, "Ranks: 2, 4 or 8")
      ->check(CLI::IsMember({2, 4, 8}))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--batches", flags.batches, "Windows a rank and step, for whole steps")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--only", flags.only,
                 "collectives, hosts, ragged, optimizer, round-trip, sdk, memory, overlap, "
                 "checkpoint, live, step")
      ->delimiter(',');
  app.add_option("--executor-binary", flags.executor_binary,
                 "tessera-executor, for whole steps; threads where none is named");
  app.add_option("--open-mpi-peer", flags.open_mpi_peer,
                 "The program that is measured beside the collectives; none where none is named");
  app.add_option(
      "--peer-python", flags.checkpoint_peer.python,
      "A Python with PyTorch, measured beside the checkpoints; none where none is named");
  app.add_option("--peer-script", flags.checkpoint_peer.script, "What it runs");
  app.add_option("--folder", flags.folder, "Where checkpoints go, on the disk to be measured")
      ->capture_default_str();
  app.add_option("--json", flags.json, "Write the rows to this file");
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;

  bool ok = true;
  std::vector<Row> rows;
  if (Wants(flags, "collectives")) {
    for (int size : flags.sizes) {
      Append(tessera::bench::BenchCollectives(size, flags.rounds, flags.mebibytes << 20,
                                              flags.open_mpi_peer),
             &rows, &ok);
    }
  }
  if (Wants(flags, "hosts")) {
    for (int size : flags.sizes) {
      Append(tessera::bench::BenchHosts(size, flags.rounds, flags.mebibytes << 20), &rows, &ok);
    }
  }
  if (Wants(flags, "ragged")) {
    for (int size : {2, 3, 5, 7}) {
      Append(tessera::bench::BenchRagged(size, flags.rounds, flags.mebibytes << 20), &rows, &ok);
    }
  }
  if (Wants(flags, "optimizer")) {
    for (int size : {1, 2}) {
      Append(tessera::bench::BenchOptimizer(size, flags.rounds, flags.parameters), &rows, &ok);
    }
  }
  if (Wants(flags, "round-trip")) Append(tessera::bench::BenchRoundTrip(flags.rounds), &rows, &ok);
  if (Wants(flags, "sdk")) {
    Append(tessera::bench::BenchSdkStep(flags.rounds, flags.executor_binary), &rows, &ok);
  }
  if (Wants(flags, "memory")) {
    using tessera::Strategy;
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      Append(tessera::bench::BenchMemory(2, flags.rounds, strategy, flags.executor_binary), &rows,
             &ok);
    }
  }
  if (Wants(flags, "overlap")) {
    Append(tessera::bench::BenchOverlap(flags.rounds, flags.executor_binary), &rows, &ok);
  }
  if (Wants(flags, "checkpoint")) {
    for (int size : flags.sizes) {
      if (size > 4) continue;
      Append(tessera::bench::BenchCheckpoint(size, flags.rounds, flags.folder,
                                             flags.executor_binary, flags.checkpoint_peer),
             &rows, &ok);
    }
  }
  if (Wants(flags, "live"))
    Append(tessera::bench::BenchLiveState(2, flags.rounds, flags.executor_binary), &rows, &ok);
  if (Wants(flags, "step")) {
    for (int size : flags.sizes) {
      if (size > 4) continue;  // More trainers than that say nothing new on a small machine.
      for (int batch : flags.batches) {
        Append(tessera::bench::BenchStep(size, flags.rounds, batch, flags.executor_binary), &rows,
               &ok);
      }
    }
  }
  std::cout << "instruction set: " << tessera::host::SimdTargetName() << "\n"
            << tessera::bench::Table(rows);
  if (!flags.json.empty()) {
    std::ofstream file(flags.json);
    file << tessera::bench::Json(rows) << "\n";
    if (!file.flush()) {
      std::cerr << "cannot write " << flags.json << "\n";
      ok = false;
    }
  }
  return ok ? 0 : 1;
}
