#include "tests/testing/toy_training.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session_buffers.h"

namespace tessera::testing_support {

void ReferenceUpdate(const JobConfig& config, const ParamGroup& group, int64_t update, double scale,
                     const std::vector<float>& gradient, ReferenceState* state) {
  const float lr = group.learning_rate;
  for (size_t i = 0; i < gradient.size(); ++i) {
    float g = gradient[i] * static_cast<float>(scale);
    float& p = state->p[i];
    if (config.optimizer == OptimizerKind::kSgd) {
      g += static_cast<float>(group.weight_decay) * p;
      state->m[i] = update == 1 ? g : static_cast<float>(group.momentum) * state->m[i] + g;
      p -= lr * (group.momentum > 0 ? state->m[i] : g);
      continue;
    }
    if (config.optimizer == OptimizerKind::kAdam) {
      g += static_cast<float>(group.weight_decay) * p;
    } else {
      p *= 1 - lr * static_cast<float>(group.weight_decay);
    }
    state->m[i] = group.beta1 * state->m[i] + (1 - group.beta1) * g;
    state->v[i] = group.beta2 * state->v[i] + (1 - group.beta2) * g * g;
    const double correction1 = 1 - std::pow(group.beta1, update);
    const double correction2 = 1 - std::pow(group.beta2, update);
    p -= lr / correction1 * state->m[i] / (std::sqrt(state->v[i] / correction2) + group.epsilon);
  }
}

ModelSpec ToyModel(int num_units, bool with_frozen) {
  ModelSpec model;
  for (int u = 0; u < num_units; ++u) {
    const std::string name = absl::StrCat("unit", u);
    UnitSpec unit = {
        name,
        {{name + ".weight", {13 + u, 7}, DType::kFp32}, {name + ".bias", {5 + u}, DType::kFp32}}};
    if (with_frozen)
      unit.parameters.push_back({name + ".frozen", {11}, DType::kFp32, /*requires_grad=*/false});
    model.units.push_back(std::move(unit));
  }
  return model;
}

std::vector<BufferSpec> ToyBuffers() {
  return {{"toy.count", StoredDType::kI64, {}},
          {"toy.stats", StoredDType::kF64, {1000}},
          {"toy.table", StoredDType::kU8, {300, 1000}}};
}

std::string ToyBufferAt(int buffer, int64_t step) {
  std::vector<double> stats(1000);
  for (size_t i = 0; i < stats.size(); ++i)
    stats[i] = static_cast<double>(step * 1000) + static_cast<double>(i);
  if (buffer == 0) return {reinterpret_cast<const char*>(&step), sizeof(step)};
  if (buffer == 2) return std::string(300 * 1000, 't');
  return {reinterpret_cast<const char*>(stats.data()), stats.size() * sizeof(double)};
}

void PublishToyBuffers(Session* session) {
  BufferHooks hooks;
  hooks.stage = [session, table_is_set = false]() mutable -> absl::Status {
    SessionBuffers buffers(session);
    const int64_t step = session->initialized() ? session->next_step() : 0;
    for (const int buffer : {0, 1}) RETURN_IF_ERROR(buffers.Set(buffer, ToyBufferAt(buffer, step)));
    if (!table_is_set) RETURN_IF_ERROR(buffers.Set(2, ToyBufferAt(2, step)));
    table_is_set = true;
    return absl::OkStatus();
  };
  SessionBuffers(session).SetHooks(std::move(hooks));
}

float InitialValue(int unit, int parameter, int64_t element) {
  return std::sin(0.7f * static_cast<float>(element) + static_cast<float>(3 * unit + parameter));
}

float ToyGradient(float parameter, int64_t element, int rank, int64_t step) {
  return parameter * 0.1f + std::sin(static_cast<float>(element + 7 * rank + 13 * step));
}

absl::Status InitializeToy(Session* session) {
  if (session->initialized()) return absl::OkStatus();
  return session->Initialize([](int unit, int parameter, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = InitialValue(unit, parameter, i);
  });
}

absl::Status ToyStep(Session* session, int64_t step, const StepOptions& options,
                     int micro_batches) {
  std::vector<std::vector<std::vector<float>>> gradients(session->num_units());
  for (int u = 0; u < session->num_units(); ++u) {
    RETURN_IF_ERROR(session->Unshard(u));
    const auto& parameters = session->layout().units[u].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const float* values = reinterpret_cast<const float*>(session->parameter(u, p));
      std::vector<float>& gradient = gradients[u].emplace_back(parameters[p].numel);
      for (int64_t i = 0; i < parameters[p].numel; ++i)
        gradient[i] = ToyGradient(values[i], i, session->rank(), step);
    }
    RETURN_IF_ERROR(session->Reshard(u));
  }
  for (int u = session->num_units() - 1; u >= 0; --u) {
    const auto& parameters = session->layout().units[u].flat.parameters();
    for (int k = 0; k < micro_batches; ++k) {
      for (size_t p = 0; p < parameters.size(); ++p) {
        if (parameters[p].spec.requires_grad)
          RETURN_IF_ERROR(session->AddGradient(u, p, gradients[u][p]));
      }
    }
    RETURN_IF_ERROR(session->Reduce(u));
  }
  return session->Step(options).status();
}

absl::Status TrainToy(Session* session, int64_t last_step,
                      const std::function<void(int64_t)>& before, int micro_batches,
                      const std::function<StepOptions(int64_t)>& options) {
  while (true) {
    absl::Status status = InitializeToy(session);
    while (status.ok() && session->next_step() <= last_step) {
      const int64_t step = session->next_step();
      if (before) before(step);
      status = session->RunStep([&] {
        return ToyStep(session, step, options ? options(step) : StepOptions(), micro_batches);
      });
    }
    if (!absl::IsAborted(status)) return status;
    RETURN_IF_ERROR(session->Recover());
  }
}

absl::StatusOr<std::vector<float>> ReadAll(Session* session) {
  std::vector<float> all;
  for (int u = 0; u < session->num_units(); ++u) {
    RETURN_IF_ERROR(session->Unshard(u));
    const auto& parameters = session->layout().units[u].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const float* values = reinterpret_cast<const float*>(session->parameter(u, p));
      all.insert(all.end(), values, values + parameters[p].numel);
    }
    RETURN_IF_ERROR(session->Reshard(u));
  }
  return all;
}

std::vector<float> ReferenceRun(const ModelSpec& model, const JobConfig& config, int64_t last_step,
                                int micro_batches) {
  std::vector<ReferenceState> states;
  std::vector<const TensorSpec*> specs;
  for (size_t u = 0; u < model.units.size(); ++u) {
    for (size_t p = 0; p < model.units[u].parameters.size(); ++p) {
      const TensorSpec& spec = model.units[u].parameters[p];
      ReferenceState state;
      for (int64_t i = 0; i < *Numel(spec); ++i) state.p.push_back(InitialValue(u, p, i));
      state.m.resize(state.p.size());
      state.v.resize(state.p.size());
      states.push_back(std::move(state));
      specs.push_back(&spec);
    }
  }
  for (int64_t step = 1; step <= last_step; ++step) {
    std::vector<std::vector<float>> gradients(states.size());
    double sum_of_squares = 0;
    for (size_t t = 0; t < states.size(); ++t) {
      gradients[t].resize(states[t].p.size());
      if (!specs[t]->requires_grad) continue;
      for (size_t i = 0; i < gradients[t].size(); ++i) {
        float sum = 0;
        for (int rank = 0; rank < config.world_size; ++rank) {
          const float one = ToyGradient(states[t].p[i], i, rank, step);
          float local = one;
          for (int k = 1; k < micro_batches; ++k) local += one;
          sum += local;
        }
        gradients[t][i] = sum / static_cast<float>(config.world_size);
        sum_of_squares += static_cast<double>(gradients[t][i]) * gradients[t][i];
      }
    }
    double scale = 1;
    if (config.max_gradient_norm > 0)
      scale = std::min(1.0, config.max_gradient_norm / (std::sqrt(sum_of_squares) + 1e-6));
    for (size_t t = 0; t < states.size(); ++t) {
      if (!specs[t]->requires_grad) continue;
      ReferenceUpdate(config, config.groups[GroupOf(config, specs[t]->name)], step, scale,
                      gradients[t], &states[t]);
    }
  }
  std::vector<float> all;
  for (const ReferenceState& state : states) all.insert(all.end(), state.p.begin(), state.p.end());
  return all;
}

}  // namespace tessera::testing_support
