// functions_linalg.h - dense linear algebra, recorded: factorisations, inverses, determinants.
//
// The names of torch.linalg, over the last two dimensions; the leading ones are a batch. f32 and
// f64; halves and integers throw DTypeError (convert them; under autocast halves go to f32).
// Matrices of any strides. Computed on the CPU, in f64: from another device the operands are copied
// there and the results back. A batch is spread over the threads, a single matrix is not. NaN in a
// matrix gives NaN in its results; so do infinities in those of eigh and svd.
//
// The gradients are made of recorded operations, so they can be differentiated again.
#pragma once

#include <tuple>
#include <utility>

#include "tarn/core/tensor.h"

namespace tarn::linalg {

/// The lower triangular L with a = L L^T, for a symmetric positive definite a [.., N, N], of which
/// the lower triangle is read. Gradient, symmetric: L^-T sym(phi(L^T gL)) L^-1, where phi keeps the
/// lower triangle and halves the diagonal. Source: Murray 2016, arXiv:1602.07527.
/// Throws ShapeError unless square, ValueError that names the first matrix of the batch that is not
/// positive definite.
Tensor cholesky(const Tensor& a);

/// The inverse of a [.., N, N]. Gradient: -y^T g y^T, with y the inverse.
/// Throws ShapeError unless square, ValueError that names the first matrix of the batch that is
/// singular (a pivot is exactly 0).
Tensor inv(const Tensor& a);

/// The determinant of a [.., N, N]: [..]; of a 0x0 matrix 1. Gradient: g det(a) a^-T, and where a
/// determinant is 0 the matrix of cofactors from the singular values (which cannot be
/// differentiated again: create_graph then throws ValueError). Source: Giles 2008, "Collected
/// matrix derivative results". Throws ShapeError unless square.
Tensor det(const Tensor& a);

/// {sign, log |det|} of a [.., N, N], each [..]: without overflow; (0, -infinity) of a singular
/// matrix, (1, 0) of a 0x0 one. Gradient of the logarithm: g a^-T (throws ValueError at a singular
/// matrix); of the sign none. Throws ShapeError unless square.
std::pair<Tensor, Tensor> slogdet(const Tensor& a);

/// x with a x = b: a [.., N, N], b [.., N, K] -> [.., N, K]; batches broadcast. b is a vector (or a
/// batch of them) if it is [N] or has exactly the sizes of a without the last: then so is x.
/// Gradients: gb = solve(a^T, g), ga = -gb x^T.
/// Throws ShapeError on sizes that do not fit, DTypeError unless both have one dtype, ValueError
/// that names the first matrix of the batch that is singular.
Tensor solve(const Tensor& a, const Tensor& b);

/// {q, r} with a = q r, reduced: a [.., M, N], q [.., M, K] with orthonormal columns, r [.., K, N]
/// upper triangular, K = min(M, N). Signs as LAPACK's; the diagonal of r may be negative.
/// Gradient for M >= N and r invertible (else ValueError): (gq + q copyltu(r gr^T - gq^T q)) r^-T,
/// where copyltu mirrors the lower triangle. Source: Seeger et al. 2017, arXiv:1710.08717.
/// For M < N backward throws UnsupportedError.
std::pair<Tensor, Tensor> qr(const Tensor& a);

/// {values ascending [.., N], vectors [.., N, N] in columns} of a symmetric a [.., N, N], of which
/// the lower triangle is read. The sign of a vector is arbitrary: let losses not depend on it.
/// Gradient, symmetric: sym(V (diag(gl) + F o V^T gV) V^T), F_ij = 1 / (l_j - l_i) off the
/// diagonal, so with gV the values must be distinct (else it is not finite). Source: Giles 2008.
/// Throws ShapeError unless square, ValueError if the iteration does not converge.
std::pair<Tensor, Tensor> eigh(const Tensor& a);

/// {u, s, vh} with a = u diag(s) vh, reduced (full_matrices = false): a [.., M, N], u [.., M, K],
/// s [.., K] descending, vh [.., K, N], K = min(M, N). The signs of a pair of vectors are
/// arbitrary. Gradient: u (skew(u^T gu)/E s + s skew(v^T gv)/E + diag(gs)) vh, skew(x) = x - x^T,
/// E_ij = s_j^2 - s_i^2 off the diagonal, plus the parts of gu and gv outside the span of u and v,
/// divided by s. With gu or gv the values must be distinct and, unless a is square, not 0 (else it
/// is not finite). Source: Giles 2008; Townsend 2016, "Differentiating the singular value
/// decomposition". Throws ValueError if the iteration does not converge.
std::tuple<Tensor, Tensor, Tensor> svd(const Tensor& a);

}  // namespace tarn::linalg
