// gRPC calls these functions of its own through its table of exported symbols, in which a program's
// own take precedence. They are gRPC 1.51's (src/core/ext/transport/chttp2/transport/internal.h),
// and called with the lock of their connection held.
#include "net/server_connections.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/version_info.h"

namespace tessera {

void ServerConnections::Limit(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCalls);
}

}  // namespace tessera

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51

struct grpc_chttp2_transport;
struct grpc_chttp2_stream;
struct grpc_chttp2_stream_map;
struct grpc_transport_one_way_stats;
enum grpc_chttp2_initiate_write_reason : int { kWriteReset = 8 };

namespace tessera {
namespace {

// The calls of all servers. Thread-safe.
class ServerCalls {
 public:
  bool MayBegin(const void* connection) {
    absl::MutexLock lock(&mu_);
    const auto ended = ended_of_.find(connection);
    const int free = ServerConnections::kMaxEnded - num_ended_;
    return ended == ended_of_.end() || ended->second < std::max(free, ServerConnections::kAlways);
  }
  void Begin(const void* call, const void* connection) {
    absl::MutexLock lock(&mu_);
    calls_[call] = {connection, /*has_ended=*/false};
  }
  // The connection does not know it any more.
  void End(const void* call) {
    absl::MutexLock lock(&mu_);
    const auto ended = calls_.find(call);
    if (ended == calls_.end() || ended->second.has_ended) return;
    ended->second.has_ended = true;
    ++ended_of_[ended->second.connection];
    ++num_ended_;
  }
  void Free(const void* call) {
    absl::MutexLock lock(&mu_);
    const auto freed = calls_.find(call);
    if (freed == calls_.end()) return;
    if (freed->second.has_ended) {
      --num_ended_;
      const auto ended = ended_of_.find(freed->second.connection);
      if (--ended->second == 0) ended_of_.erase(ended);
    }
    calls_.erase(freed);
  }

 private:
  struct Call {
    const void* connection;
    bool has_ended;
  };
  absl::Mutex mu_;
  absl::flat_hash_map<const void*, Call> calls_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const void*, int> ended_of_ ABSL_GUARDED_BY(mu_);  // Of those with any.
  int num_ended_ ABSL_GUARDED_BY(mu_) = 0;
};

ServerCalls& Calls() {
  static auto* const calls = new ServerCalls;
  return *calls;
}

template <typename Function>
Function* FunctionOfGrpc(Function* /*own*/, const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
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
void grpc_chttp2_add_rst_stream_to_next_write(grpc_chttp2_transport* connection, uint32_t id,
                                              uint32_t error, grpc_transport_one_way_stats* stats);
void grpc_chttp2_initiate_write(grpc_chttp2_transport* connection,
                                grpc_chttp2_initiate_write_reason reason);

// A client begins a call. Null: it is not let in, and what else comes of it is skipped.
grpc_chttp2_stream* grpc_chttp2_parsing_accept_stream(grpc_chttp2_transport* connection,
                                                      uint32_t id) {
  static auto* const accept =
      tessera::FunctionOfGrpc(&grpc_chttp2_parsing_accept_stream,
                              "_Z33grpc_chttp2_parsing_accept_streamP21grpc_chttp2_transportj");
  if (tessera::Calls().MayBegin(connection)) return accept(connection, id);
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
