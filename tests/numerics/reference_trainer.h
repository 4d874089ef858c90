// A job in one process and plain scalar code: no shards, no vectors, no threads. Of every value it
// says which bits a sharded job must have, whatever its world size and strategy.
//
//   slot[rank]  (+)= gradient               each sum rounded to what the gradient travels in
//   sum           =  (slot[0] + slot[1] + ...) + (...)      in full precision: the ranks of each
//                                                            worker in order, then the workers
//   mean         (+)= 1/W * sum
//   p, m, v        =  the optimizer's formula, in full precision, of mean * scale
//
// Full precision is fp32, or fp64 of parameters that are; numbers are kept as double, and those of
// fp32 are computed as float, so that they are floats always.
// Only the norm of the gradient may differ in its last bits, since its sum depends on which rank
// holds what: a step is given the norm that the job found.
#ifndef TESSERA_TESTS_NUMERICS_REFERENCE_TRAINER_H_
#define TESSERA_TESTS_NUMERICS_REFERENCE_TRAINER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "job/job_config.h"
#include "layout/tensor_spec.h"
#include "tessera/session_options.h"

namespace tessera::numerics {

// To nearest, ties to even, from fp64 by way of fp32; fp32 and fp64 stay as they are.
double RoundTo(DType dtype, double value);

class ReferenceTrainer {
 public:
  // `ranks_by_worker` adds up to the world size.
  ReferenceTrainer(const ModelSpec& model, const JobConfig& config,
                   std::vector<int> ranks_by_worker);

  int num_parameters() const { return static_cast<int>(parameters_.size()); }
  int UnitOf(int parameter) const { return parameters_[parameter].unit; }
  const TensorSpec& spec(int parameter) const { return parameters_[parameter].spec; }
  // The values of a parameter in full precision, numbered over the model.
  std::vector<double>& values(int parameter) { return parameters_[parameter].p; }
  const std::vector<double>& values(int parameter) const { return parameters_[parameter].p; }
  const std::vector<double>& first_moments(int parameter) const { return parameters_[parameter].m; }
  const std::vector<double>& second_moments(int parameter) const {
    return parameters_[parameter].v;
  }
  // How often the parameter was updated.
  int64_t num_updates(int parameter) const { return parameters_[parameter].updates; }
  DType compute_dtype(int unit) const { return units_[unit].compute_dtype; }
  DType full_dtype(int unit) const { return units_[unit].full_dtype; }

  void AddGradient(int rank, int parameter, absl::Span<const double> gradient, bool full_precision);
  // Of one unit, over all ranks.
  void Reduce(int unit, bool full_precision);
  // Of what was reduced since the last step, after all divisions.
  double Norm(const StepOptions& options, double total_weight) const;
  // `total_weight`: of all ranks, where options.weight is given.
  void Step(const StepOptions& options, double total_weight, double gradient_norm);
  void DropGradients();

 private:
  struct Parameter {
    int unit;
    TensorSpec spec;
    std::vector<double> p, m, v, mean;
    std::vector<std::vector<double>> slots;  // By rank; empty: no gradient.
    bool touched = false;
    int64_t updates = 0;
  };
  struct Unit {
    DType full_dtype, compute_dtype, reduce_dtype;
    bool reduced = false;
  };

  // Real: what the parameter's unit has as full precision.
  template <typename Real>
  Real Sum(const Parameter& parameter, size_t i) const;
  template <typename Real>
  void ReduceParameter(DType dtype, Parameter* parameter);
  double Scale(const StepOptions& options, double total_weight) const;
  template <typename Real>
  void Update(const HyperParameters& numbers, double scale, Parameter* parameter);
  template <typename Real>
  void UpdateSgd(const HyperParameters& numbers, Real scale, Parameter* parameter);

  const JobConfig config_;
  const std::vector<int> ranks_by_worker_;
  std::vector<Unit> units_;
  std::vector<Parameter> parameters_;
};

}  // namespace tessera::numerics

#endif  // TESSERA_TESTS_NUMERICS_REFERENCE_TRAINER_H_
