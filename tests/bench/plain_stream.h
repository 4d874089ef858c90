// Bytes that a gRPC server streams from memory over loopback, in messages of 1 MiB: what a client
// that reads a model over gRPC cannot do without.
#ifndef TESSERA_TESTS_BENCH_PLAIN_STREAM_H_
#define TESSERA_TESTS_BENCH_PLAIN_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {
namespace bench {

// Requires a process without forks to come.
class PlainStreamServer {
 public:
  PlainStreamServer();
  ~PlainStreamServer();
  int port() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads `bytes` from the coordinator at `address`, of a job's state where one is named (which has
// as many), else from a PlainStreamServer. Connects once, at the first call.
class StreamClient {
 public:
  explicit StreamClient(const std::string& address);
  ~StreamClient();
  // Ends the process where it fails or the bytes are not as many.
  double SecondsFor(const std::string& job, bool moments, int64_t bytes);
  // The same of the job's state, moments included, fetched from its one worker, over TCP.
  double SecondsForFetch(const std::string& job, int64_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_PLAIN_STREAM_H_
