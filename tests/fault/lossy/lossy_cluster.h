// A ProcessCluster with a layer that loses, repeats and delays the calls between its processes
// (lossy_proxy.cc), by the seed that is the test's parameter. A test fixture; thread-compatible.
#ifndef TESSERA_TESTS_FAULT_LOSSY_LOSSY_CLUSTER_H_
#define TESSERA_TESTS_FAULT_LOSSY_LOSSY_CLUSTER_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tessera/session_options.h"
#include "tests/demo/child_process.h"
#include "tests/fault/process_cluster.h"

namespace tessera {

class LossyCluster : public ProcessCluster, public testing::WithParamInterface<int> {
 protected:
  // Sizes of packs (call_fates.h). kEach: no call of one message each way is just handed on.
  static constexpr int kSome = 7, kEach = 4;

  struct Layer {
    std::unique_ptr<demo::ChildProcess> process;
    std::string address, log;
  };
  // In front of a server. Listens at a port of its own, or at `socket`.
  void StartLayer(const std::string& target, int pack_size, Layer* layer,
                  const std::string& socket = "");
  // Ends it. What it did to the calls of each method.
  static std::string End(Layer* layer);

  // In front of the coordinator, for workers, trainers and clients that are started after this.
  void StartLayer(int pack_size);
  // What dials it has lost the coordinator then.
  std::string EndLayer() { return End(&layer_); }

  // Of trainers of the toy model in this process, whose calls to the coordinator pass the layer.
  SessionOptions ToyOptions() const;

  // Of a description by End(): each fate that a call of this method can have has come.
  static void ExpectEveryFate(const std::string& described, const std::string& method);

  Layer layer_;
};

// Asks until the layer lets the answer through.
template <typename Reply>
absl::StatusOr<Reply> Retried(absl::FunctionRef<absl::StatusOr<Reply>()> ask) {
  absl::StatusOr<Reply> reply = ask();
  for (int tries = 1; tries < 100 && absl::IsUnavailable(reply.status()); ++tries) reply = ask();
  return reply;
}

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_LOSSY_LOSSY_CLUSTER_H_
