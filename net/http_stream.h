// One connection of an HTTP listener as cpp-httplib reads and writes it, plain or with TLS, until a
// deadline. Thread-compatible.
#ifndef TESSERA_NET_HTTP_STREAM_H_
#define TESSERA_NET_HTTP_STREAM_H_

#include <sys/types.h>

#include <array>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "httplib.h"
#include "net/tls_context.h"

namespace tessera {

class HttpStream : public httplib::Stream {
 public:
  // `fd` does not block. `context` may be null: without TLS.
  HttpStream(UniqueFd fd, SSL_CTX* context, absl::Time deadline);
  ~HttpStream() override;

  // With TLS, the handshake. False: it failed, or the deadline has passed.
  bool Open();

  bool is_readable() const override;
  bool is_writable() const override;
  // -1: the connection ended or failed, or the deadline has passed.
  ssize_t read(char* bytes, size_t size) override;
  ssize_t write(const char* bytes, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return fd_.get(); }

 private:
  // Until the connection can be read or written (`events`).
  bool Await(short events) const;  // NOLINT(runtime/int): poll's type.
  // Whether an operation of OpenSSL that returned `result` is to be tried again.
  bool AwaitTls(int result);

  // What the kernel or OpenSSL has now.
  ssize_t ReadSome(char* bytes, size_t size);

  const UniqueFd fd_;
  const SslConnection tls_;
  const absl::Time deadline_;
  // The library reads byte by byte.
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;  // Of what it has not read yet.
};

}  // namespace tessera

#endif  // TESSERA_NET_HTTP_STREAM_H_
