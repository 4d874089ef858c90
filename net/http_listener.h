// Answers GET requests over HTTP: metrics, health, a page. By the rule of transport_security.h, with
// cpp-httplib.
//
// A connection carries one request and has a deadline, however slowly its client sends or takes bytes. A few are answered at once; some more wait here, and the rest in the kernel, so that
// clients take neither descriptors nor memory without bound. Thread-safe.
#ifndef TESSERA_NET_HTTP_LISTENER_H_
#define TESSERA_NET_HTTP_LISTENER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/transport_security.h"

namespace tessera {

struct HttpRequest {
  std::string path;
  std::map<std::string, std::string> parameters;  // Decoded; of a repeated one, one.
};

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body = "ok\n";
  // What a browser may load and connect to for it.
  std::string content_security_policy = "default-src 'none'; frame-ancestors 'none'";
  std::string download_name = {};  // Browsers store it under this name; empty: they show it.
};

// Called on the listener's threads, several at once.
using HttpPage = std::function<HttpReply(const HttpRequest&)>;

class HttpListener {
 public:
  struct Options {
    std::string address;    // "host:port"; port 0: one that is free.
    TlsFiles tls = {};      // Clients need a certificate of the CA. Read at each connection.
    bool insecure = false;  // Any address, and without TLS even where there are TLS files.
    std::string insecure_flag = "--insecure-http-listen";  // What the refusal without it names.
    absl::Duration longest_connection = absl::Seconds(10);
  };
  // `pages` by path, as "/metrics". Other paths are 404, other methods than GET and HEAD 405. On a
  // loopback address, a request that names another host than this machine is refused (421): a page
  // of a stranger that has its name resolve to this machine.
  // Errors: InvalidArgument     a malformed address, a Unix socket, a file without the TLS key or certificate
  //         FailedPrecondition  an address of the network, without TLS and not permitted
  //         as DiagnoseListenFailure; NotFound, PermissionDenied  a TLS file cannot be read
  //         ResourceExhausted   there can be no more threads
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(const Options& options,
                                                             std::map<std::string, HttpPage> pages);
  // Ends all connections.
  virtual ~HttpListener() = default;
  virtual int port() const = 0;
};

}  // namespace tessera

#endif  // TESSERA_NET_HTTP_LISTENER_H_
