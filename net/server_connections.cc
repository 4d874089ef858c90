// gRPC calls these functions of its own through its table of exported symbols, in which a program's
// own take precedence. They are gRPC 1.51's (src/core/ext/transport/chttp2/transport/internal.h).
// gRPC calls one of them at a time for a connection, which exists until then.
#include "net/server_connections.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/variant.h"
#include "base/check.h"
#include "grpcpp/version_info.h"

namespace tessera {

namespace {

// Of this process.
std::atomic<bool> some_server_takes_any_request = false;

}  // namespace

void ServerConnections::Limit(grpc::ServerBuilder* builder, Requests requests) {
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCalls);
  if (requests == Requests::kAny) {
    some_server_takes_any_request = true;
    return;
  }
  builder->SetMaxReceiveMessageSize(kMaxSmallRequestBytes);
  // How much of a call a client may send before it is read. gRPC would widen it by what it measures
  // of a connection.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kMaxSmallRequestBytes);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
}

}  // namespace tessera

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51

struct grpc_chttp2_transport;
struct grpc_transport;
struct grpc_endpoint;
struct grpc_chttp2_stream;
struct grpc_chttp2_stream_map;
struct grpc_transport_one_way_stats;
namespace grpc_core {
class SliceBuffer;
}
enum grpc_chttp2_initiate_write_reason : int { kWriteReset = 8 };

namespace tessera {
namespace {

// The calls of all servers. Thread-safe.
class ServerCalls {
 public:
  enum class Answer { kLetIn, kRefused, kEnded };
  // To one more call of this connection. kEnded: it is to end.
  Answer AnswerTo(const void* connection) {
    absl::MutexLock lock(&mu_);
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return Answer::kLetIn;
    const int free = ServerConnections::kMaxEnded - num_ended_;
    if (found->second.num_ended < std::max(free, ServerConnections::kAlways)) return Answer::kLetIn;
    return ++found->second.num_refused > ServerConnections::kMaxRefused ? Answer::kEnded
                                                                        : Answer::kRefused;
  }
  void Begin(const void* call, const void* connection) {
    absl::MutexLock lock(&mu_);
    calls_[call] = {connection, /*has_ended=*/false};
  }
  // Null: it is not a call of a server, but one that this process makes.
  const void* ConnectionOf(const void* call) {
    absl::MutexLock lock(&mu_);
    const auto found = calls_.find(call);
    return found == calls_.end() ? nullptr : found->second.connection;
  }
  // The connection does not know it any more.
  void End(const void* call) {
    absl::MutexLock lock(&mu_);
    const auto ended = calls_.find(call);
    if (ended == calls_.end() || ended->second.has_ended) return;
    ended->second.has_ended = true;
    ++connections_[ended->second.connection].num_ended;
    ++num_ended_;
  }
  void Free(const void* call) {
    absl::MutexLock lock(&mu_);
    const auto freed = calls_.find(call);
    if (freed == calls_.end()) return;
    if (freed->second.has_ended) {
      --num_ended_;
      const auto connection = connections_.find(freed->second.connection);
      if (--connection->second.num_ended == 0) connections_.erase(connection);
    }
    calls_.erase(freed);
  }

 private:
  struct Call {
    const void* connection;
    bool has_ended;
  };
  struct Connection {
    int num_ended = 0, num_refused = 0;
  };
  absl::Mutex mu_;
  absl::flat_hash_map<const void*, Call> calls_ ABSL_GUARDED_BY(mu_);
  // Those with ended calls.
  absl::flat_hash_map<const void*, Connection> connections_ ABSL_GUARDED_BY(mu_);
  int num_ended_ ABSL_GUARDED_BY(mu_) = 0;
};

ServerCalls& Calls() {
  static auto* const calls = new ServerCalls;
  return *calls;
}

template <typename Function>
Function* FunctionOfGrpc(Function* /*own*/, const char* symbol) {
  void* const found = dlsym(RTLD_NEXT, symbol);
  TESSERA_CHECK(found != nullptr);  // It was called through that symbol.
  return reinterpret_cast<Function*>(found);
}

constexpr uint32_t kRefusedStream = 7;

}  // namespace
}  // namespace tessera

#pragma GCC visibility push(default)

struct grpc_chttp2_setting_parameters {
  const char* name;
  uint32_t default_value, min_value, max_value;
  enum Invalid : int { kClamp, kDisconnect } invalid_value;
  uint32_t error;
};

// What gRPC assumes of a connection until its other side has acknowledged what it was told, with
// kMaxCallsBefore instead of 2^32 and headers of 16 KiB instead of 16 MiB. gRPC's clients begin no
// call before they were told. gRPC tells only what differs from this table, so kMaxCalls must.
static_assert(tessera::ServerConnections::kMaxCalls != tessera::ServerConnections::kMaxCallsBefore);
extern "C" {
extern const grpc_chttp2_setting_parameters grpc_chttp2_settings_parameters[7];
const grpc_chttp2_setting_parameters grpc_chttp2_settings_parameters[7] = {
    {"HEADER_TABLE_SIZE", 4096, 0, UINT32_MAX, grpc_chttp2_setting_parameters::kClamp, 1},
    {"ENABLE_PUSH", 1, 0, 1, grpc_chttp2_setting_parameters::kDisconnect, 1},
    {"MAX_CONCURRENT_STREAMS", tessera::ServerConnections::kMaxCallsBefore, 0, UINT32_MAX,
     grpc_chttp2_setting_parameters::kDisconnect, 1},
    {"INITIAL_WINDOW_SIZE", 65535, 0, INT32_MAX, grpc_chttp2_setting_parameters::kDisconnect, 3},
    {"MAX_FRAME_SIZE", 16384, 16384, 16777215, grpc_chttp2_setting_parameters::kDisconnect, 1},
    {"MAX_HEADER_LIST_SIZE", 16 << 10, 0, 16 << 20, grpc_chttp2_setting_parameters::kClamp, 1},
    {"GRPC_ALLOW_TRUE_BINARY_METADATA", 0, 0, 1, grpc_chttp2_setting_parameters::kClamp, 1},
};
}

// gRPC's own, which the functions below call.
grpc_endpoint* grpc_transport_get_endpoint(grpc_transport* connection);
int grpc_endpoint_get_fd(grpc_endpoint* endpoint);
void grpc_chttp2_add_rst_stream_to_next_write(grpc_chttp2_transport* connection, uint32_t id,
                                              uint32_t error, grpc_transport_one_way_stats* stats);
void grpc_chttp2_initiate_write(grpc_chttp2_transport* connection,
                                grpc_chttp2_initiate_write_reason reason);

// gRPC closes it, once it has read to the end.
static void EndConnection(const void* connection) {
  // A grpc_transport is the first member of a grpc_chttp2_transport.
  auto* const transport = static_cast<grpc_transport*>(const_cast<void*>(connection));
  shutdown(grpc_endpoint_get_fd(grpc_transport_get_endpoint(transport)), SHUT_RDWR);
}

// A client begins a call. Null: it is not let in, and what else comes of it is skipped.
grpc_chttp2_stream* grpc_chttp2_parsing_accept_stream(grpc_chttp2_transport* connection,
                                                      uint32_t id) {
  static auto* const accept =
      tessera::FunctionOfGrpc(&grpc_chttp2_parsing_accept_stream,
                              "_Z33grpc_chttp2_parsing_accept_streamP21grpc_chttp2_transportj");
  using Answer = tessera::ServerCalls::Answer;
  const Answer answer = tessera::Calls().AnswerTo(connection);
  if (answer == Answer::kLetIn) return accept(connection, id);
  if (answer == Answer::kEnded) {
    EndConnection(connection);
    return nullptr;
  }
  grpc_chttp2_add_rst_stream_to_next_write(connection, id, tessera::kRefusedStream, nullptr);
  grpc_chttp2_initiate_write(connection, kWriteReset);
  return nullptr;
}

// A call takes its memory. `server_data` is null where it is a call of a client of this process.
#define TESSERA_CONSTRUCTOR                                                              \
  "_ZN18grpc_chttp2_streamC1EP21grpc_chttp2_transportP20grpc_stream_refcountPKvPN9grpc_" \
  "core5ArenaE"
void ConstructStream(grpc_chttp2_stream* call, grpc_chttp2_transport* connection, void* references,
                     const void* server_data, void* arena) __asm__(TESSERA_CONSTRUCTOR);
void ConstructStream(grpc_chttp2_stream* call, grpc_chttp2_transport* connection, void* references,
                     const void* server_data, void* arena) {
  static auto* const construct = tessera::FunctionOfGrpc(&ConstructStream, TESSERA_CONSTRUCTOR);
  if (server_data != nullptr) tessera::Calls().Begin(call, connection);
  construct(call, connection, references, server_data, arena);
}

// A call's bytes become a message, if all of it is there. `missing_bytes`: what gRPC reads until then.
struct Pending {};
using Deframed = absl::variant<Pending, absl::Status>;
#define TESSERA_DEFRAME                                                         \
  "_Z40grpc_deframe_unprocessed_incoming_framesP18grpc_chttp2_streamPlPN9grpc_" \
  "core11SliceBufferEPj"
Deframed Deframe(grpc_chttp2_stream* call, int64_t* missing_bytes, grpc_core::SliceBuffer* message,
                 uint32_t* flags) __asm__(TESSERA_DEFRAME);
Deframed Deframe(grpc_chttp2_stream* call, int64_t* missing_bytes, grpc_core::SliceBuffer* message,
                 uint32_t* flags) {
  static auto* const deframe = tessera::FunctionOfGrpc(&Deframe, TESSERA_DEFRAME);
  Deframed deframed = deframe(call, missing_bytes, message, flags);
  if (absl::holds_alternative<Pending>(deframed) &&
      *missing_bytes > tessera::ServerConnections::kMaxSmallRequestBytes &&
      !tessera::some_server_takes_any_request) {
    const void* const connection = tessera::Calls().ConnectionOf(call);
    if (connection != nullptr) EndConnection(connection);
  }
  return deframed;
}

// Both sides have ended a call. Returns the call, or null.
void* grpc_chttp2_stream_map_delete(grpc_chttp2_stream_map* calls, uint32_t id) {
  static auto* const remove =
      tessera::FunctionOfGrpc(&grpc_chttp2_stream_map_delete,
                              "_Z29grpc_chttp2_stream_map_deleteP22grpc_chttp2_stream_mapj");
  void* const call = remove(calls, id);
  if (call != nullptr) tessera::Calls().End(call);
  return call;
}

// A call gives back its memory.
#define TESSERA_DESTRUCTOR "_ZN18grpc_chttp2_streamD1Ev"
void DestroyStream(grpc_chttp2_stream* call) __asm__(TESSERA_DESTRUCTOR);
void DestroyStream(grpc_chttp2_stream* call) {
  static auto* const destroy = tessera::FunctionOfGrpc(&DestroyStream, TESSERA_DESTRUCTOR);
  tessera::Calls().Free(call);
  destroy(call);
}

#pragma GCC visibility pop

#endif
