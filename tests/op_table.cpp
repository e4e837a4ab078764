// op_table.cpp - what every row is run through.
#include "op_table.h"

#include <cmath>
#include <limits>

#include "op_table_checks.h"
#include "op_table_inputs.h"
#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/core/backend.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::optable {

size_t Host::position(const Shape& index) const {
  int64_t p = 0;
  for (int d = 0; d < sizes.dim(); ++d) p = p * sizes[d] + index[d];
  return static_cast<size_t>(p);
}

Shape Host::index(int64_t position) const {
  Shape out = Shape::filled(sizes.dim(), 0);
  for (int d = sizes.dim() - 1; d >= 0; --d) {
    out[d] = position % sizes[d];
    position /= sizes[d];
  }
  return out;
}

Reference each(std::function<double(const std::vector<double>&)> f) {
  return one([f](const std::vector<Host>& in) {
    Shape sizes = in[0].sizes;
    for (const Host& h : in) sizes = broadcast_shapes("reference", sizes, h.sizes);
    Host out(sizes);
    std::vector<double> x(in.size());
    bool alike = true;
    for (const Host& h : in) alike &= h.sizes == sizes;
    for (size_t i = 0; alike && i < out.v.size(); ++i) {
      for (size_t k = 0; k < in.size(); ++k) x[k] = in[k].v[i];
      out.v[i] = f(x);
    }
    for (int64_t i = 0; !alike && i < out.numel(); ++i) {
      const Shape at = out.index(i);
      for (size_t k = 0; k < in.size(); ++k) {
        Shape mine = Shape::filled(in[k].sizes.dim(), 0);
        for (int d = 0; d < mine.dim(); ++d) {
          mine[d] = in[k].sizes[d] == 1 ? 0 : at[d + sizes.dim() - mine.dim()];
        }
        x[k] = in[k].v[in[k].position(mine)];
      }
      out.v[static_cast<size_t>(i)] = f(x);
    }
    return out;
  });
}

namespace {

double largest(const Host& h) {
  double m = 0;
  for (double v : h.v) {
    if (std::isfinite(v)) m = std::max(m, std::abs(v));
  }
  return m;
}

}  // namespace

std::vector<Host> hosts(const std::vector<Tensor>& tensors) {
  std::vector<Host> out;
  for (const Tensor& t : tensors) out.push_back(Host::of(t));
  return out;
}

std::string describe(const std::vector<Tensor>& tensors) {
  std::string text;
  for (const Tensor& t : tensors) text += (text.empty() ? "" : ", ") + t.describe();
  return "inputs " + text;
}

void expect_close(const std::vector<Host>& got, const std::vector<Host>& want, double rtol,
                  double floor, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t o = 0; o < got.size(); ++o) {
    ASSERT_EQ(got[o].sizes, want[o].sizes) << what << " " << o;
    const double scale = floor * largest(want[o]);
    int shown = 0;
    for (size_t i = 0; i < got[o].v.size() && shown < 5; ++i) {
      const double a = got[o].v[i], b = want[o].v[i];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      if (std::abs(a - b) <= rtol * std::max(std::abs(b), scale)) continue;
      ++shown;
      ADD_FAILURE() << what << " " << o << " at " << want[o].index(static_cast<int64_t>(i))
                    << ": got " << testing::PrintToString(a) << ", want "
                    << testing::PrintToString(b) << ", difference " << a - b;
    }
  }
}

namespace {

// Gradients of sum(output * cotangent) for the leaves that want one; zeros where none flows.
std::vector<Host> gradients(const std::vector<Tensor>& outputs, const std::vector<Tensor>& leaves,
                            const std::vector<Tensor>& cotangents) {
  std::vector<Tensor> roots, seeds, wanted;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].requires_grad()) continue;
    roots.push_back(outputs[o]);
    seeds.push_back(cotangents[o]);
  }
  for (const Tensor& x : leaves) {
    if (x.requires_grad()) wanted.push_back(x);
  }
  std::vector<Host> out;
  if (roots.empty()) return out;
  const std::vector<Tensor> grads = grad(roots, wanted, seeds, {.allow_unused = true});
  for (size_t i = 0; i < grads.size(); ++i) {
    const bool flows = grads[i].defined();
    EXPECT_TRUE(!flows || grads[i].dtype() == wanted[i].dtype()) << "gradient " << i;
    out.push_back(flows ? Host::of(grads[i]) : Host(wanted[i].sizes()));
  }
  return out;
}

std::vector<Tensor> cotangents_for(const std::vector<Tensor>& outputs, Rng& rng) {
  std::vector<Tensor> out;
  for (const Tensor& y : outputs) out.push_back(random_like(y, rng));
  return out;
}

}  // namespace

Result run(const Row& row, const Case& c, const std::vector<Tensor>& in) {
  const std::vector<Tensor> leaves = as_leaves(in, c);
  const std::vector<Tensor> out = row.fn(leaves);
  Result r;
  r.values = hosts(out);
  Rng rng = rng_for(row.name + "/cotangents");
  if (row.gradient) r.grads = gradients(out, leaves, cotangents_for(out, rng));
  return r;
}

namespace {

void check_value(const Row& row) {
  Rng rng = rng_for(row.name);
  for (const Case& c : row.cases) {
    const std::vector<Tensor> in = make_inputs(c, DType::kF64, rng);
    SCOPED_TRACE(describe(in));
    expect_close(hosts(row.fn(in)), row.reference(hosts(in)), row.rtol, 0.1, "output");
  }
}

constexpr GradcheckOptions kTight{.atol = 1e-7, .rtol = 1e-5};

void check_gradient(const Row& row) {
  Rng rng = rng_for(row.name);
  for (const Case& c : row.cases) {
    gradcheck(row.fn, as_leaves(make_inputs(c, DType::kF64, rng), c), kTight);
  }
}

void check_second(const Row& row) {
  Rng rng = rng_for(row.name);
  for (const Case& c : row.cases) {
    gradgradcheck(row.fn, as_leaves(make_inputs(c, DType::kF64, rng), c), kTight);
  }
}

void check_f32(const Row& row) {
  Rng rng = rng_for(row.name);
  for (const Case& c : row.cases) {
    const std::vector<Tensor> in = make_inputs(c, DType::kF32, rng);
    SCOPED_TRACE(describe(in));
    const Result got = run(row, c, in), want = run(row, c, converted(in, c, DType::kF64));
    expect_close(got.values, want.values, row.rtol_f32, 1, "output");
    expect_close(got.grads, want.grads, 10 * row.rtol_f32, 1, "gradient");
  }
}

// Position of a half on the line of all halves: neighbours differ by 1.
int64_t ordinal(uint16_t bits) {
  return bits & 0x8000 ? -static_cast<int64_t>(bits & 0x7FFF) : static_cast<int64_t>(bits);
}
int64_t ulps_apart(double a, double b, DType dtype) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const auto bits = [dtype](double v) {
    return dtype == DType::kF16 ? half(static_cast<float>(v)).bits
                                : bfloat16(static_cast<float>(v)).bits;
  };
  return std::abs(ordinal(bits(a)) - ordinal(bits(b)));
}

// Values within ulps of the rounded f32 result (of the largest value, where the result is a sum
// that cancels); gradients, whose intermediate results round too, within 16 such units.
void check_half(const Row& row, DType dtype) {
  Rng rng = rng_for(row.name);
  const double unit = dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
  for (const Case& c : row.cases) {
    const std::vector<Tensor> in = make_inputs(c, dtype, rng);
    SCOPED_TRACE(describe(in));
    const Result got = run(row, c, in), want = run(row, c, converted(in, c, DType::kF32));
    ASSERT_EQ(got.values.size(), want.values.size());
    for (size_t o = 0; o < got.values.size(); ++o) {
      ASSERT_EQ(got.values[o].sizes, want.values[o].sizes);
      for (size_t i = 0; i < got.values[o].v.size(); ++i) {
        const double a = got.values[o].v[i], b = want.values[o].v[i];
        if (row.ulps_half > 1 && std::abs(a - b) <= row.ulps_half * unit * largest(want.values[o]))
          continue;
        EXPECT_LE(ulps_apart(a, b, dtype), row.ulps_half)
            << "output " << o << " at " << got.values[o].index(static_cast<int64_t>(i)) << ": got "
            << a << ", in f32 " << b;
      }
    }
    expect_close(got.grads, want.grads, 16 * unit, 1, "gradient");
  }
}

void check_integers(const Row& row) {
  Rng rng = rng_for(row.name);
  for (DType dtype : {DType::kI64, DType::kI32, DType::kU8}) {
    if (dtype == DType::kU8 && !row.u8) continue;
    for (const Case& c : row.cases) {
      const std::vector<Tensor> in = make_inputs(c, dtype, rng);
      SCOPED_TRACE(describe(in));
      const std::vector<Tensor> out = row.fn(in);
      const bool floating = is_floating(out[0].dtype());
      expect_close(hosts(out), row.reference(hosts(in)), floating ? row.rtol_f32 : 0, 1, "output");
    }
  }
}

void check_layout(const Row& row, Layout layout) {
  for (DType dtype : {DType::kF64, DType::kF32}) {
    Rng rng = rng_for(row.name);
    const double rtol = dtype == DType::kF64 ? row.rtol : row.rtol_f32;
    for (const Case& c : row.cases) {
      const std::vector<Tensor> in = laid_out(make_inputs(c, dtype, rng), layout);
      SCOPED_TRACE(describe(in));
      std::vector<Tensor> dense;
      for (const Tensor& x : in) dense.push_back(raw::contiguous(x));
      const Result got = run(row, c, in), want = run(row, c, dense);
      expect_close(got.values, want.values, rtol, 1, "output");
      expect_close(got.grads, want.grads, 10 * rtol, 1, "gradient");
    }
  }
}

void check_empty(const Row& row) {
  Rng rng = rng_for(row.name);
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16}) {
    if (dtype == DType::kF16 && !row.halves) continue;
    for (const Case& c : row.empty) {
      const std::vector<Tensor> in = make_inputs(c, dtype, rng);
      SCOPED_TRACE(describe(in));
      const Result got = run(row, c, in);
      if (row.reference) expect_close(got.values, row.reference(hosts(in)), 1e-3, 1, "output");
      bool none = true;
      for (const Host& h : got.values) none &= h.numel() == 0;
      for (const Host& h : got.grads) {
        EXPECT_TRUE(!none || largest(h) == 0) << "nothing came out, so no gradient goes back";
      }
    }
  }
}

void check_special(const Row& row) {
  for (DType dtype : {DType::kF64, DType::kF32}) {
    const std::vector<Tensor> in = special_inputs(row.cases[0].size(), dtype);
    SCOPED_TRACE(dtype_name(dtype));
    const std::vector<Host> at = hosts(in);
    std::vector<Host> got = hosts(row.fn(in)), want = row.reference(at);
    for (size_t i = 0; i < got[0].v.size(); ++i) {
      const double a = got[0].v[i];
      const double b = dtype == DType::kF64 ? want[0].v[i] : static_cast<float>(want[0].v[i]);
      // Below the normal range there are fewer digits to agree on.
      const double tiny = dtype == DType::kF64 ? 1e-307 : 1e-37;
      const double bound = (dtype == DType::kF64 ? row.rtol : row.rtol_f32) * std::abs(b) + tiny;
      if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= bound) continue;
      std::string args;
      for (const Host& h : at) args += " " + testing::PrintToString(h.v[i]);
      ADD_FAILURE() << row.name << " of" << args << ": got " << a << ", want " << b;
    }
  }
}

void check_device(const Row& row, Device device) {
  const InputDeviceGuard on_cpu(kCPU);
  for (DType dtype : {DType::kF64, DType::kF32}) {
    Rng rng = rng_for(row.name);
    for (const Case& c : row.cases) {
      const std::vector<Tensor> in = make_inputs(c, dtype, rng);
      SCOPED_TRACE(describe(in));
      std::vector<Tensor> there;
      for (const Tensor& x : in) there.push_back(raw::to(x, device));
      const Result got = run(row, c, there), want = run(row, c, in);
      const double rtol = dtype == DType::kF64 ? row.rtol : row.rtol_f32;
      expect_close(got.values, want.values, 4 * rtol, 1, "output");
      expect_close(got.grads, want.grads, 10 * rtol, 1, "gradient");
    }
  }
}

/// The rows' texts name the CPU.
std::string on_input_device(std::string text) {
  const std::string cpu = " cpu", there = " " + input_device().str();
  for (size_t at = 0; (at = text.find(cpu, at)) != std::string::npos; at += there.size()) {
    text.replace(at, cpu.size(), there);
  }
  return text;
}

void check_errors(const Row& row) {
  for (const Error& e : row.errors) {
    const std::string text = on_input_device(e.text);
    try {
      e.call();
      synchronize(input_device());  // an index out of range may be told late
      ADD_FAILURE() << e.what << ": nothing was thrown; expected \"" << text << "\"";
    } catch (const tarn::Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << e.what << ": got \"" << error.what() << "\", expected \"" << text << "\"";
    }
  }
}

class AspectTest : public testing::Test {
 public:
  explicit AspectTest(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  std::function<void()> body_;
};

bool has_rank(const Row& row, int rank) {
  for (const Case& c : row.cases) {
    for (const In& in : c) {
      if (in.sizes.dim() == rank) return true;
    }
  }
  return false;
}

bool has_real_input(const Row& row) {
  for (const In& in : row.cases[0]) {
    if (in.kind == In::kReal) return true;
  }
  return false;
}

}  // namespace

// Every aspect on the CPU and on the first GPU, real or emulated.
void Table::register_tests() const {
  register_on(kCPU);
  if (has_backend(DeviceType::kCUDA)) register_on(Device(DeviceType::kCUDA));
}

void Table::register_on(Device device) const {
  for (const Row& row : rows_) {
    const auto aspect = [&](bool applies, std::string name, std::function<void()> body) {
      if (!applies) return;
      if (device.is_cuda()) name += "_cuda";
      const auto at_device = [body, device] {
        const InputDeviceGuard guard(device);
        body();
      };
      testing::RegisterTest(("OpTable/" + row.name).c_str(), name.c_str(), nullptr, nullptr,
                            __FILE__, __LINE__,
                            [at_device]() -> AspectTest* { return new AspectTest(at_device); });
    };
    const bool any = !row.cases.empty(), real = any && has_real_input(row);
    const bool referred = any && static_cast<bool>(row.reference);
    aspect(referred, "value", [&row] { check_value(row); });
    aspect(real && row.gradient, "gradient", [&row] { check_gradient(row); });
    aspect(real && row.gradient && row.second, "second", [&row] { check_second(row); });
    aspect(real, "dtype_f32", [&row] { check_f32(row); });
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      aspect(real && row.halves, std::string("dtype_") + dtype_name(dtype),
             [&row, dtype] { check_half(row, dtype); });
    }
    aspect(referred && row.integers, "dtype_integers", [&row] { check_integers(row); });
    const auto layout = [&](bool applies, const char* name, Layout kind) {
      aspect(any && row.layouts && applies, name, [&row, kind] { check_layout(row, kind); });
    };
    layout(true, "layout_transposed", Layout::kTransposed);
    layout(true, "layout_first_transposed", Layout::kFirstTransposed);
    layout(true, "layout_sliced", Layout::kSliced);
    layout(true, "layout_expanded", Layout::kExpandedFirst);
    layout(true, "layout_expanded_last", Layout::kExpandedLast);
    layout(row.channels_last && any && has_rank(row, 4), "layout_channels_last",
           Layout::kChannelsLast);
    aspect(!row.empty.empty(), "empty", [&row] { check_empty(row); });
    aspect(referred && row.special, "special", [&row] { check_special(row); });
    aspect(referred && row.nonfinite, "nonfinite", [&row] { check_nonfinite(row); });
    aspect(!row.large.empty(), "large", [&row] { check_large(row); });
    if (device.is_cuda()) aspect(any, "device", [&row, device] { check_device(row, device); });
    aspect(!row.errors.empty(), "errors", [&row] { check_errors(row); });
  }
}

}  // namespace tarn::optable
