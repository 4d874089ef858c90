// An empty gRPC call over a Unix socket: what a step would cost at the least if it were an RPC.
#ifndef TESSERA_TESTS_BENCH_EMPTY_GRPC_H_
#define TESSERA_TESTS_BENCH_EMPTY_GRPC_H_

#include <memory>
#include <string>

namespace tessera {
namespace bench {

class EmptyGrpcServer {
 public:
  explicit EmptyGrpcServer(const std::string& socket);
  ~EmptyGrpcServer();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class EmptyGrpcClient {
 public:
  explicit EmptyGrpcClient(const std::string& socket);
  ~EmptyGrpcClient();
  // Mean seconds of a unary call, over `calls` of them.
  double SecondsPerCall(int calls);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_EMPTY_GRPC_H_
