#include "base/log.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/utf8.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_color_sinks.h"

namespace tessera {

namespace {

// The message without characters that neither a terminal nor a log should get from others: control
// characters, including line ends, so that an event is one line, and invalid UTF-8.
class EscapedMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const absl::string_view text(message.payload.data(), message.payload.size());
    const std::string escaped = absl::StrReplaceAll(PrintableUtf8(text), {{"\n", "\\n"}});
    out.append(escaped.data(), escaped.data() + escaped.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>();
  }
};

}  // namespace

void SetLogContext(absl::string_view context) {
  // '%' starts a pattern flag, so a literal one is doubled.
  const std::string escaped = absl::StrReplaceAll(context, {{"%", "%%"}});
  auto logger = std::make_shared<spdlog::logger>(
      "tessera", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::get_level());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedMessage>('*').set_pattern(
      absl::StrCat("%Y-%m-%dT%H:%M:%S.%e %^%L%$ ", escaped, "] %*"));
  logger->set_formatter(std::move(formatter));
  // A line that explains a crash must be out before it.
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
