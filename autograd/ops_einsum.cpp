// ops_einsum.cpp - einsum, two operands at a time, and cosine similarity.
//
// Of two operands with labels A and B, and the labels that are still needed afterwards, each label
// is one of four: in both and needed (a batch), in both and not (summed by the matrix product), or
// in one of them only (rows and columns). So a pair is permuted to [batch, rows, summed] and
// [batch, summed, columns], multiplied as such, and given its sizes back; all of it recorded by the
// operations it is made of.
#include <algorithm>
#include <map>
#include <string>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/shape.h"

namespace tarn {
namespace {

/// A letter; or kDots + n for dimension n, from the last, of those that "..." stands for.
using Label = int;
constexpr Label kDots = 256;
using Labels = std::vector<Label>;

bool has(const Labels& labels, Label l) {
  return std::find(labels.begin(), labels.end(), l) != labels.end();
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// The labels of one term. `dots`: how many dimensions "..." has there; none if negative.
Labels parse(std::string_view equation, std::string_view term, int64_t dots) {
  Labels labels;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term[i] == ' ') continue;
    if (term.substr(i, 3) == "...") {
      TARN_CHECK_AS(ValueError, term.find("...", i + 3) == term.npos, "einsum: '", equation,
                    "': a term has '...' once at most");
      for (int64_t d = dots; d-- > 0;) labels.push_back(kDots + static_cast<Label>(d));
      i += 2;
      continue;
    }
    TARN_CHECK_AS(ValueError, is_letter(term[i]), "einsum: '", equation, "': '", term[i],
                  "' is neither a letter nor part of '...', ',' or '->'");
    labels.push_back(term[i]);
  }
  return labels;
}

int64_t count_letters(std::string_view term) {
  return std::count_if(term.begin(), term.end(), is_letter);
}

bool has_dots(std::string_view term) {
  return term.find("...") != std::string_view::npos;
}

struct Operand {
  Tensor x;
  Labels labels;  // one per dimension of x, each once

  int find(Label l) const {
    return static_cast<int>(std::find(labels.begin(), labels.end(), l) - labels.begin());
  }
  int64_t size(Label l) const { return x.size(find(l)); }
};

/// Takes the diagonal of every label that stands twice.
void merge_repeated(Operand& o) {
  for (size_t i = 0; i < o.labels.size(); ++i) {
    for (size_t j = i + 1; j < o.labels.size();) {
      if (o.labels[j] != o.labels[i]) {
        ++j;
        continue;
      }
      const int a = static_cast<int>(i), b = static_cast<int>(j);
      TARN_CHECK_AS(ShapeError, o.x.size(a) == o.x.size(b), "einsum: '",
                    static_cast<char>(o.labels[i]), "' stands for ", o.x.size(a), " and for ",
                    o.x.size(b), " in one operand; got ", o.x.describe());
      const Label label = o.labels[i];
      o.x = diagonal(o.x, 0, a, b);  // its dimension comes last
      o.labels.erase(o.labels.begin() + b);
      o.labels.erase(o.labels.begin() + a);
      o.labels.push_back(label);
      j = i + 1;  // another label stands at i now
    }
  }
}

void sum_out(Operand& o, const Labels& kept) {
  Shape dims;
  Labels left;
  for (size_t i = 0; i < o.labels.size(); ++i) {
    if (has(kept, o.labels[i])) {
      left.push_back(o.labels[i]);
    } else {
      dims.push_back(static_cast<int64_t>(i));
    }
  }
  if (!dims.empty()) o.x = sum(o.x, dims);
  o.labels = left;
}

Tensor permuted(const Operand& o, const Labels& order) {
  Shape dims;
  for (const Label l : order) dims.push_back(o.find(l));
  return permute(o.x, dims);
}

Labels joined(const Labels& a, const Labels& b) {
  Labels all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

int64_t product(const Operand& o, const Labels& labels) {
  int64_t n = 1;
  for (const Label l : labels) n *= o.size(l);
  return n;
}

/// The two summed over what is in both and not needed any more.
Operand contract(Operand a, Operand b, const Labels& needed) {
  const auto keep_for = [&](const Operand& other) { return joined(needed, other.labels); };
  sum_out(a, keep_for(b));
  sum_out(b, keep_for(a));
  Labels batch, summed, rows, columns;
  for (const Label l : a.labels) {
    Labels& kind = !has(b.labels, l) ? rows : has(needed, l) ? batch : summed;
    kind.push_back(l);
  }
  for (const Label l : b.labels) {
    if (!has(a.labels, l)) columns.push_back(l);
  }
  const int64_t n = product(a, batch), r = product(a, rows), s = product(a, summed),
                c = product(b, columns);
  Operand out{{}, joined(joined(batch, rows), columns)};
  Shape sizes;
  for (const Label l : out.labels) sizes.push_back(has(a.labels, l) ? a.size(l) : b.size(l));
  const Tensor left = permuted(a, joined(joined(batch, rows), summed));
  const Tensor right = permuted(b, joined(joined(batch, summed), columns));
  if (summed.empty()) {
    out.x = mul(reshape(left, {n, r, 1}), reshape(right, {n, 1, c}));
  } else if (batch.empty()) {
    out.x = matmul(reshape(left, {r, s}), reshape(right, {s, c}));
  } else {
    out.x = matmul(reshape(left, {n, r, s}), reshape(right, {n, s, c}));
  }
  out.x = reshape(out.x, sizes);
  return out;
}

std::vector<std::string_view> split_terms(std::string_view terms) {
  std::vector<std::string_view> all;
  for (size_t start = 0;;) {
    const size_t comma = terms.find(',', start);
    all.push_back(terms.substr(start, comma - start));
    if (comma == std::string_view::npos) return all;
    start = comma + 1;
  }
}

std::vector<Operand> parse_operands(std::string_view equation, std::string_view terms,
                                    const std::vector<Tensor>& operands) {
  const std::vector<std::string_view> split = split_terms(terms);
  TARN_CHECK_AS(ValueError, split.size() == operands.size() && !operands.empty(), "einsum: '",
                equation, "' has ", split.size(), " operands; got ", operands.size());
  std::vector<Operand> all;
  for (size_t i = 0; i < operands.size(); ++i) {
    raw::check_defined("einsum", "operand", operands[i]);
    const int64_t dots = operands[i].dim() - count_letters(split[i]);
    Labels labels = parse(equation, split[i], dots);
    TARN_CHECK_AS(ShapeError, has_dots(split[i]) ? dots >= 0 : dots == 0, "einsum: '", equation,
                  "': operand ", i, " does not have as many dimensions as letters; got ",
                  operands[i].describe());
    all.push_back({operands[i], std::move(labels)});
    merge_repeated(all.back());
  }
  return all;
}

/// What an equation without "->" asks for.
Labels implicit_result(const std::vector<Operand>& operands, std::string_view terms) {
  Labels dots, letters;
  for (const Operand& o : operands) {
    for (const Label l : o.labels) {
      if (l >= kDots && !has(dots, l)) dots.push_back(l);
      if (l < kDots && std::count(terms.begin(), terms.end(), static_cast<char>(l)) == 1) {
        letters.push_back(l);
      }
    }
  }
  std::sort(dots.rbegin(), dots.rend());
  std::sort(letters.begin(), letters.end());
  return joined(dots, letters);
}

/// Drops dimensions of size 1 that another operand has larger: the product broadcasts them.
void drop_broadcast(std::vector<Operand>& operands) {
  std::map<Label, int64_t> sizes;
  for (const Operand& o : operands) {
    for (const Label l : o.labels) {
      int64_t& size = sizes.emplace(l, 1).first->second;
      if (size == 1) size = o.size(l);
      TARN_CHECK_AS(
          ShapeError, o.size(l) == size || o.size(l) == 1, "einsum: ",
          l < kDots ? std::string("'") + static_cast<char>(l) + "'" : "a dimension of '...'",
          " stands for ", size, " and for ", o.size(l));
    }
  }
  for (Operand& o : operands) {
    for (size_t i = o.labels.size(); i-- > 0;) {
      const int d = static_cast<int>(i);
      if (o.x.size(d) == sizes.at(o.labels[i])) continue;
      o.x = squeeze(o.x, d);
      o.labels.erase(o.labels.begin() + d);
    }
  }
}

}  // namespace

Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands) {
  const OpScope scope("einsum");
  const size_t arrow = equation.find("->");
  const std::string_view terms = equation.substr(0, arrow);
  std::vector<Operand> left = parse_operands(equation, terms, operands);
  Labels result;
  if (arrow == std::string_view::npos) {
    result = implicit_result(left, terms);
  } else {
    int64_t dots = 0;
    for (const Operand& o : left) {
      for (const Label l : o.labels) dots = std::max<int64_t>(dots, l >= kDots ? l - kDots + 1 : 0);
    }
    result = parse(equation, equation.substr(arrow + 2), dots);
  }
  for (size_t i = 0; i < result.size(); ++i) {
    const bool known = std::any_of(left.begin(), left.end(),
                                   [&](const Operand& o) { return has(o.labels, result[i]); });
    TARN_CHECK_AS(ValueError, known && std::count(result.begin(), result.end(), result[i]) == 1,
                  "einsum: '", equation, "': each letter of the result stands there once, and in ",
                  "some operand");
  }
  drop_broadcast(left);
  Operand all = left[0];
  for (size_t i = 1; i < left.size(); ++i) {
    Labels needed = result;
    for (size_t j = i + 1; j < left.size(); ++j) needed = joined(needed, left[j].labels);
    all = contract(all, left[i], needed);
  }
  sum_out(all, result);
  return permuted(all, result);
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, int64_t dim, double eps) {
  raw::check_defined("cosine_similarity", "a", a);
  raw::check_defined("cosine_similarity", "b", b);
  const OpScope scope("cosine_similarity");
  const Shape sizes = broadcast_shapes("cosine_similarity", a.sizes(), b.sizes());
  const Tensor x = expand(a, sizes), y = expand(b, sizes);
  const auto length = [&](const Tensor& v) { return clamp_min(norm(v, 2, {dim}), eps); };
  return sum(x * y, {dim}) / (length(x) * length(y));
}

}  // namespace tarn
