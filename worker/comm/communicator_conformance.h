// What every Communicator must do. A back-end joins by linking this and giving a group runner:
//
//   INSTANTIATE_TEST_SUITE_P(ShmThreads, CommunicatorConformanceTest,
//                            testing::Combine(testing::Values(backend), testing::Values(1, 2, 3)));
//
// A test is a body that each rank runs (see rank_group.h). Excluded tests are skipped with their
// reason.
#ifndef TESSERA_WORKER_COMM_COMMUNICATOR_CONFORMANCE_H_
#define TESSERA_WORKER_COMM_COMMUNICATOR_CONFORMANCE_H_

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "worker/comm/rank_group.h"

namespace tessera {

struct CommunicatorBackend {
  std::string name;
  // Runs `body` once for each rank, all at once, and returns what they returned, by rank.
  std::function<std::vector<absl::Status>(const GroupOptions&, const RankBody&)> run;
  // Every rank behaves as if the others held its data, so tests give all ranks the same.
  bool ranks_hold_the_same = false;
  // How many ranks each host has: mapped reductions add the sums of hosts. Unset: all on one.
  std::function<std::vector<int>(int size)> hosts;
  // What the library of a GPU can sum it sums: in an order and a type of its own, and scaled
  // before.
  bool library_sums = false;
  std::map<std::string, std::string> exclusions;  // Test name -> reason.
  // Whether this machine has what the back-end needs: an error skips its tests. Unset: it has.
  std::function<absl::Status()> available;

  friend std::ostream& operator<<(std::ostream& os, const CommunicatorBackend& b) {
    return os << b.name;
  }
};

class CommunicatorConformanceTest
    : public testing::TestWithParam<std::tuple<CommunicatorBackend, int>> {
 protected:
  void SetUp() override;

  int size() const { return std::get<1>(GetParam()); }
  // Whose data rank r has: its own, or that of rank 0 (see ranks_hold_the_same).
  std::function<int(int)> DataOf() const;
  std::vector<int> Hosts() const;
  bool SumsByLibrary() const { return std::get<0>(GetParam()).library_sums; }
  std::vector<absl::Status> RunRanks(const RankBody& body, GroupOptions options = {});
  void ExpectAllOk(const RankBody& body, GroupOptions options = {});
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_COMMUNICATOR_CONFORMANCE_H_
