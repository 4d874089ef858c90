#include "net/http_stream.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/steady_time.h"

namespace tessera {
namespace {

SslConnection Connect(SSL_CTX* context, int fd) {
  if (context == nullptr) return nullptr;
  SslConnection tls(SSL_new(context));
  if (tls == nullptr || SSL_set_fd(tls.get(), fd) != 1) return nullptr;
  SSL_set_mode(tls.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return tls;
}

}  // namespace

HttpStream::HttpStream(UniqueFd fd, SSL_CTX* context, absl::Time deadline)
    : fd_(std::move(fd)), tls_(Connect(context, fd_.get())), deadline_(deadline) {}

HttpStream::~HttpStream() {
  // Once, without waiting for the client's own.
  if (tls_ != nullptr && SSL_is_init_finished(tls_.get())) SSL_shutdown(tls_.get());
  ERR_clear_error();
  shutdown(fd_.get(), SHUT_RDWR);
}

bool HttpStream::Await(short events) const {  // NOLINT(runtime/int): poll's type.
  while (true) {
    const absl::Duration left = deadline_ - SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    pollfd wait = {fd_.get(), events, 0};
    // Rounded up: with less than a millisecond left this would spin.
    const int found = poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (found > 0) return true;  // Also where it failed: the operation says so.
    if (found < 0 && errno != EINTR) return false;
  }
}

bool HttpStream::AwaitTls(int result) {
  const int error = SSL_get_error(tls_.get(), result);
  // Errors are kept by thread: one that stays would be taken for that of the next call.
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ) return Await(POLLIN);
  return error == SSL_ERROR_WANT_WRITE && Await(POLLOUT);
}

bool HttpStream::Open() {
  while (tls_ != nullptr) {
    const int result = SSL_accept(tls_.get());
    if (result == 1) break;
    if (!AwaitTls(result)) return false;
  }
  return true;
}

bool HttpStream::is_readable() const {
  return begin_ < end_ || (tls_ != nullptr && SSL_pending(tls_.get()) > 0) || Await(POLLIN);
}

bool HttpStream::is_writable() const { return Await(POLLOUT); }

ssize_t HttpStream::read(char* bytes, size_t size) {
  if (begin_ == end_) {
    const ssize_t count = ReadSome(buffer_.data(), buffer_.size());
    if (count <= 0) return -1;
    begin_ = 0;
    end_ = count;
  }
  const size_t count = std::min(size, end_ - begin_);
  std::copy_n(buffer_.data() + begin_, count, bytes);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t HttpStream::ReadSome(char* bytes, size_t size) {
  while (tls_ != nullptr) {
    const int count =
        SSL_read(tls_.get(), bytes, static_cast<int>(std::min<size_t>(size, 1 << 20)));
    if (count > 0) return count;
    if (!AwaitTls(count)) return -1;
  }
  while (Await(POLLIN)) {
    const ssize_t count = recv(fd_.get(), bytes, size, 0);
    if (count >= 0) return count == 0 ? -1 : count;
    if (errno != EINTR && errno != EAGAIN) return -1;
  }
  return -1;
}

ssize_t HttpStream::write(const char* bytes, size_t size) {
  while (tls_ != nullptr) {
    const int count =
        SSL_write(tls_.get(), bytes, static_cast<int>(std::min<size_t>(size, 1 << 20)));
    if (count > 0) return count;
    if (!AwaitTls(count)) return -1;
  }
  while (Await(POLLOUT)) {
    const ssize_t count = send(fd_.get(), bytes, size, MSG_NOSIGNAL);
    if (count >= 0) return count;
    if (errno != EINTR && errno != EAGAIN) return -1;
  }
  return -1;
}

// Nobody asks: the library adds them to a request for handlers that want them.
void HttpStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void HttpStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace tessera
