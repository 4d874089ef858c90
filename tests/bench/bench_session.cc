#include "tests/bench/bench_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tessera {
namespace bench {

ModelSpec EqualUnits(int num_units, int64_t unit_numel) {
  ModelSpec model;
  for (int unit = 0; unit < num_units; ++unit) {
    model.units.push_back(
        {absl::StrCat("unit", unit), {{absl::StrCat("w", unit), {unit_numel}, DType::kFp32}}});
  }
  return model;
}

std::unique_ptr<Session> OpenSession(const ClusterProcess& cluster, const std::string& job,
                                     const ModelSpec& model, const JobConfig& config, int rank,
                                     int worker) {
  SessionOptions options;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address(worker);
  options.job_id = job;
  options.rank = rank;
  options.model = model;
  options.config = config;
  auto session = Session::Open(options);
  if (!session.ok()) fprintf(stderr, "session: %s\n", session.status().ToString().c_str());
  TESSERA_CHECK(session.ok());
  TESSERA_CHECK((*session)
                    ->Initialize([](int, int, absl::Span<float> values) {
                      std::fill(values.begin(), values.end(), 1.0f);
                    })
                    .ok());
  return *std::move(session);
}

void ReduceUnit(Session* session, int unit, absl::Span<const float> gradient) {
  TESSERA_CHECK(session->AddGradient(unit, 0, gradient).ok());
  TESSERA_CHECK(session->Reduce(unit).ok());
}

}  // namespace bench
}  // namespace tessera
