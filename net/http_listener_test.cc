// Real connections on loopback, of friends and of others.
#include "net/http_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "net/test_certificates.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpListenerTest : public ::testing::Test {
 protected:
  void Start(HttpListener::Options options = {}) {
    if (options.address.empty()) options.address = "127.0.0.1:0";
    std::map<std::string, HttpPage> pages;
    pages["/number"] = [](const HttpRequest& request) {
      const auto name = request.parameters.find("name");
      const bool known = name != request.parameters.end();
      return HttpReply{200, "text/plain", known ? name->second + " 1\n" : "none\n"};
    };
    ASSERT_OK_AND_ASSIGN(listener_, HttpListener::Start(options, std::move(pages)));
  }

  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(listener_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static std::string ReadAll(const UniqueFd& fd) {
    std::string all;
    char bytes[4096];
    while (true) {
      const ssize_t count = recv(fd.get(), bytes, sizeof(bytes), 0);
      if (count <= 0) return all;
      all.append(bytes, count);
    }
  }
  std::string Send(const std::string& bytes) const {
    const UniqueFd fd = Connect();
    send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd.get(), SHUT_WR);
    return ReadAll(fd);
  }
  std::string Get(const std::string& target, const std::string& host = "localhost") const {
    return Send(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
  }

  std::unique_ptr<HttpListener> listener_;
};

TEST_F(HttpListenerTest, GetsAPageWithItsParametersAndHeadersThatBrowsersObey) {
  Start();
  EXPECT_THAT(Get("/number?name=a%20b"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\na b 1\n"),
                    HasSubstr("X-Content-Type-Options: nosniff"),
                    HasSubstr("Content-Security-Policy: default-src 'none'")));
  EXPECT_THAT(Get("/number"), HasSubstr("none\n"));
}

TEST_F(HttpListenerTest, ReplyIsNotCompressedWhateverTheClientAccepts) {
  Start();
  for (const char* encoding : {"br", "gzip", "deflate, gzip;q=1.0, *;q=0.5"}) {
    const std::string reply =
        Send(absl::StrCat("GET /number HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: ", encoding,
                          "\r\nAccept-Encoding: br\r\n\r\n"));
    EXPECT_THAT(reply, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nnone\n"),
                             Not(HasSubstr("Content-Encoding"))));
  }
}

TEST_F(HttpListenerTest, OtherPathsAndMethodsAreRefusedByWhatThereIs) {
  Start();
  EXPECT_THAT(Get("/other"), AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("/number\n")));
  EXPECT_THAT(Send("POST /number HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, HEAD")));
  EXPECT_THAT(Send("HEAD /number HTTP/1.1\r\nHost: localhost\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpListenerTest, OnLoopbackARequestForAnotherHostIsRefused) {
  Start();
  EXPECT_THAT(Get("/number", "evil.example:80"), StartsWith("HTTP/1.1 421"));
  EXPECT_THAT(Get("/number", "127.0.0.1:9090"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get("/number", "[::1]"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpListenerTest, AnAddressOfTheNetworkNeedsTlsOrPermission) {
  EXPECT_THAT(HttpListener::Start({"0.0.0.0:0"}, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("0.0.0.0:0"), HasSubstr("--insecure-http-listen"))));
  HttpListener::Options options = {"0.0.0.0:0"};
  options.insecure = true;
  Start(options);
  EXPECT_THAT(Get("/number", "node-7:9090"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpListenerTest, APortThatAnotherHasAndATlsFileThatIsNoneAreNamed) {
  Start();
  EXPECT_THAT(HttpListener::Start({absl::StrCat("127.0.0.1:", listener_->port())}, {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("127.0.0.1")));
  HttpListener::Options options = {"127.0.0.1:0"};
  options.tls = {"/nowhere/cert", "/nowhere/key", "/nowhere/ca"};
  EXPECT_THAT(HttpListener::Start(options, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/cert")));
}

TEST_F(HttpListenerTest, WithTlsAClientNeedsACertificateOfTheAuthority) {
  ASSERT_OK_AND_ASSIGN(const auto certificates, TestCertificates::Make());
  HttpListener::Options options;
  options.tls = certificates->server();
  Start(options);
  const auto get = [&](const TlsFiles& files) {
    httplib::SSLClient client("127.0.0.1", listener_->port(), files.certificate_path,
                              files.key_path);
    client.set_ca_cert_path(files.ca_path.c_str());
    const httplib::Result result = client.Get("/number");
    return result ? result->body : httplib::to_string(result.error());
  };
  EXPECT_EQ(get(certificates->client()), "none\n");
  EXPECT_NE(get(certificates->stranger()), "none\n");
  EXPECT_EQ(Get("/number"), "") << "plain bytes are no handshake";
}

TEST_F(HttpListenerTest, WithPermissionItIsPlainEvenWhereThereAreTlsFiles) {
  ASSERT_OK_AND_ASSIGN(const auto certificates, TestCertificates::Make());
  HttpListener::Options options = {"0.0.0.0:0"};
  options.tls = certificates->server();
  options.insecure = true;
  Start(options);
  EXPECT_THAT(Get("/number", "node-7:9090"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpListenerTest, ClientsThatSendSlowlyEndAndOthersAreAnswered) {
  HttpListener::Options options;
  options.longest_connection = absl::Milliseconds(200);
  Start(options);
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(Connect());
    send(slow.back().get(), "GET /nu", 7, MSG_NOSIGNAL);
  }
  EXPECT_THAT(Get("/number"), StartsWith("HTTP/1.1 200"));
  // Each was ended without being complete.
  for (const UniqueFd& fd : slow) ReadAll(fd);
}

TEST_F(HttpListenerTest, ThousandConnectionsTakeFewDescriptors) {
  HttpListener::Options options;
  options.longest_connection = absl::Milliseconds(50);
  Start(options);
  const auto num_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = num_descriptors();
  constexpr int kConnections = 1000;
  std::vector<UniqueFd> many;
  for (int i = 0; i < kConnections; ++i) {
    // Where the kernel's queue is full too, it is not waited for.
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(fd.valid());
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(listener_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    many.push_back(std::move(fd));
  }
  EXPECT_LT(num_descriptors() - before - kConnections, 100);
  many.clear();
  EXPECT_THAT(Get("/number"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpListenerTest, WhatIsNoRequestEndsTheConnectionAlone) {
  HttpListener::Options options;
  options.longest_connection = absl::Seconds(2);
  Start(options);
  std::string ranges = "bytes=0-0";
  while (ranges.size() < 8000) ranges += ",0-0";
  std::string headers;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&headers, "X-", i, ": a\r\n");
  const std::string get = "GET /number HTTP/1.1\r\nHost: localhost\r\n";
  for (const std::string& request :
       {std::string("\r\n\r\n"), std::string("GET\r\n\r\n"), std::string(1 << 20, 'A'),
        absl::StrCat("GET /", std::string(100000, 'x'), " HTTP/1.1\r\n\r\n"),
        absl::StrCat(get, "Range: ", ranges, "\r\n\r\n"), absl::StrCat(get, headers, "\r\n"),
        absl::StrCat(get, "Content-Length: 99999999999999999999\r\n\r\n"),
        absl::StrCat("POST /number HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                     "multipart/form-data; boundary=x\r\nContent-Length: 9\r\n\r\n--x\r\n"),
        absl::StrCat("POST /number HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                     "chunked\r\n\r\nffffffffffffffff\r\n"),
        absl::StrCat(get, "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"),
        absl::StrCat("GET /number?", std::string(7000, '%'),
                     " HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("GET /%00%ff%zz?%=%&&==& HTTP/1.1\r\nHost: localhost\r\n\r\n")}) {
    Send(request);
  }
  std::mt19937 random(17);
  for (int i = 0; i < 300; ++i) {
    std::string request = absl::StrCat(get, "Accept-Encoding: gzip\r\nRange: bytes=0-1\r\n\r\n");
    for (int j = 0; j < 4; ++j) request[random() % request.size()] = static_cast<char>(random());
    Send(request);
  }
  EXPECT_THAT(Get("/number"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpListenerTest, EndsWhileClientsAreConnected) {
  Start();
  std::vector<UniqueFd> open;
  for (int i = 0; i < 60; ++i) open.push_back(Connect());  // What it and the kernel take.
  listener_.reset();
  for (const UniqueFd& fd : open) EXPECT_EQ(ReadAll(fd), "");
}

}  // namespace
}  // namespace tessera
