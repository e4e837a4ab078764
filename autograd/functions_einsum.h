// functions_einsum.h - sums of products: by names of dimensions, and cosines; recorded.
#pragma once

#include <string_view>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

/// Sums of products over named dimensions, as torch.einsum: einsum("bij,bjk->bik", {a, b}) is bmm.
/// Each operand has a letter per dimension; letters that the result ("->...") does not have are
/// summed over. Without "->" the result has the letters that occur once, in the order of the
/// alphabet, capitals first. A letter that an operand has twice picks its diagonal. "..." stands
/// for any number of dimensions, which broadcast; without "->" they come first. Sizes of one letter
/// must agree, or be 1. Operands are joined from left to right, as batched matrix products. Throws
/// ValueError on a wrong equation, ShapeError on sizes that do not fit.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);

/// sum(a b) / (max(|a|, eps) max(|b|, eps)) along dim, with |.| the 2-norm. a and b broadcast; dim
/// counts in their common sizes and is gone from the result.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int64_t dim = 1, double eps = 1e-8);

}  // namespace tarn
