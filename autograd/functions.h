// functions.h - every recorded operation. Their unrecorded twins are in tarn::raw.
#pragma once

#include "tarn/autograd/functions_attention.h"
#include "tarn/autograd/functions_einsum.h"
#include "tarn/autograd/functions_elementwise.h"
#include "tarn/autograd/functions_index.h"
#include "tarn/autograd/functions_interpolate.h"
#include "tarn/autograd/functions_linalg.h"
#include "tarn/autograd/functions_loss.h"
#include "tarn/autograd/functions_matmul.h"
#include "tarn/autograd/functions_norm.h"
#include "tarn/autograd/functions_pool.h"
#include "tarn/autograd/functions_random.h"
#include "tarn/autograd/functions_reduce.h"
#include "tarn/autograd/functions_shape.h"
