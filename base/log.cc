#include "base/log.h"

#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "spdlog/sinks/stdout_color_sinks.h"

namespace tessera {

void SetLogContext(absl::string_view context) {
  // '%' starts a pattern flag, so a literal one is doubled.
  const std::string escaped = absl::StrReplaceAll(context, {{"%", "%%"}});
  auto logger = std::make_shared<spdlog::logger>(
      "tessera", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::get_level());
  logger->set_pattern(absl::StrCat("%Y-%m-%dT%H:%M:%S.%e %^%L%$ ", escaped, "] %v"));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

absl::Status SetLogLevel(absl::string_view name) {
  if (name == "debug") {
    spdlog::set_level(spdlog::level::debug);
  } else if (name == "info") {
    spdlog::set_level(spdlog::level::info);
  } else if (name == "warning") {
    spdlog::set_level(spdlog::level::warn);
  } else if (name == "error") {
    spdlog::set_level(spdlog::level::err);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("log level '", name, "' is none of debug, info, warning, error"));
  }
  return absl::OkStatus();
}

void CheckFailed(const char* file, int line, const char* what) {
  spdlog::critical("check failed at {}:{}: {}", file, line, what);
  spdlog::default_logger()->flush();
  std::abort();
}

}  // namespace tessera
