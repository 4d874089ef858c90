// Bytes that a gRPC server streams from memory over loopback, in messages of 1 MiB: what a client
// that reads a model over gRPC cannot do without. Each byte from its own place, as a model's are;
// or the same MiB again and again, which comes from a cache.
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
  explicit PlainStreamServer(int64_t most_bytes);  // Of its memory.
  ~PlainStreamServer();
  int port() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads `bytes` from the coordinator at `address`, of the job's state that is named (which has as
// many), or from a PlainStreamServer. Connects once, at the first call.
class StreamClient {
 public:
  explicit StreamClient(const std::string& address);
  ~StreamClient();
  // These end the process where they fail or the bytes are not as many. From a PlainStreamServer;
  // `again`: the same MiB.
  double SecondsForPlain(int64_t bytes, bool again);
  // Of the job's state, moments included, through the coordinator.
  double SecondsFor(const std::string& job, int64_t bytes);
  // The same, fetched from its one worker, over TCP.
  double SecondsForFetch(const std::string& job, int64_t bytes);

 private:
  double Seconds(const std::string& job, bool moments, int64_t bytes);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_PLAIN_STREAM_H_
