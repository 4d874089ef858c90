// What a client that speaks HTTP/2 by hand may begin before it acknowledges any settings.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "coordinator/service/server.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"

namespace tessera::coordinator {
namespace {

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  std::string frame(9, '\0');
  for (int i = 0; i < 3; ++i) frame[i] = static_cast<char>(payload.size() >> (16 - 8 * i));
  frame[3] = static_cast<char>(type);
  frame[4] = static_cast<char>(flags);
  for (int i = 0; i < 4; ++i) frame[5 + i] = static_cast<char>(stream >> (24 - 8 * i));
  return absl::StrCat(frame, payload);
}

std::string Text(absl::string_view text) {  // Of a header, below 127 bytes.
  return absl::StrCat(std::string(1, static_cast<char>(text.size())), text);
}

// The client's first frames, and the headers of so many calls, each of which waits for its message.
std::string Begin(int num_calls) {
  const std::string headers =
      absl::StrCat("\x83\x86", "\x04", Text("/tessera.v1.Jobs/GetJob"), "\x01", Text("localhost"),
                   std::string("\x0f\x10", 2), Text("application/grpc"), std::string(1, '\0'),
                   Text("te"), Text("trailers"));
  std::string bytes = absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(4, 0, 0, ""));
  for (int call = 0; call < num_calls; ++call) bytes += Frame(1, 4, 2 * call + 1, headers);
  return bytes;
}

class LimitsOfConnectionsTest : public testing::Test {
 protected:
  void SetUp() override {
    CoordinatorServer::Options options;
    options.listen_address = "127.0.0.1:0";
    ASSERT_OK_AND_ASSIGN(server_, CoordinatorServer::Start(options));
  }
  // "ended" or "answers": what the server does with a connection that begins so many calls.
  std::string WhatBecomesOf(int num_calls) {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval timeout = {10, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
      return "refused";
    // A ping's answer tells that all before it was read.
    const std::string bytes = Begin(num_calls) + Frame(6, 0, 0, "ABCDEFGH");
    if (send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return "ended";
    std::string received;
    char part[4096];
    while (received.find("ABCDEFGH") == std::string::npos) {
      const ssize_t count = recv(fd.get(), part, sizeof(part), 0);
      if (count < 0 && errno == EAGAIN) return "silent";
      if (count <= 0) return "ended";
      received.append(part, count);
    }
    return "answers";
  }

  std::unique_ptr<CoordinatorServer> server_;
};

TEST_F(LimitsOfConnectionsTest, WhoAcknowledgesNoSettingsBegins16Calls) {
  EXPECT_EQ(WhatBecomesOf(16), "answers");
  EXPECT_EQ(WhatBecomesOf(17), "ended");
}

TEST_F(LimitsOfConnectionsTest, ClientsOfGrpcAreToldTheLimitAndWaitWithMore) {
  const auto channel = *OpenChannel({absl::StrCat("127.0.0.1:", server_->port())}, {});
  const auto jobs = v1::Jobs::NewStub(channel);
  grpc::CompletionQueue queue;
  struct Call {
    grpc::ClientContext context;
    v1::Job reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::Job>> reader;
  };
  std::vector<std::unique_ptr<Call>> calls;
  v1::GetJobRequest request;
  request.set_job_id("none");
  for (int i = 0; i < 500; ++i) {
    calls.push_back(std::make_unique<Call>());
    calls[i]->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    calls[i]->reader = jobs->AsyncGetJob(&calls[i]->context, request, &queue);
    calls[i]->reader->Finish(&calls[i]->reply, &calls[i]->status, calls[i].get());
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(static_cast<Call*>(tag)->status.error_code(), grpc::StatusCode::NOT_FOUND)
        << static_cast<Call*>(tag)->status.error_message();
  }
}

}  // namespace
}  // namespace tessera::coordinator
