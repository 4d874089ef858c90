// The same collectives by Gloo, over TCP on loopback, to compare with ours. One per rank.
#ifndef TESSERA_TESTS_BENCH_GLOO_GROUP_H_
#define TESSERA_TESTS_BENCH_GLOO_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {
namespace bench {

class GlooGroup {
 public:
  // Ranks meet through files below `directory`, which is empty before.
  GlooGroup(const std::string& directory, int rank, int size);
  ~GlooGroup();

  void Barrier();
  void AllGather(const float* send, int64_t count, float* recv);
  // In place: sums over the ranks.
  void AllReduce(float* buffer, int64_t count);
  // In place over `buffer`. Buffers are set up at the first call for a (buffer, count).
  void ReduceScatter(float* buffer, int64_t count);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_GLOO_GROUP_H_
