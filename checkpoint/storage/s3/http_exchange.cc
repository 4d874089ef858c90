#include "checkpoint/storage/s3/http_exchange.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/storage/s3/curl_api.h"
#include "checkpoint/storage/s3/s3_signature.h"

namespace tessera::s3 {
namespace {

constexpr size_t kMaxHeaders = 100, kMaxHeaderBytes = 8 << 10;
constexpr int64_t kConnectTimeoutMs = 10'000;
// Less than this is next to nothing.
constexpr int64_t kLeastBytesPerSecond = 1 << 10;

// Handles, which keep their connections, between exchanges.
class HandlePool {
 public:
  static HandlePool* Get() {
    static auto* const pool = new HandlePool();  // Never destroyed, as what it is used by.
    return pool;
  }

  CURL* Take(const CurlApi& curl) {
    {
      absl::MutexLock lock(&mu_);
      // A forked process must not speak on the connections of its parent, which goes on using them.
      if (process_ != getpid()) idle_.clear();
      process_ = getpid();
      if (!idle_.empty()) {
        CURL* const handle = idle_.back();
        idle_.pop_back();
        return handle;
      }
    }
    return curl.easy_init();
  }
  void GiveBack(const CurlApi& curl, CURL* handle) {
    // Forgets the pointers into this exchange, and keeps the connection.
    curl.easy_reset(handle);
    absl::MutexLock lock(&mu_);
    idle_.push_back(handle);  // As many as there ever were exchanges at once.
  }

 private:
  absl::Mutex mu_;
  pid_t process_ ABSL_GUARDED_BY(mu_) = getpid();
  std::vector<CURL*> idle_ ABSL_GUARDED_BY(mu_);
};

// Writing to a connection that its peer has closed would end the process; libcurl prevents that
// only by changing how the whole process takes the signal.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now = {};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &now) > 0) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

// What the callbacks of one exchange know.
struct State {
  const CurlApi* curl = nullptr;
  CURL* handle = nullptr;
  absl::string_view to_send;
  absl::Span<char> into;
  size_t taken_bytes = 0;
  bool is_too_large = false;
  bool has_all_headers = false;
  HttpAnswer answer;
};

size_t SendBody(char* buffer, size_t size, size_t count, void* user) {
  auto* const state = static_cast<State*>(user);
  const size_t bytes = std::min(size * count, state->to_send.size());
  memcpy(buffer, state->to_send.data(), bytes);
  state->to_send.remove_prefix(bytes);
  return bytes;
}

size_t TakeBody(char* data, size_t size, size_t count, void* user) {
  auto* const state = static_cast<State*>(user);
  const size_t bytes = size * count;
  long status = 0;
  state->curl->easy_getinfo(state->handle, CURLINFO_RESPONSE_CODE, &status);
  // The document of an error is not what the caller wants in its memory.
  const bool is_data = !state->into.empty() && status >= 200 && status < 300;
  const size_t most = is_data ? state->into.size() : kMaxBodyBytes;
  if (bytes > most - state->taken_bytes) {
    // Fewer bytes than were given end the exchange.
    state->is_too_large = true;
    return 0;
  }
  if (is_data) {
    memcpy(state->into.data() + state->taken_bytes, data, bytes);
  } else {
    state->answer.body.append(data, bytes);
  }
  state->taken_bytes += bytes;
  return bytes;
}

size_t TakeHeader(char* data, size_t size, size_t count, void* user) {
  auto* const state = static_cast<State*>(user);
  const absl::string_view line(data, size * count);
  // A new status line: what came with an earlier one ("100 Continue") is over.
  if (absl::StartsWith(line, "HTTP/")) state->answer.headers.clear();
  state->has_all_headers = line == "\r\n" || line == "\n";
  const size_t colon = line.find(':');
  if (colon != absl::string_view::npos && line.size() <= kMaxHeaderBytes &&
      state->answer.headers.size() < kMaxHeaders) {
    state->answer.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return line.size();
}

// What another try cannot cure: it is this side, or the other side is not who it should be.
bool IsTransient(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_FAILED_INIT:
    case CURLE_URL_MALFORMAT:
    case CURLE_NOT_BUILT_IN:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_UNKNOWN_OPTION:
    case CURLE_WRITE_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_ENGINE_NOTFOUND:
      return false;
    default:
      return true;
  }
}

const char* NameOf(Method method) {
  switch (method) {
    case Method::kGet:
      return "GET";
    case Method::kHead:
      return "HEAD";
    case Method::kPut:
      return "PUT";
    case Method::kPost:
      return "POST";
    case Method::kDelete:
      return "DELETE";
  }
  return "";
}

class Performer {
 public:
  Performer(const CurlApi& curl, CURL* handle, const S3Settings& settings,
            const HttpRequest& request)
      : curl_(curl), handle_(handle), settings_(settings), request_(request) {
    state_.curl = &curl;
    state_.handle = handle;
    state_.to_send = request.body;
    state_.into = request.into;
  }
  ~Performer() { curl_.slist_free_all(headers_); }
  Performer(const Performer&) = delete;
  Performer& operator=(const Performer&) = delete;

  HttpAnswer Run() {
    SetConnection();
    SetMethod();
    SetHeaders();
    char why[CURL_ERROR_SIZE] = "";
    Set(CURLOPT_ERRORBUFFER, static_cast<char*>(why));
    CURLcode code = CURLE_OK;
    {
      const WithoutSigpipe without;
      code = curl_.easy_perform(handle_);
    }
    // The handle outlives this buffer.
    Set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
    long status = 0;
    curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    state_.answer.status = static_cast<int>(status);
    Judge(code, why);
    return std::move(state_.answer);
  }

 private:
  template <typename Value>
  void Set(CURLoption option, Value value) {
    curl_.easy_setopt(handle_, option, value);
  }

  void SetConnection() {
    Set(CURLOPT_URL, request_.url.c_str());
    // The signature is of this path, so libcurl must not tidy it up.
    Set(CURLOPT_PATH_AS_IS, 1L);
    // Otherwise libcurl may use SIGALRM for its timeouts, which belongs to the program.
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_NOPROGRESS, 1L);
    // Of a URL that is made here: nothing leads to another scheme or host.
    Set(CURLOPT_FOLLOWLOCATION, 0L);
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_SSL_VERIFYPEER, 1L);
    Set(CURLOPT_SSL_VERIFYHOST, 2L);
    if (!settings_.ca_bundle.empty()) Set(CURLOPT_CAINFO, settings_.ca_bundle.c_str());
    Set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(kConnectTimeoutMs));
    const int64_t timeout_ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(request_.timeout));
    Set(CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
    Set(CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(kLeastBytesPerSecond));
    Set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(absl::ToInt64Seconds(request_.most_silence)));
    Set(CURLOPT_WRITEFUNCTION, &TakeBody);
    Set(CURLOPT_WRITEDATA, &state_);
    Set(CURLOPT_HEADERFUNCTION, &TakeHeader);
    Set(CURLOPT_HEADERDATA, &state_);
  }

  void SetMethod() {
    switch (request_.method) {
      case Method::kGet:
        Set(CURLOPT_HTTPGET, 1L);
        break;
      case Method::kHead:
        Set(CURLOPT_NOBODY, 1L);
        break;
      case Method::kDelete:
        Set(CURLOPT_CUSTOMREQUEST, "DELETE");
        break;
      case Method::kPost:
        Set(CURLOPT_POST, 1L);
        Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
        Set(CURLOPT_POSTFIELDS, request_.body.empty() ? "" : request_.body.data());
        break;
      case Method::kPut:
        Set(CURLOPT_UPLOAD, 1L);
        Set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
        Set(CURLOPT_READFUNCTION, &SendBody);
        Set(CURLOPT_READDATA, &state_);
        break;
    }
  }

  void AddHeader(const std::string& header) {
    if (curl_slist* const longer = curl_.slist_append(headers_, header.c_str())) headers_ = longer;
  }

  // With a signature, of the body too: one that was damaged on its way is refused.
  void SetHeaders() {
    const SignedRequest to_sign = {NameOf(request_.method), request_.url, request_.headers,
                                   request_.body};
    // The store compares the time with its own clock.
    for (const std::string& header : SignHeaders(to_sign, settings_, WallNow())) AddHeader(header);
    // Otherwise libcurl says that the body is a form.
    if (request_.method == Method::kPost) AddHeader("content-type: application/octet-stream");
    Set(CURLOPT_HTTPHEADER, headers_);
  }

  void Judge(CURLcode code, const char* why) {
    HttpAnswer& answer = state_.answer;
    if (state_.is_too_large) {
      answer.failure = "its answer is longer than it may be";
    } else if (code != CURLE_OK) {
      answer.failure = *why != '\0' ? why : curl_.easy_strerror(code);
      answer.is_transient = IsTransient(code);
    } else if (!state_.has_all_headers) {  // Which libcurl takes for an answer without a body.
      answer.failure = "its answer ends within the headers";
      answer.is_transient = true;
    } else if (answer.is_success() && state_.taken_bytes < request_.into.size()) {
      answer.failure = absl::StrCat("its answer has ", state_.taken_bytes, " of ",
                                    request_.into.size(), " bytes");
      answer.is_transient = true;
    }
  }

  const CurlApi& curl_;
  CURL* const handle_;
  const S3Settings& settings_;
  const HttpRequest& request_;
  State state_;
  curl_slist* headers_ = nullptr;
};

}  // namespace

std::string HttpAnswer::HeaderOf(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

absl::StatusOr<HttpAnswer> Exchange(const S3Settings& settings, const HttpRequest& request) {
  ASSIGN_OR_RETURN(const CurlApi* const curl, LoadCurl());
  CURL* const handle = HandlePool::Get()->Take(*curl);
  if (handle == nullptr) return absl::ResourceExhaustedError("no memory for a request to s3://");
  HttpAnswer answer = Performer(*curl, handle, settings, request).Run();
  HandlePool::Get()->GiveBack(*curl, handle);
  return answer;
}

}  // namespace tessera::s3
