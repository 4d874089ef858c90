// A ProcessCluster whose job is hybrid: ranks 0 and 1 on worker "w", 2 and 3 on "x", each pair with
// the whole model. A test fixture; thread-compatible.
#ifndef TESSERA_TESTS_FAULT_HYBRID_CLUSTER_H_
#define TESSERA_TESTS_FAULT_HYBRID_CLUSTER_H_

#include <string>

#include "tests/fault/process_cluster.h"

namespace tessera {

class HybridCluster : public ProcessCluster {
 protected:
  HybridCluster() {
    split_ = true;
    world_size_ = 4;
    group_size_ = on_second_ = 2;
  }

  // Coordinator, workers and trainers. Faults: of the workers' executors.
  void StartBoth(const std::string& faults_of_w = "", const std::string& faults_of_x = "") {
    StartCoordinator();
    StartWorker(faults_of_w);
    StartSecondWorker(faults_of_x);
    for (int rank = 0; rank < world_size_; ++rank) StartTrainer(rank);
  }

  // The final model of a run without failures; made once for all tests of a process.
  static const std::string& UndisturbedHybrid() {
    static const std::string* const model = new std::string([] {
      class Run : public HybridCluster {
       public:
        void TestBody() override {}
        std::string Go() {
          SetUp();
          StartBoth();
          std::string model = Finish();
          TearDown();
          return model;
        }
      };
      return Run().Go();
    }());
    return *model;
  }
};

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_HYBRID_CLUSTER_H_
