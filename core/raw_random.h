// raw_random.h - tarn::raw: random numbers into tensors, unrecorded.
//
// Numbers are drawn in row-major order whatever the strides of the tensor, so that a result depends
// on seed, sizes and dtype alone. generator: the default one where nullptr.
#pragma once

#include "tarn/core/random.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// Fills x (floating) with numbers from [low, high).
void uniform_(const Tensor& x, double low = 0, double high = 1, Generator* generator = nullptr);
/// Fills x (floating) from a normal distribution.
void normal_(const Tensor& x, double mean = 0, double stddev = 1, Generator* generator = nullptr);
/// Fills x (any dtype) with 1 (probability p) and 0.
void bernoulli_(const Tensor& x, double p, Generator* generator = nullptr);
/// Fills x (not bool) with integers from [low, high).
void randint_(const Tensor& x, int64_t low, int64_t high, Generator* generator = nullptr);
/// The integers 0..n-1 in random order.
Tensor randperm(int64_t n, DType dtype = DType::kI64, Device device = kCPU,
                Generator* generator = nullptr);
/// Indices [.., count] (i64) drawn from the rows of weights [.., n], in proportion to the weights.
/// Never one of weight 0; without replacement never one twice.
Tensor multinomial(const Tensor& weights, int64_t count, bool replacement = false,
                   Generator* generator = nullptr);

/// x / (1 - p) where the draw of `state` keeps an element, 0 elsewhere. Element i in the memory
/// order of `format` uses draw i: the same state gives the same mask again. residual, of x's sizes
/// and dtype, is added if given.
Tensor dropout(const Tensor& x, double p, PhiloxState state, MemoryFormat format,
               const Tensor& residual = {});

/// Throws ValueError unless p is in [0, 1].
void check_probability(const char* op, double p);

}  // namespace tarn::raw
