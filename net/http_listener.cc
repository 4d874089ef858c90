#include "net/http_listener.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "httplib.h"
#include "net/address.h"
#include "net/http_stream.h"
#include "net/listen_tcp.h"

namespace tessera {
namespace {

constexpr int kThreads = 4;
constexpr size_t kMaxWaiting = 64;  // Connections that were accepted, and that no thread has yet.
constexpr size_t kMaxBodyBytes = 4096;  // Of a request: it needs none.

// Where cpp-httplib puts connections. While many wait, Add does, and more clients wait in the kernel.
class Connections : public httplib::TaskQueue {
 public:
  ~Connections() override { End(); }

  absl::Status Start() {
    for (int i = 0; i < kThreads; ++i) {
      ASSIGN_OR_RETURN(std::thread thread, StartThread("HTTP connections", [this] { Work(); }));
      threads_.push_back(std::move(thread));
    }
    return absl::OkStatus();
  }

  // From now on nothing waits; what comes or came is still called, on the threads.
  void StopWaiting() {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }

  void enqueue(std::function<void()> connection) override {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &Connections::HasRoom));
    waiting_.push_back(std::move(connection));
  }
  void shutdown() override { End(); }

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || waiting_.size() < kMaxWaiting;
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_ || !waiting_.empty(); }
  void Work() {
    // OpenSSL writes without MSG_NOSIGNAL.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    while (true) {
      std::function<void()> connection;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &Connections::HasWork));
        if (waiting_.empty()) return;
        connection = std::move(waiting_.front());
        waiting_.pop_front();
      }
      connection();
    }
  }
  void End() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = ended_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  absl::Mutex mu_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// The library compresses for those who accept it, with brotli at its slowest: clients could take a
// daemon's processors with requests of a few bytes.
void NeverCompressed(httplib::Request& request) { request.headers.erase("Accept-Encoding"); }

// cpp-httplib's server with a deadline for each connection, which it has only for each read.
class Server : public httplib::Server {
 public:
  explicit Server(const HttpListener::Options& options)
      : tls_(options.tls), longest_(options.longest_connection) {}

  // Connections that are open end, and later ones at once.
  void EndConnections() {
    absl::MutexLock lock(&mu_);
    ended_ = true;
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    UniqueFd fd(socket);
    // HttpStream waits by poll, up to the connection's deadline. A read that blocks would not end.
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    SslContext context;
    if (!tls_.empty()) {
      // Read again for each connection, so that renewed files come into use.
      absl::StatusOr<SslContext> made = MakeServerContext(tls_);
      if (!made.ok()) {
        TESSERA_LOG(WARNING, "no HTTP connection: {}", std::string(made.status().message()));
        return false;
      }
      context = *std::move(made);
    }
    {
      absl::MutexLock lock(&mu_);
      // EndConnections has gone through open_ already, and would miss this one.
      if (ended_) return false;
      open_.insert(socket);
    }
    bool is_closed = false;
    HttpStream stream(std::move(fd), context.get(), SteadyNow() + longest_);
    bool answered = false;
    try {  // The library throws where a request is malformed in ways that it did not foresee.
      answered = stream.Open() &&
                 process_request(stream, /*close_connection=*/true, is_closed, NeverCompressed);
    } catch (const std::exception& error) {
      TESSERA_LOG(WARNING, "ends an HTTP connection: {}", std::string(error.what()));
    }
    absl::MutexLock lock(&mu_);
    // Before `stream` closes it: the number may be another connection's at once, and EndConnections
    // would shut that down.
    open_.erase(socket);
    return answered;
  }

  const TlsFiles tls_;
  const absl::Duration longest_;
  absl::Mutex mu_;
  std::set<int> open_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Of "127.0.0.1:9090", "[::1]:9090" or "localhost".
bool NamesThisMachine(const std::string& host) {
  const bool has_port = absl::StrContains(host, ':') && !absl::EndsWith(host, "]");
  const auto address = ParseServerAddress(has_port ? host : absl::StrCat(host, ":80"));
  return address.ok() && (address->reach == Reach::kLoopback || IsThisMachine(address->host));
}

class CppHttplibListener : public HttpListener {
 public:
  CppHttplibListener(const Options& options, std::map<std::string, HttpPage> pages)
      : pages_(std::move(pages)),
        server_(std::make_unique<Server>(options)),
        connections_(std::make_unique<Connections>()) {}

  ~CppHttplibListener() override {
    if (!accepts_.joinable()) return;
    // First, because the thread that accepts may wait for a free connection.
    in_use_->StopWaiting();
    // Before the join, which waits for the connections that are open.
    server_->EndConnections();
    server_->stop();
    accepts_.join();
  }

  absl::Status Listen(const Options& options, const ServerAddress& address) {
    checks_host_ = address.reach == Reach::kLoopback;
    server_->set_payload_max_length(kMaxBodyBytes);
    server_->set_tcp_nodelay(true);
    server_->set_socket_options([](socket_t socket) {
      const int yes = 1;  // Not SO_REUSEPORT: two on one port is a mistake.
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    // Before paths are matched and bodies read.
    server_->set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          Answer(request, &response);
          return httplib::Server::HandlerResponse::Handled;
        });
    port_ = address.port;
    if (port_ == 0) {
      port_ = server_->bind_to_any_port(address.host);
    } else if (!server_->bind_to_port(address.host, port_)) {
      port_ = -1;
    }
    if (port_ <= 0) return DiagnoseListenFailure(address, options.address);
    RETURN_IF_ERROR(connections_->Start());
    in_use_ = connections_.get();
    absl::Notification begun;
    // The server owns it from then on.
    server_->new_task_queue = [this, &begun] {
      begun.Notify();
      return connections_.release();
    };
    ASSIGN_OR_RETURN(accepts_, StartThread("HTTP", [this] { server_->listen_after_bind(); }));
    // Before the server runs, its stop() does nothing, and the destructor would wait for ever.
    begun.WaitForNotification();
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  void Answer(const httplib::Request& request, httplib::Response* response) const {
    const HttpReply reply = Reply(request);
    response->status = reply.status;
    response->set_header("Cache-Control", "no-store");
    response->set_header("X-Content-Type-Options", "nosniff");
    response->set_header("Referrer-Policy", "no-referrer");
    response->set_header("Content-Security-Policy", reply.content_security_policy);
    if (reply.status == 405) response->set_header("Allow", "GET, HEAD");
    if (!reply.download_name.empty()) {
      response->set_header("Content-Disposition",
                           absl::StrCat("attachment; filename=\"", reply.download_name, "\""));
    }
    response->set_content(reply.body, reply.content_type);
  }

  HttpReply Reply(const httplib::Request& request) const {
    // A web site whose name leads to this machine would read the pages in a user's browser.
    if (checks_host_ && !NamesThisMachine(request.get_header_value("Host")))
      return {421, "text/plain; charset=utf-8", "this address is only for this machine\n"};
    const auto page = pages_.find(request.path);
    if (page == pages_.end()) {
      std::string known = "not found; there are:\n";
      for (const auto& [path, ignored] : pages_) absl::StrAppend(&known, path, "\n");
      return {404, "text/plain; charset=utf-8", known};
    }
    if (request.method != "GET" && request.method != "HEAD")
      return {405, "text/plain; charset=utf-8", "only GET and HEAD\n"};
    HttpRequest own = {request.path, {}};
    for (const auto& [name, value] : request.params) own.parameters[name] = value;
    return page->second(own);
  }

  const std::map<std::string, HttpPage> pages_;
  bool checks_host_ = false;
  int port_ = 0;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Connections> connections_;  // Until the server has it.
  Connections* in_use_ = nullptr;
  std::thread accepts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(
    const Options& given, std::map<std::string, HttpPage> pages) {
  Options options = given;
  if (options.insecure) options.tls = {};
  ASSIGN_OR_RETURN(const ServerAddress address, ParseServerAddress(options.address));
  if (address.reach == Reach::kUnix) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", options.address, "': HTTP needs host:port, not a Unix socket"));
  }
  // Its own error names the permission of gRPC's listeners.
  if (address.reach == Reach::kNetwork && options.tls.empty() && !options.insecure) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", options.address, "' can be reached by others: give TLS files, or ",
                     options.insecure_flag, " to permit it without"));
  }
  ASSIGN_OR_RETURN(const Protection protection,
                   ChooseProtection(Side::kListen, options.address, options.tls, options.insecure));
  if (protection == Protection::kMutualTls)
    RETURN_IF_ERROR(MakeServerContext(options.tls).status());
  auto listener = std::make_unique<CppHttplibListener>(options, std::move(pages));
  RETURN_IF_ERROR(listener->Listen(options, address));
  return listener;
}

}  // namespace tessera
