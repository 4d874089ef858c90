// Metrics in Prometheus' text format, version 0.0.4. Thread-compatible.
#ifndef TESSERA_NET_METRICS_TEXT_H_
#define TESSERA_NET_METRICS_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "net/http_listener.h"

namespace tessera {

class MetricsText {
 public:
  using Labels = std::vector<std::pair<absl::string_view, std::string>>;

  // The metric that the next values are of. Each once; one without values is left out.
  void Counter(absl::string_view name, absl::string_view help) { Begin(name, help, "counter"); }
  void Gauge(absl::string_view name, absl::string_view help) { Begin(name, help, "gauge"); }
  void Histogram(absl::string_view name, absl::string_view help) { Begin(name, help, "histogram"); }

  // Label values may be any text.
  void Value(const Labels& labels, double value);
  // Of a histogram: `counts` by bucket, one more than `bounds`, which ascend.
  void Buckets(const Labels& labels, absl::Span<const double> bounds,
               absl::Span<const int64_t> counts, double sum);

  HttpReply Take();

 private:
  void Begin(absl::string_view name, absl::string_view help, absl::string_view type);
  void Line(absl::string_view suffix, const Labels& labels, absl::string_view more, double value);

  std::string text_;
  std::string name_;
  std::string heading_;  // Until the first value.
};

// Of this process: build, CPU time, memory, descriptors.
void AddProcessMetrics(absl::string_view program, MetricsText* metrics);

}  // namespace tessera

#endif  // TESSERA_NET_METRICS_TEXT_H_
