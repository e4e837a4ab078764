// op_table_checks.h - what the checks of the op table share.
#pragma once

#include "op_table.h"

namespace tarn::optable {

std::vector<Host> hosts(const std::vector<Tensor>& tensors);
/// "inputs [2, 3] f32 cpu, ...", for traces.
std::string describe(const std::vector<Tensor>& tensors);
/// |got - want| <= rtol * max(|want|, floor * largest |want|); NaN and infinities must agree.
void expect_close(const std::vector<Host>& got, const std::vector<Host>& want, double rtol,
                  double floor, const char* what);

struct Result {
  std::vector<Host> values, grads;
};
/// Value, and gradient for cotangents that depend on the row's name alone.
Result run(const Row& row, const Case& c, const std::vector<Tensor>& in);

/// Large cases: f64 against the reference, f32 against f64, halves against f32.
void check_large(const Row& row);
/// A NaN, an infinity, a negative infinity among ordinary inputs, against the reference.
void check_nonfinite(const Row& row);

}  // namespace tarn::optable
