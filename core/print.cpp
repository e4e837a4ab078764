// print.cpp - tensors as text, laid out as PyTorch does: four decimals, lines of 80 characters, and
// only the edges of what has more than 1000 elements.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "tarn/core/host.h"
#include "tarn/core/tensor.h"

namespace tarn {
namespace {

constexpr int64_t kThreshold = 1000, kEdge = 3, kLineWidth = 80;

/// One element of a host tensor, as wide as any dtype needs.
struct Value {
  double floating = 0;
  int64_t integral = 0;
};

Value value_at(const Tensor& x, int64_t index) {
  Value v;
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T element = static_cast<const T*>(x.data())[index];
    if constexpr (std::is_integral_v<T>) {
      v.integral = static_cast<int64_t>(element);
    } else {
      v.floating = static_cast<double>(static_cast<compute_t<T>>(element));
    }
  });
  return v;
}

std::string text_of(const char* format, double value) {
  char buffer[400];  // the longest double in %.4f has 314 characters
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

/// Chooses one notation and one width for all elements shown.
class Formatter {
 public:
  Formatter(DType dtype, const std::vector<Value>& values) : dtype_(dtype) {
    if (!is_floating(dtype)) {
      for (const Value& v : values) width_ = std::max(width_, plain(v).size());
      return;
    }
    double least = INFINITY, most = 0;
    for (const Value& v : values) {
      if (!std::isfinite(v.floating) || v.floating == 0) continue;
      least = std::min(least, std::fabs(v.floating));
      most = std::max(most, std::fabs(v.floating));
      whole_ = whole_ && v.floating == std::ceil(v.floating);
    }
    if (most == 0) return;
    scientific_ = most / least > 1000 || most > 1e8 || (!whole_ && least < 1e-4);
    for (const Value& v : values) {
      if (std::isfinite(v.floating) && v.floating != 0) {
        width_ = std::max(width_, plain(v).size());
      }
    }
  }

  std::string operator()(const Value& v) const {
    const std::string text = plain(v);
    return std::string(width_ - std::min(width_, text.size()), ' ') + text;
  }
  size_t width() const { return width_; }

 private:
  std::string plain(const Value& v) const {
    if (dtype_ == DType::kBool) return v.integral ? "True" : "False";
    if (!is_floating(dtype_)) return std::to_string(v.integral);
    if (std::isnan(v.floating)) return "nan";
    if (std::isinf(v.floating)) return v.floating < 0 ? "-inf" : "inf";
    if (scientific_) return text_of("%.4e", v.floating);
    if (whole_) return text_of("%.0f", v.floating) + ".";
    return text_of("%.4f", v.floating);
  }

  DType dtype_;
  bool whole_ = true, scientific_ = false;
  size_t width_ = 1;
};

class Printer {
 public:
  explicit Printer(const Tensor& x) : x_(host_row_major(x)), summarize_(x.numel() > kThreshold) {}

  std::string run(size_t indent) const {
    std::vector<Value> shown;
    collect(0, 0, shown);
    return nested(0, 0, indent, Formatter(x_.dtype(), shown));
  }

 private:
  /// Calls f(index) for the indices of dimension d that are shown; f(-1) stands for the gap.
  template <class F>
  void for_shown(int d, F&& f) const {
    const int64_t n = x_.size(d);
    if (!summarize_ || n <= 2 * kEdge) {
      for (int64_t i = 0; i < n; ++i) f(i);
      return;
    }
    for (int64_t i = 0; i < kEdge; ++i) f(i);
    f(-1);
    for (int64_t i = n - kEdge; i < n; ++i) f(i);
  }
  void collect(int d, int64_t index, std::vector<Value>& out) const {
    if (d == x_.dim()) {
      out.push_back(value_at(x_, index));
      return;
    }
    for_shown(d, [&](int64_t i) {
      if (i >= 0) collect(d + 1, index * x_.size(d) + i, out);
    });
  }
  std::string vector(int64_t base, size_t indent, const Formatter& format) const {
    const size_t per_line = std::max<size_t>(
        1, (kLineWidth - std::min<size_t>(indent, kLineWidth)) / (format.width() + 2));
    std::string text = "[";
    size_t count = 0;
    for_shown(x_.dim() - 1, [&](int64_t i) {
      if (count > 0) text += count % per_line == 0 ? ",\n" + std::string(indent + 1, ' ') : ", ";
      text += i < 0 ? " ..." : format(value_at(x_, base + i));
      ++count;
    });
    return text + "]";
  }
  std::string nested(int d, int64_t index, size_t indent, const Formatter& format) const {
    if (x_.dim() == 0) return format(value_at(x_, 0));
    if (d == x_.dim() - 1) return vector(index * x_.size(d), indent, format);
    const std::string gap =
        "," + std::string(x_.dim() - d - 1, '\n') + std::string(indent + 1, ' ');
    std::string text = "[";
    for_shown(d, [&](int64_t i) {
      if (text.size() > 1) text += gap;
      text += i < 0 ? "..." : nested(d + 1, index * x_.size(d) + i, indent + 1, format);
    });
    return text + "]";
  }

  Tensor x_;
  bool summarize_;
};

std::vector<std::string> suffixes(const Tensor& x) {
  std::vector<std::string> list;
  if (!x.device().is_cpu()) list.push_back(detail::concat("device=", x.device()));
  if (x.numel() == 0 && x.dim() != 1) list.push_back(detail::concat("size=", x.sizes()));
  // What a reader of the values can see needs no suffix; without values i64 and bool need one too.
  const bool visible = x.dtype() == DType::kF32 ||
                       (x.numel() > 0 && (x.dtype() == DType::kI64 || x.dtype() == DType::kBool));
  if (!visible) list.push_back(detail::concat("dtype=", x.dtype()));
  if (!x.grad_fn_name().empty()) {
    list.push_back("grad_fn=<" + x.grad_fn_name() + ">");
  } else if (x.requires_grad()) {
    list.push_back("requires_grad=True");
  }
  return list;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "tensor(undefined)";
  const std::string prefix = "tensor(";
  const size_t indent = prefix.size();
  std::string text = prefix + (tensor.numel() == 0 ? "[]" : Printer(tensor).run(indent));
  const size_t newline = text.rfind('\n');
  size_t line = newline == std::string::npos ? text.size() + 2 : text.size() - newline + 1;
  for (const std::string& suffix : suffixes(tensor)) {
    if (line + suffix.size() + 2 > kLineWidth) {
      text += ",\n" + std::string(indent, ' ') + suffix;
      line = indent + suffix.size();
    } else {
      text += ", " + suffix;
      line += suffix.size() + 2;
    }
  }
  return out << text << ")";
}

}  // namespace tarn
