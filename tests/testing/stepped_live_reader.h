// A client that reads a job's state, moments too, and only when it is told to: piece by piece. For
// tests of many that hang, or read at once. Thread-compatible. Destroying it cancels what it reads.
#ifndef TESSERA_TESTS_TESTING_STEPPED_LIVE_READER_H_
#define TESSERA_TESTS_TESTING_STEPPED_LIVE_READER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera::testing_support {

class SteppedLiveReader {
 public:
  // `direct`: it fetches from the worker, of which the job has one. The coordinator's address is
  // one of this machine.
  SteppedLiveReader(const std::string& coordinator, const std::string& job, bool direct);
  ~SteppedLiveReader();
  SteppedLiveReader(const SteppedLiveReader&) = delete;
  SteppedLiveReader& operator=(const SteppedLiveReader&) = delete;

  // The next message of the coordinator's stream. False: it is over.
  bool Read();
  const v1::LiveStateReply& reply() const { return reply_; }
  // Of one that is direct: the next piece of its worker. False: it has sent all.
  bool Fetch();
  // Reads what is left. How the stream ended; OK if it was asked before.
  absl::Status Finish();
  int64_t read_bytes() const { return read_bytes_; }

 private:
  const std::unique_ptr<v1::LiveState::Stub> stub_;
  grpc::ClientContext context_, fetch_context_;
  std::unique_ptr<grpc::ClientReader<v1::LiveStateReply>> stream_;
  std::unique_ptr<v1::LiveFetch::Stub> fetch_stub_;
  std::unique_ptr<grpc::ClientReader<v1::LivePiece>> fetch_;
  v1::LiveStateReply reply_;
  int64_t read_bytes_ = 0;
  bool is_finished_ = false;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_STEPPED_LIVE_READER_H_
