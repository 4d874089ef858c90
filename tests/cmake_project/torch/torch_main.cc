// torch_main TRAIN MODEL_FILE: a cluster for two ranks, each a process of TRAIN, the program of
// tests/example/train.cc. Fails unless both end well.
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "tessera/local_cluster.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  tessera::LocalCluster::Options options;
  options.num_devices = 2;
  auto cluster = tessera::LocalCluster::Start(options);
  if (!cluster.ok()) {
    std::cerr << cluster.status() << "\n";
    return 1;
  }
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < options.num_devices; ++rank) {
    const std::string variables[] = {"TESSERA_COORDINATOR=" + (*cluster)->coordinator_address(),
                                     "TESSERA_WORKER=" + (*cluster)->worker_address(),
                                     "RANK=" + std::to_string(rank), "WORLD_SIZE=2"};
    const pid_t child = fork();
    if (child == 0) {
      execl("/usr/bin/env", "env", variables[0].c_str(), variables[1].c_str(), variables[2].c_str(),
            variables[3].c_str(), argv[1], "20", argv[2], nullptr);
      _exit(127);
    }
    ranks.push_back(child);
  }
  bool good = true;
  for (const pid_t rank : ranks) {
    int status = -1;
    good =
        waitpid(rank, &status, 0) == rank && WIFEXITED(status) && WEXITSTATUS(status) == 0 && good;
  }
  return good ? 0 : 1;
}
