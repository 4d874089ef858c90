// The only way to log. One line per event: `TESSERA_LOG(INFO, "rank {} attached", rank)` with
// {fmt} placeholders. Lines go to standard error; the prefix names process, job, rank as set by
// SetLogContext. Thread-safe.
#ifndef TESSERA_BASE_LOG_H_
#define TESSERA_BASE_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "spdlog/spdlog.h"

namespace tessera {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Names this process in each of its lines, e.g. "executor job=gpt rank=2".
void SetLogContext(absl::string_view context);
// Errors: InvalidArgument  `name` is none of debug, info, warning, error.
absl::Status SetLogLevel(absl::string_view name);

}  // namespace tessera

#define TESSERA_LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define TESSERA_LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define TESSERA_LOG_WARNING(...) ::spdlog::warn(__VA_ARGS__)
#define TESSERA_LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
#define TESSERA_LOG(severity, ...) TESSERA_LOG_##severity(__VA_ARGS__)

#endif  // TESSERA_BASE_LOG_H_
