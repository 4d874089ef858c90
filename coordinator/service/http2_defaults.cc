// What gRPC assumes of a connection until its other side has acknowledged our settings, in place of
// its own table: 16 calls instead of 2^32, and headers of 16 KiB instead of 16 MiB. Otherwise a
// client that acknowledges nothing begins calls without end. gRPC's clients begin none before they
// have our settings.
//
// The table is a symbol that gRPC exports to itself; a program's own takes precedence. Its rows are
// gRPC 1.51's (src/core/ext/transport/chttp2/transport/http2_settings.h). A server sends only the
// settings that differ from this table, so the number of calls here must differ from
// CallServer::kToldMaxOfConnection. limits_of_connections_test shows that both limits hold.
#include <cstdint>

#include "grpcpp/version_info.h"

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51

struct grpc_chttp2_setting_parameters {
  const char* name;
  uint32_t default_value, min_value, max_value;
  enum Invalid : int { kClamp, kDisconnect } invalid_value;
  uint32_t error;
};

extern "C" {
extern const grpc_chttp2_setting_parameters grpc_chttp2_settings_parameters[7]
    __attribute__((visibility("default")));

const grpc_chttp2_setting_parameters grpc_chttp2_settings_parameters[7] = {
    {"HEADER_TABLE_SIZE", 4096, 0, UINT32_MAX, grpc_chttp2_setting_parameters::kClamp, 1},
    {"ENABLE_PUSH", 1, 0, 1, grpc_chttp2_setting_parameters::kDisconnect, 1},
    {"MAX_CONCURRENT_STREAMS", 16, 0, UINT32_MAX, grpc_chttp2_setting_parameters::kDisconnect, 1},
    {"INITIAL_WINDOW_SIZE", 65535, 0, INT32_MAX, grpc_chttp2_setting_parameters::kDisconnect, 3},
    {"MAX_FRAME_SIZE", 16384, 16384, 16777215, grpc_chttp2_setting_parameters::kDisconnect, 1},
    {"MAX_HEADER_LIST_SIZE", 16 << 10, 0, 16 << 20, grpc_chttp2_setting_parameters::kClamp, 1},
    {"GRPC_ALLOW_TRUE_BINARY_METADATA", 0, 0, 1, grpc_chttp2_setting_parameters::kClamp, 1},
};
}

#endif
