#include "net/metrics_text.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/utf8.h"
#include "base/version.h"

namespace tessera {
namespace {

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  // Whole numbers in full: %g would round a count of bytes.
  if (value == std::floor(value) && std::abs(value) < 9e15)
    return absl::StrCat(static_cast<int64_t>(value));
  return absl::StrFormat("%.17g", value);
}

std::string LabelText(const MetricsText::Labels& labels, absl::string_view more) {
  std::string text;
  for (const auto& [name, value] : labels) {
    absl::StrAppend(
        &text, text.empty() ? "" : ",", name, "=\"",
        absl::StrReplaceAll(PrintableUtf8(value), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
        "\"");
  }
  if (!more.empty()) absl::StrAppend(&text, text.empty() ? "" : ",", more);
  return text.empty() ? "" : absl::StrCat("{", text, "}");
}

// The number after `key`, as in /proc/self/status; 0 where it is not there.
int64_t FieldOf(const char* file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t number = 0;
    if (words >> name >> number && name == key) return number;
  }
  return 0;
}

int64_t NumDescriptors() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count;
}

// Seconds since 1970; 0 where /proc does not say.
double StartTime() {
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text);
  // The name in brackets may hold anything; the 20th word after it is what was asked for.
  std::istringstream words(text.substr(text.rfind(')') + 1));
  std::string word;
  for (int i = 0; i < 20; ++i) words >> word;
  const int64_t booted = FieldOf("/proc/stat", "btime");
  return booted + std::strtod(word.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

void MetricsText::Begin(absl::string_view name, absl::string_view help, absl::string_view type) {
  name_ = std::string(name);
  heading_ = absl::StrCat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

void MetricsText::Line(absl::string_view suffix, const Labels& labels, absl::string_view more,
                       double value) {
  absl::StrAppend(&text_, std::exchange(heading_, ""), name_, suffix, LabelText(labels, more), " ",
                  NumberText(value), "\n");
}

void MetricsText::Value(const Labels& labels, double value) { Line("", labels, "", value); }

void MetricsText::Buckets(const Labels& labels, absl::Span<const double> bounds,
                          absl::Span<const int64_t> counts, double sum) {
  int64_t count = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    const std::string bound = i < bounds.size() ? absl::StrCat(bounds[i]) : "+Inf";
    Line("_bucket", labels, absl::StrCat("le=\"", bound, "\""), count);
  }
  Line("_sum", labels, "", sum);
  Line("_count", labels, "", count);
}

HttpReply MetricsText::Take() {
  return {200, "text/plain; version=0.0.4; charset=utf-8", std::move(text_)};
}

void AddProcessMetrics(absl::string_view program, MetricsText* metrics) {
  metrics->Gauge("tessera_build_info", "1, with the version of this program.");
  metrics->Value({{"program", std::string(program)},
                  {"version", kVersion},
                  {"protocol", absl::StrCat(kProtocol)}},
                 1);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  metrics->Counter("process_cpu_seconds_total", "CPU time of this process, user and system.");
  metrics->Value({}, usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
                         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
  metrics->Gauge("process_resident_memory_bytes", "Memory of this process that is resident.");
  metrics->Value({}, 1024.0 * FieldOf("/proc/self/status", "VmRSS:"));
  metrics->Gauge("process_open_fds", "Open file descriptors of this process.");
  metrics->Value({}, NumDescriptors());
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  metrics->Gauge("process_max_fds", "Most file descriptors that this process may open.");
  metrics->Value({}, static_cast<double>(limit.rlim_cur));
  metrics->Gauge("process_start_time_seconds", "When this process started, in seconds since 1970.");
  metrics->Value({}, StartTime());
}

}  // namespace tessera
